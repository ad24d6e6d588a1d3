"""Numbers and names short enough for a narrow table or a small picture."""

from __future__ import annotations


def short_number(value: float) -> str:
    """Up to five characters: `0`, `9999`, `12.3k`, `4.56M`, `0.12`."""
    if isinstance(value, float) and not value.is_integer() and abs(value) < 1000:
        return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.0e}"
    if abs(value) < 10_000:
        return str(round(value))
    for factor, letter in ((1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")):
        if abs(value) < 999.5 * factor:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.1e}"


def short_name(name: str, length: int) -> str:
    """The name, or as many of its first and last letters as fit, with an ellipsis between."""
    if len(name) <= length:
        return name
    tail = max(1, (length - 1) // 3)
    return f"{name[: length - 1 - tail].rstrip()}…{name[-tail:].lstrip()}"
