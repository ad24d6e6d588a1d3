"""Single values: whether a type takes them, and how to say what it takes."""

from __future__ import annotations

import functools
import json
import os
import re
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml

os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")

from jsonargparse import ArgumentParser

from fedrs_lightning.cli.config.nearest_names import nearest
from fedrs_lightning.cli.config.yaml_files import parse_text

_NAMES: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
_NAMES |= {type(None): "null", None: "null"}


def checked(hint: Any, value: Any, text: str | None = None) -> Any:
    """A value as its type takes it, in plain JSON values.

    Args:
        hint: type.
        value: from a config file.
        text: as written on the command line, where it comes from there.

    Raises:
        ValueError: the type does not take it.
    """
    if hint is Any:
        return value if text is None else parse_text(text)
    if value is None:
        if type(None) in get_args(hint):
            return None
        raise ValueError("null")
    if is_text(hint):  # as it stands there: 1e3 is no number, None no folder
        words = value if text is None else text
        if not isinstance(words, str) or words == "None" or "\0" in words:
            raise ValueError(str(words))
        return str(Path(words)) if Path in (hint, *get_args(hint)) and words else words
    parser = _parser(hint)
    try:
        found = parser.parse_object({"value": value}) if text is None else parser.parse_args([f"--value={text}"])
        return json.loads(parser.dump(found, format="json", skip_none=False))["value"]
    except Exception as error:  # whatever the parser raises: its words are not used
        raise ValueError(str(error)) from None


def is_text(hint: Any) -> bool:
    """Whether a type takes text or a path, and nothing else but null."""
    parts = set(get_args(hint)) - {type(None)} if get_origin(hint) in (Union, types.UnionType) else {hint}
    return bool(parts) and parts <= {str, Path}


@functools.cache
def _parser(hint: Any) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=hint)
    return parser


def described(hint: Any) -> str:
    """What is expected, such as `a whole number or null`."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join([", ".join(map(str, inner[:-1])), str(inner[-1])]) if len(inner) > 1 else str(inner[0])
    if origin in (Union, types.UnionType):
        return " or ".join(described(part) for part in inner)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Sequence) and inner:
        return f"a list of {described(inner[0])}"
    return _NAMES[hint] if hint in _NAMES else str(getattr(hint, "__name__", hint))


def shown(value: Any) -> str:
    """A wrong value, as a user writes it."""
    if isinstance(value, str):
        return f"'{value}'"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def yaml_text(config: dict[str, Any]) -> str:
    """A configuration as YAML that `--config` reads again."""
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def one_line(error: BaseException) -> str:
    """What a library raised, as one line for people."""
    noise = "Subtypes: .*|Given value type: .*|Errors:|Does not validate against any of the Union subtypes"
    text = re.sub(rf"\s*(?:{noise})$", "", str(error), flags=re.MULTILINE)
    text = "\n".join(line for line in text.splitlines() if "NoneType" not in line)
    return " ".join(text.replace("\n- ", "; ").split()).strip("; ") or type(error).__name__


def _literals(hint: Any) -> list[Any]:
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [word for part in get_args(hint) for word in _literals(part)]


def nearest_literal(hint: Any, value: Any) -> str:
    """`; did you mean 'X'?` where the value, or an element of it, looks like one of the words that a type allows."""
    allowed = [str(word) for word in _literals(hint)]
    wrong = [str(part) for part in (value if isinstance(value, list) else [value]) if str(part) not in allowed]
    return nearest(wrong[0], allowed, "") if wrong and allowed else ""
