"""The valid name that a wrong one is nearest to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, valid: Iterable[str], otherwise: str = "valid:") -> str:
    """`; did you mean 'X'?`, else the valid names where they are few and `otherwise` introduces them."""
    names = sorted(set(valid))
    lower = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(name, names, n=1)
    near = near or [lower[found] for found in difflib.get_close_matches(name.lower(), lower, n=1)]
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; {otherwise} {', '.join(names)}" if otherwise and 0 < len(names) <= 24 else ""
