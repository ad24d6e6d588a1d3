"""The valid name that a wrong one is nearest to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, valid: Iterable[str], otherwise: str = "valid:") -> str:
    """`; did you mean 'X'?`, else the valid names where they are few and `otherwise` introduces them."""
    names = sorted(set(valid))
    lower = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), lower, n=3)
    # A part of a longer name looks alike, and means something else: lr_scheduler is no schedule.
    near = [lower[found] for found in close if abs(len(found) - len(name)) <= max(2, len(name) // 4)]
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; {otherwise} {', '.join(names)}" if otherwise and 0 < len(names) <= 24 else ""
