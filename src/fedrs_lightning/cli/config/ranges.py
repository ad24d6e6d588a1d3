"""Which numbers an option can be, beyond its type. What only a constructor knows, the constructor checks.

Every number is finite and fits the numbers of a network, float32, or a whole number of 32 bits; seeds take more.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

LARGEST_REAL = 3.4e38
LARGEST_WHOLE = 2**31 - 1
LARGEST_SEED = 2**63 - 1

_MOST_RANKS = max(64, 4 * (os.cpu_count() or 1))
_OPEN = math.inf

# Least and greatest value; (0, 1) in brackets as mathematicians write them.
_OPTIONS = {
    "schedule.clients_per_round": "[1, inf)",
    "schedule.min_last_batch": "[0, inf)",
    "fabric.upload_memory": "[0, inf)",
    "fabric.devices": f"(-inf, {_MOST_RANKS}]",
    "fabric.num_nodes": "(-inf, 65536]",
    "fabric.threads_per_rank": "(-inf, 1024]",
}
_OPTIMISERS = {
    "lr": "(0, inf)",
    "betas": "[0, 1)",
    "momentum": "[0, 1)",
    "dampening": "[0, 1]",
    "weight_decay": "[0, inf)",
    "eps": "[0, inf)",
    "rho": "[0, 1]",
    "lr_decay": "[0, inf)",
    "initial_accumulator_value": "[0, inf)",
    "lambd": "[0, inf)",
    "t0": "[0, inf)",
    "etas": "(0, inf)",
    "step_sizes": "(0, inf)",
    "momentum_decay": "[0, inf)",
    "beta2_decay": "(-inf, 0]",
    "d": "[1, inf)",
    "ns_steps": "[1, 99]",
}
_OF_ONE = {"RMSprop.alpha": "[0, 1)"}  # ASGD means another thing by this name


def complaint(key: str, value: Any) -> str | None:
    """What is wrong with the numbers of an option, in a list or mapping too; None where nothing is.

    Args:
        key: full name of the option.
        value: in plain JSON values.
    """
    if isinstance(value, Mapping):
        return _first(complaint(f"{key}.{name}", inner) for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return _first(complaint(key, inner) for inner in value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float):
        if not math.isfinite(value):
            return f"expected a finite number, got {value}"
        return f"{value} is more than float32 holds" if abs(value) > LARGEST_REAL else _outside(key, value, _OPTIONS)
    if key.rpartition(".")[2].endswith("seed"):
        return None if 0 <= value <= LARGEST_SEED else f"a seed is 0 to {LARGEST_SEED}, not {value}"
    if abs(value) > LARGEST_WHOLE:
        return f"{value} is out of range (at most {LARGEST_WHOLE})"
    return _outside(key, value, _OPTIONS)


def optimiser_complaint(optimiser: str, name: str, value: Any) -> str | None:
    """What is wrong with an argument of one of torch's optimisers, which accept much that cannot train.

    Args:
        optimiser: name of the class.
        name: of the argument.
        value: in plain JSON values.
    """
    known = _OF_ONE if f"{optimiser}.{name}" in _OF_ONE else _OPTIMISERS
    key = f"{optimiser}.{name}" if known is _OF_ONE else name
    values = value if isinstance(value, (list, tuple)) else [value]
    numbers = [one for one in values if isinstance(one, (int, float)) and not isinstance(one, bool)]
    return _first(_outside(key, one, known) for one in numbers)


def _first(complaints: Any) -> str | None:
    return next((text for text in complaints if text is not None), None)


def _outside(key: str, value: float, known: Mapping[str, str]) -> str | None:
    if key not in known:
        return None
    left, low, high, right = _parts(known[key])
    above = value >= low if left == "[" else value > low
    below = value <= high if right == "]" else value < high
    return None if above and below else f"expected a number {_words(left, low, high, right)}, got {value}"


def _parts(text: str) -> tuple[str, float, float, str]:
    low, high = text[1:-1].split(", ")
    return text[0], float(low), float(high), text[-1]


def _words(left: str, low: float, high: float, right: str) -> str:
    lower = "" if low == -_OPEN else f"{'of at least' if left == '[' else 'above'} {low:g}"
    upper = "" if high == _OPEN else f"{'of at most' if right == ']' else 'below'} {high:g}"
    return " and ".join(part for part in (lower, upper) if part)
