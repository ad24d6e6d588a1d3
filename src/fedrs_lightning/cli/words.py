"""Types in words, for people who wrote a wrong value."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from jsonargparse import ArgumentParser

_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    type(None): "null",
}


def fits(hint: Any, value: Any, text: str | None = None) -> bool:
    """Whether the parser takes a value for this type.

    Args:
        hint: type hint.
        value: from a config file.
        text: as written on the command line, where it comes from there.
    """
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=hint)
    try:
        if text is None:
            parser.parse_object({"value": value})
        else:
            parser.parse_args([f"--value={text}"])
    except Exception:  # whatever the parser raises: its words are not used
        return False
    return value is not None or type(None) in get_args(hint) or hint is Any


def words(hint: Any) -> str:
    """What is expected, such as `a whole number or null`."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join([", ".join(map(str, inner[:-1])), str(inner[-1])]) if len(inner) > 1 else str(inner[0])
    if origin in (Union, types.UnionType):
        return " or ".join(words(part) for part in inner)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Sequence) and inner:
        return f"a list of {words(inner[0])}"
    return _NAMES[hint] if hint in _NAMES else str(getattr(hint, "__name__", hint))


def literals(hint: Any) -> list[Any]:
    """All words that a type allows, at any depth."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [word for part in get_args(hint) for word in literals(part)]


def nearest_literal(hint: Any, value: Any) -> str:
    """`; did you mean 'X'?` where the value, or an element of it, looks like one of the words that a type allows."""
    allowed = [str(word) for word in literals(hint)]
    wrong = [str(part) for part in (value if isinstance(value, list) else [value]) if str(part) not in allowed]
    return nearest(wrong[0], allowed, "") if wrong and allowed else ""


def nearest(name: str, valid: Iterable[str], otherwise: str = "valid:") -> str:
    """`; did you mean 'X'?`, else the valid names where they are few and `otherwise` introduces them."""
    names = sorted(set(valid))
    lower = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(name, names, n=1) or [
        lower[found] for found in difflib.get_close_matches(name.lower(), lower, n=1)
    ]
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; {otherwise} {', '.join(names)}" if otherwise and 0 < len(names) <= 24 else ""
