"""From a parser's message to one line for people: the key, what is wrong, and the nearest valid name."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Iterable
from typing import Any

from jsonargparse import ArgumentParser

from fedrs_lightning.data import FederatedDataset, Partition
from fedrs_lightning.methods import FedAvg
from fedrs_lightning.tasks import Task

_BASES: dict[str, type] = {"data": FederatedDataset, "task": Task, "method": FedAvg, "data.partition": Partition}


def plain_message(parser: ArgumentParser, error: BaseException) -> str:
    """One line that says what is wrong with the configuration.

    Args:
        parser: that raised.
        error: what it raised.
    """
    text = str(error)
    keys = re.findall(r"(?:Parser key|Option) \"([^\"]+)\"", text)
    key = ".".join(keys)
    classes = re.findall(r"Problem with given class_path '([^']+)'", text)
    found = re.search(r"(?:Group '([^']+)' does not accept option|Option|Key) '([^']+)'(?: is not (?:accepted|expected))?", text)
    if found and ("not accept" in text or "not expected" in text):
        return _unknown(parser, key, found[1], found[2], classes)
    unknown = re.search(r"[Uu]nrecognized arguments: (\S+)", text)
    if unknown:
        name = unknown[1].split("=")[0].lstrip("-")
        return f"--{name} is not an option{_nearest(name, _options(parser))}"
    missing = re.search(r"Key \"([^\"]+)\" is required|[Oo]ption [\"']([^\"']+)[\"'] is required|arguments? (?:is|are) required: (.+)", text)
    if missing:
        name = next(group for group in missing.groups() if group)
        where = f"{keys[0]}." if keys and not name.startswith(keys[0]) else ""
        return f"{where}{name} is missing; set it in the config file or with --{where}{name}"
    literal = re.search(r"Expected a typing.Literal\[(.+?)\]\. Got value: (.*)", text)
    if literal:
        valid = [name.strip(" '\"") for name in literal[1].split(",")]
        given = literal[2].strip()
        return f"{key}: '{given}' is not one of {', '.join(valid)}{_nearest(given, valid)}"
    kind = re.search(r"Expected an? <class '([^']+)'>\. Got value: (.*)", text)
    if kind:
        return f"{key}: expected {kind[1]}, got '{kind[2].strip()}'"
    yaml_file = re.search(r"Expected a path but (\S+\.ya?ml) either not accessible", text)
    if yaml_file:
        return f"{key}: no file {yaml_file[1]}; it is looked up relative to the config file that names it"
    if "dot import path" in text or "No module named" in text or "not a subclass" in text.lower() or "Not a valid subclass" in text:
        given = _given(text)
        base = _BASES.get(key) or _BASES.get(key.rpartition(".init_args")[0])
        names = sorted(_subclasses(base)) if base else []
        choose = f"; choose from {', '.join(names)}" if names else ""
        return f"{key}: '{given}' is no class that fits here{_nearest(given, names) or choose}"
    return " ".join(_without_none(text).split())


def _unknown(parser: ArgumentParser, key: str, group: str | None, name: str, classes: list[str]) -> str:
    if group:
        valid = [option.removeprefix(f"{group}.") for option in _options(parser) if option.startswith(f"{group}.")]
        return f"{group} has no key '{name}'{_nearest(name, valid)}"
    if classes:
        module, _, attribute = classes[-1].rpartition(".")
        signature = inspect.signature(getattr(importlib.import_module(module), attribute))
        return f"{key}: {attribute} has no option '{name}'{_nearest(name, signature.parameters)}"
    valid = [option.split(".")[0] for option in _options(parser)]
    where = f"{key}: " if key else ""
    return f"{where}there is no key '{name}'{_nearest(name, valid)}"


def _options(parser: ArgumentParser) -> list[str]:
    return sorted({option.lstrip("-") for action in parser._actions for option in action.option_strings if option.startswith("--")})


def _subclasses(base: type) -> set[str]:
    below = {name for child in base.__subclasses__() for name in _subclasses(child)}
    return below if inspect.isabstract(base) or base is Partition else below | {base.__name__}


def _nearest(name: str, valid: Iterable[str]) -> str:
    names = sorted(set(valid))
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; valid: {', '.join(names)}" if 0 < len(names) <= 24 else ""


def _given(text: str) -> Any:
    found = re.search(r"(?:Given value: |dot import path string: |given class_path ')([^\n']+)", text)
    return found[1].strip() if found else "?"


def _without_none(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "NoneType" not in line and not line.strip().startswith(("Given value", "Subtypes", "Errors")))
