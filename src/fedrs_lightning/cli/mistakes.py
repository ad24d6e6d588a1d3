"""Find the first mistake in config files and options: file and line or option, the key, what is wrong, the nearest
valid name.

The parser of `fedrs fit` decides what is valid. What it says of a mistake depends on its version and buries the point,
so that the same files and options are walked again here, against the same signatures.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

from jsonargparse import ArgumentParser
from torch.optim import Optimizer

from fedrs_lightning.cli.words import fits, nearest, nearest_literal, words
from fedrs_lightning.cli.yaml_files import YamlFile, is_yaml_name, parse_text
from fedrs_lightning.errors import ConfigError

SPEC = ("class_path", "init_args")


@dataclass(frozen=True)
class Schema:
    """What may be configured.

    Attributes:
        plain: type of each top-level option that is neither a group nor a class.
        groups: data class of each group.
        classes: base class of each option that names a class.
        defaults: class in force where none is named.
        given: arguments that a class gets from elsewhere, by option.
    """

    plain: Mapping[str, Any]
    groups: Mapping[str, type]
    classes: Mapping[str, type]
    defaults: Mapping[str, type] = field(default_factory=dict)
    given: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """All top-level names."""
        return [*self.plain, *self.groups, *self.classes]


def config_files(arguments: Sequence[str]) -> list[YamlFile]:
    """The files behind `--config` and the part files that they name, read.

    Raises:
        ConfigError: a file that is missing, broken, empty, or names a key twice.
    """
    found = [
        YamlFile.read(Path(value), "--config")
        for name, value in options(arguments)
        if name == "config" and value is not None
    ]
    for file in list(found):
        for key, value in file.content.items():
            if is_yaml_name(value):
                found.append(YamlFile.read(file.path.parent / value, f"{file.where((key,))}: {key}"))
    return found


def first_mistake(schema: Schema, arguments: Sequence[str]) -> str | None:
    """One line on the first mistake, or None when this walk finds none.

    Args:
        schema: what may be configured.
        arguments: of the command line.
    """
    walk = _Walk(schema)
    try:
        for name, value in options(arguments):
            if name is None:
                raise ConfigError(f"'{value}' belongs to no option; options begin with --")
            if name == "config":
                if value is None:
                    raise ConfigError("--config needs a file")
                walk.file(YamlFile.read(Path(value), "--config"))
            elif name.endswith(".help"):
                walk.help(name.removesuffix(".help"), value)
            elif name not in ("help", "h", "print_config"):
                walk.option(name, value)
        walk.require()
    except ConfigError as error:
        return str(error)
    return None


def options(arguments: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Name and value of each option; a value without an option has the name None."""
    found: list[tuple[str | None, str | None]] = []
    open_ = False
    for token in arguments:
        if token.startswith("-") and not _is_number(token):
            name, equals, value = token.partition("=")
            name = name.removeprefix("--")
            found.append((name, value if equals else None))
            open_ = not equals
        elif open_:
            found[-1] = (found[-1][0], token)
            open_ = False
        else:
            found.append((None, token))
    return found


def _is_number(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True


class _Walk:
    """Applies sources in order, as the parser does, and stops at the first mistake."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.chosen: dict[str, type] = dict(schema.defaults)
        self.seen: dict[str, set[str]] = {}

    def file(self, file: YamlFile) -> None:
        for key, value in file.content.items():
            self._apply((str(key),), value, _Place(file, (key,)))

    def help(self, name: str, value: str | None) -> None:
        if name in self.schema.classes and value is not None:
            self._choose(name, self.schema.classes[name], value, _Place(None, (), f"--{name}.help"))

    def option(self, name: str, value: str | None) -> None:
        place = _Place(None, (), name if name.startswith("-") else f"--{name}")
        if value is None:
            self._check_name(tuple(name.split(".")), place)
            raise ConfigError(f"--{name} needs a value")
        self._apply(tuple(name.split(".")), parse_text(value), place, value)

    def require(self) -> None:
        """What has no default must be given."""
        for name, base in self.schema.classes.items():
            if name not in self.chosen:
                raise ConfigError(
                    f"{name} is missing; name one of {', '.join(sorted(subclasses(base)))} in the config file or with "
                    f"--{name}"
                )
        for key, cls in self.chosen.items():
            for argument, parameter in arguments_of(cls).items():
                if parameter.required and argument not in self.seen.get(key, set()) | self.schema.given.get(
                    key, frozenset()
                ):
                    full = f"{key}.init_args.{argument}"
                    raise ConfigError(
                        f"{full} is missing ({cls.__name__} needs it); set it in the config file or with --{full}"
                    )
        for name, group in self.schema.groups.items():
            for argument, parameter in arguments_of(group).items():
                if parameter.required and argument not in self.seen.get(name, set()):
                    raise ConfigError(
                        f"{name}.{argument} is missing; set it in the config file or with --{name}.{argument}"
                    )

    def _check_name(self, path: tuple[str, ...], place: _Place) -> None:
        if path[0] not in self.schema.names:
            what = "option" if place.file is None else "key"
            place.fail("", f"there is no {what} '{path[0]}'", nearest(path[0], self.schema.names))

    def _apply(self, path: tuple[str, ...], value: Any, place: _Place, text: str | None = None) -> None:
        path = tuple(part for name in path for part in name.split("."))  # a yaml key may be dotted
        self._check_name(path, place)
        name, rest = path[0], path[1:]
        if name in self.schema.groups:
            self._group(name, rest, value, place, text)
        elif name in self.schema.classes:
            self._class(name, self.schema.classes[name], rest, value, place, text)
        else:
            place.check(name, self.schema.plain[name], value, text)

    def _group(self, name: str, rest: tuple[str, ...], value: Any, place: _Place, text: str | None) -> None:
        if rest:
            known = arguments_of(self.schema.groups[name])
            base = _class_of(known[rest[0]].hint) if rest[0] in known else None
            if rest[0] not in known or (rest[1:] and base is None):
                unknown = ".".join(rest)
                place.fail("", f"{name} has no key '{unknown}'", nearest(unknown, known))
            self.seen.setdefault(name, set()).add(rest[0])
            if base is not None and value is not None:
                self._class(f"{name}.{rest[0]}", base, rest[1:], value, place, text)
            else:
                place.check(f"{name}.{rest[0]}", known[rest[0]].hint, value, text)
            return
        value, place = place.follow(name, value)
        if not isinstance(value, Mapping):
            place.fail(
                name, f"expected keys ({', '.join(arguments_of(self.schema.groups[name]))}), got {_shown(value)}"
            )
        for key, inner in value.items():
            self._group(name, tuple(str(key).split(".")), inner, place.below(key), None)

    def _class(self, key: str, base: type, rest: tuple[str, ...], value: Any, place: _Place, text: str | None) -> None:
        if rest[:1] == ("class_path",):
            rest = rest[1:]
        elif rest[:1] == ("init_args",):
            if not rest[1:]:
                return self._init_args(key, value, place)
            return self._argument(key, rest[1:], value, place, text)
        elif rest:
            return self._argument(key, rest, value, place, text)
        value, place = place.follow(key, value)
        if isinstance(value, str):
            self._choose(key, base, value, place)
        elif isinstance(value, Mapping):
            for name in value:
                if name not in SPEC:
                    self._misplaced(key, base, value, str(name), place.below(name))
            if "class_path" in value:
                self._choose(key, base, value["class_path"], place.below("class_path"))
            self._init_args(key, value.get("init_args") or {}, place.below("init_args"))
        else:
            place.fail(key, f"expected the name of a class, or class_path and init_args, got {_shown(value)}")
        return None

    def _misplaced(self, key: str, base: type, value: Mapping[Any, Any], name: str, place: _Place) -> None:
        cls = (
            resolve(base, value["class_path"])[0] if isinstance(value.get("class_path"), str) else self.chosen.get(key)
        )
        if cls is not None and name in arguments_of(cls):
            place.fail(key, f"'{name}' belongs below init_args")
        place.fail("", f"{key} has no key '{name}'", nearest(name, SPEC))

    def _choose(self, key: str, base: type, name: Any, place: _Place) -> None:
        cls, problem = resolve(base, name)
        if cls is None:
            place.fail(key, problem, nearest(str(name).rpartition(".")[2], subclasses(base), "choose from"))
        if self.chosen.get(key) is not cls:
            # As the parser does: arguments of the class before stay where the new one has them.
            self.seen[key] = self.seen.get(key, set()) & set(arguments_of(cls))
        self.chosen[key] = cls

    def _init_args(self, key: str, value: Any, place: _Place) -> None:
        if not isinstance(value, Mapping):
            place.fail(f"{key}.init_args", f"expected keys, got {_shown(value)}")
        for name, inner in value.items():
            self._argument(key, (str(name),), inner, place.below(name), None)

    def _argument(self, key: str, path: tuple[str, ...], value: Any, place: _Place, text: str | None) -> None:
        cls = self.chosen.get(key)
        if cls is None:
            place.fail(key, "name a class first (class_path)")
        known = arguments_of(cls)
        name, full = path[0], f"{key}.init_args.{path[0]}"
        if name in self.schema.given.get(key, frozenset()):
            place.fail(full, "follows from the data set; leave it out")
        if name not in known:
            place.fail(key, f"{cls.__name__} has no option '{name}'", nearest(name, known))
        self.seen.setdefault(key, set()).add(name)
        base = known[name].hint
        if inspect.isclass(base) and inspect.isabstract(base):
            self._class(full, base, path[1:], value, place, text)
        elif not path[1:]:  # what is inside a value the parser judges
            place.check(full, base, value, text)


@dataclass(frozen=True)
class _Place:
    """Where a value was given: a key of a file, or an option."""

    file: YamlFile | None
    keys: tuple[Any, ...]
    name: str = ""

    def below(self, key: Any) -> _Place:
        return _Place(self.file, (*self.keys, key), self.name)

    def fail(self, key: str, problem: str, hint: str = "") -> NoReturn:
        """Raise, saying the key too where the option's name does not say it already."""
        where = self.name if self.file is None else self.file.where(self.keys)
        said = self.file is None and _short(self.name.removeprefix("--")).startswith(_short(key))
        raise ConfigError(f"{where}: {problem}{hint}" if said or not key else f"{where}: {key}: {problem}{hint}")

    def follow(self, key: str, value: Any) -> tuple[Any, _Place]:
        """The content of a part file where the value names one."""
        if not is_yaml_name(value):
            return value, self
        folder = Path() if self.file is None else self.file.path.parent
        where = self.name if self.file is None else self.file.where(self.keys)
        part = YamlFile.read(folder / value, f"{where}: {key}")
        return part.content, _Place(part, ())

    def check(self, key: str, hint: Any, value: Any, text: str | None) -> None:
        if not fits(hint, value, text):
            self.fail(key, f"expected {words(hint)}, got {_shown(value)}", nearest_literal(hint, value))


@dataclass(frozen=True)
class Argument:
    """A parameter of a class: its type and whether it has no default."""

    hint: Any
    required: bool


def arguments_of(cls: type) -> dict[str, Argument]:
    """What a config may give to a class, as the parser sees it."""
    parser = ArgumentParser()
    names = [
        name.removeprefix("x.")
        for name in parser.add_class_arguments(
            cls, "x", fail_untyped=False, skip={"params"} if issubclass(cls, Optimizer) else set()
        )
    ]
    hints = get_type_hints(cls.__init__)  # type: ignore[misc]
    signature = inspect.signature(cls)
    missing = inspect.Parameter.empty
    return {
        name: Argument(
            hints.get(name, Any), name in signature.parameters and signature.parameters[name].default is missing
        )
        for name in names
    }


def _class_of(hint: Any) -> type | None:
    """The class that a config names for an argument of this type, or None for plain values."""
    inner = [part for part in get_args(hint) or (hint,) if part is not type(None)]
    return inner[0] if len(inner) == 1 and inspect.isclass(inner[0]) and inspect.isabstract(inner[0]) else None


def subclasses(base: type) -> dict[str, type]:
    """Classes that a config may name for a base class, by short name."""
    found = {} if inspect.isabstract(base) or base is Optimizer else {base.__name__: base}
    children: list[type] = base.__subclasses__()
    for child in children:
        found |= {name: cls for name, cls in subclasses(child).items() if not name.startswith("_")}
    return found


def resolve(base: type, name: Any) -> tuple[type | None, str]:
    """The class of a short name or import path, or what is wrong with it."""
    if not isinstance(name, str):
        return None, f"expected the name of a class, got {_shown(name)}"
    known = subclasses(base)
    if name in known:
        return known[name], ""
    module, _, attribute = name.rpartition(".")
    if not module:
        return None, f"there is no class '{name}'"
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError):
        return None, f"there is no '{name}' to import"
    if not inspect.isclass(found) or not issubclass(found, base):
        return None, f"'{name}' does not fit here"
    return (None, f"'{name}' is only the base of others") if inspect.isabstract(found) else (found, "")


def _short(key: str) -> str:
    return key.replace(".init_args.", ".")


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, str) else str(value)
