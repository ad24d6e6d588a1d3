"""From config files and options, in the order in which they stand, to one complete configuration of plain values.

The first mistake ends it, with file and line or option, the key, what is wrong, and the nearest valid name. What may be
given is read from the source of the classes (`signatures.py`), so that neither torch nor lightning is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from fedrs_lightning.cli.config.nearest_names import nearest
from fedrs_lightning.cli.config.ranges import complaint, optimiser_complaint
from fedrs_lightning.cli.config.signatures import UNKNOWN, Hint, Parameter, SourceClass, resolve, short_names
from fedrs_lightning.cli.config.values import checked, described, is_text, nearest_literal, shown
from fedrs_lightning.cli.config.yaml_files import YamlFile, is_yaml_name, parse_text
from fedrs_lightning.errors import ConfigError

SPEC = ("class_path", "init_args", "dict_kwargs")
Parameters = Mapping[str, Parameter]


def options(arguments: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Name and value of each option; a value without an option has the name None."""
    found: list[tuple[str | None, str | None]] = []
    open_ = False
    for token in arguments:
        if token.startswith("-") and not _is_number(token):
            name, equals, value = token.partition("=")
            found.append((name.removeprefix("--"), value if equals else None))
            open_ = not equals
        elif open_:
            found[-1] = (found[-1][0], token)
            open_ = False
        else:
            found.append((None, token))
    return found


def read(
    schema: SourceClass, arguments: Sequence[str], linked: Mapping[str, str], *, partial: bool = False
) -> dict[str, Any]:
    """The complete configuration that a command line asks for.

    Args:
        schema: the data class whose fields are the top-level keys.
        arguments: of the command line.
        linked: arguments that a class takes over from another (`task.init_args.num_classes`), with where from.
        partial: null stands for what is missing.

    Raises:
        ConfigError: the first mistake.
    """
    reading = _Reading(schema, linked, partial)
    for name, value in options(arguments):
        if name is None:
            if is_yaml_name(value):
                raise ConfigError(
                    f"'{value}' belongs to no option; a configuration file is given with --config {value}"
                )
            raise ConfigError(f"'{value}' belongs to no option; options begin with --")
        if name == "config":
            if value is None:
                raise ConfigError("--config needs a file")
            reading.file(YamlFile.read(Path(value), "--config"))
        elif name.endswith(".help"):
            reading.help(name.removesuffix(".help"), value)
        elif name not in ("help", "h", "-h", "print_config"):
            reading.option(name, value)
    return reading.complete()


def _is_number(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class _Given:
    """A value and where it was given: below a key of a file, or with an option, as `text`."""

    value: Any
    file: YamlFile | None = None
    keys: tuple[Any, ...] = ()
    option: str = ""
    text: str | None = None

    @property
    def where(self) -> str:
        return self.option if self.file is None else self.file.where(self.keys)

    def below(self, key: Any, value: Any = None) -> _Given:
        return replace(self, value=value, keys=(*self.keys, key), text=None)

    def fail(self, key: str, problem: str, hint: str = "") -> NoReturn:
        """Raise, saying the key too where the option's name does not say it already."""
        said = self.file is None and _short(self.option.removeprefix("--")).startswith(_short(key))
        raise ConfigError(f"{self.where}: {'' if said or not key else f'{key}: '}{problem}{hint}")

    def followed(self, key: str) -> _Given:
        """The content of a part file where the value names one."""
        if not is_yaml_name(self.value):
            return self
        folder = Path() if self.file is None else self.file.path.parent
        part = YamlFile.read(folder / self.value, f"{self.where}: {key}")
        return _Given(part.content, part)

    def checked(self, key: str, hint: Any) -> Any:
        value, text = self.value, self.text
        if is_text(hint) and self.file is not None and isinstance(value, (int, float, date)):
            value = self.file.texts.get(self.keys, value)
        try:
            value = checked(hint, value, text)
        except ValueError:
            near = nearest_literal(hint, self.value)
            if self.value == "None" and type(None) in get_args(hint):
                near = "; write null"
            self.fail(key, f"expected {described(hint)}, got {shown(self.value)}", near)
        self.within(key, complaint(key, value))
        return value

    def within(self, key: str, problem: str | None) -> None:
        """Raise where a number cannot be."""
        if problem is not None:
            self.fail(key, problem)


@dataclass(frozen=True)
class _Slot:
    """A place of the configuration: `values[name]`, of a type, with its full name for people."""

    values: dict[str, Any]
    name: str
    hint: Hint
    full: str

    @property
    def cls(self) -> SourceClass:
        assert self.hint.cls is not None
        return self.hint.cls

    @property
    def held(self) -> Any:
        return self.values.get(self.name)


class _Reading:
    """Applies sources in order and stops at the first mistake."""

    def __init__(self, schema: SourceClass, linked: Mapping[str, str], partial: bool) -> None:
        self.schema, self.linked, self.partial = schema.parameters or {}, linked, partial
        self.classes: dict[str, SourceClass] = {}
        self.values: dict[str, Any] = {}
        for name, parameter in self.schema.items():
            if parameter.hint.cls is not None and not parameter.required and parameter.default:
                self._class(_Slot(self.values, name, parameter.hint, name), [], _Given(parameter.default))
                # As if all were given: Adam's weight decay of 0 stays under AdamW.
                self.values[name] = self._filled(name, self.values[name], parameter.hint)

    def file(self, file: YamlFile) -> None:
        for key, value in file.content.items():
            self._top(str(key).split("."), _Given(value, file, (key,)))

    def help(self, name: str, value: str | None) -> None:
        parameter = self.schema.get(name)
        if parameter is not None and parameter.hint.cls is not None and value is not None:
            self._choose(_Slot({}, name, parameter.hint, name), _Given(value, option=f"--{name}.help"))

    def option(self, name: str, text: str | None) -> None:
        option, path = name if name.startswith("-") else f"--{name}", name.split(".")
        if text is None:
            self._known(path, _Given(None, option=option))
            raise ConfigError(f"--{name} needs a value")
        self._top(path, _Given(parse_text(text), option=option, text=text))

    def complete(self) -> Any:
        """All values, with the defaults of those that were not given; a `ConfigError` where one has no default."""
        for name, parameter in self.schema.items():
            cls = parameter.hint.cls
            absent = parameter.required and not self.partial and name not in self.values
            if absent and cls is not None and not cls.is_group:
                known = ", ".join(short_names(cls))
                raise ConfigError(f"{name} is missing; name one of {known} in the config file or with --{name}")
        self._fitting()
        return self._complete("", self.values, self.schema, "")

    def _fitting(self) -> None:
        """Whether the method works on such labels, before what it needs besides is asked for."""
        chosen = [self.values.get(name) for name in ("task", "method")]
        named = [str(value.get("class_path") if isinstance(value, dict) else value) for value in chosen]
        task, method = self.classes.get(named[0]), self.classes.get(named[1])
        if task is None or method is None:
            return
        needed, given = method.constant("needs_labels"), task.constant("label_kind")
        if isinstance(needed, str) and isinstance(given, str) and needed != given:
            kinds = {"pixel_classes": "masks", "one_class": "one class an image", "several_classes": "several classes"}
            problem = f"{method.name} needs {kinds[needed]}, and {task.name} has {kinds[given]}"
            raise ConfigError(f"method: {problem}; choose another method or task")

    def _complete(self, above: str, values: Mapping[str, Any], known: Mapping[str, Parameter], cls: str) -> Any:
        found: dict[str, Any] = {}
        for name, parameter in known.items():
            full = f"{above}{name}"
            if full in self.linked:
                continue
            if name in values:
                found[name] = self._filled(full, values[name], parameter.hint)
            elif parameter.required and parameter.hint.cls is not None and parameter.hint.cls.is_group:
                found[name] = self._filled(full, {}, parameter.hint)
            elif parameter.required and self.partial:
                found[name] = None
            elif parameter.required:
                why = f" ({cls} needs it)" if cls else ""
                raise ConfigError(f"{full} is missing{why}; set it in the config file or with --{full}")
            elif parameter.default == {}:
                found[name] = self._filled(full, {}, parameter.hint)
            elif parameter.default is not UNKNOWN:
                found[name] = _typed(parameter)
        return found | {name: value for name, value in values.items() if name not in known}

    def _filled(self, full: str, value: Any, hint: Hint) -> Any:
        if hint.cls is None or value is None:
            return value
        if hint.many:
            one = replace(hint, many=False)
            return [self._filled(f"{full}.{number}", item, one) for number, item in enumerate(value)]
        if hint.cls.is_group:
            return self._complete(f"{full}.", value, hint.cls.parameters or {}, "")
        if "class_path" not in value:
            raise ConfigError(f"{full}: name a class first (class_path)")
        cls, given = self.classes[value["class_path"]], value["init_args"]
        known = _parameters(cls, hint)
        return value | {"init_args": self._complete(f"{full}.init_args.", given, known or {}, cls.name)}

    def _known(self, path: list[str], given: _Given) -> None:
        name = path[0].removesuffix("+")
        if name not in self.schema:
            what = "option" if given.file is None else "key"
            given.fail("", f"there is no {what} '{name}'", nearest(name, self.schema))

    def _top(self, path: list[str], given: _Given) -> None:
        self._known(path, given)
        self._member(self.values, self.schema, path, given, "")

    def _member(self, values: dict[str, Any], known: Parameters, path: list[str], given: _Given, above: str) -> None:
        """Set what lies at a path below a group or the arguments of a class, which has its first part."""
        name, rest = path[0].removesuffix("+"), path[1:]
        slot = _Slot(values, name, known[name].hint, f"{above}{name}")
        if path[0].endswith("+") and not rest:  # `--run.loggers+=wandb` adds to the list
            more = given.value if isinstance(given.value, list) else [given.value]
            given = replace(given, value=[*(slot.held or known[name].default or []), *more], text=None)
        if slot.hint.cls is None:
            if rest:  # a key of a mapping
                if get_origin(slot.hint.type) is not dict:
                    given.fail("", f"{slot.full} has no key '{'.'.join(rest)}'")
                given = replace(given, value={**(slot.held or {}), ".".join(rest): given.value}, text=None)
            values[name] = given.checked(slot.full, slot.hint.type)
        elif given.value is None and slot.hint.optional and not rest:
            values[name] = None
        elif slot.hint.many:
            self._list(slot, rest, given)
        elif slot.cls.is_group:
            self._group(slot, rest, given)
        else:
            self._class(slot, rest, given)

    def _list(self, slot: _Slot, rest: list[str], given: _Given) -> None:
        if rest or not isinstance(given.value, list):
            given.fail(slot.full, "is given whole, as a list" if rest else f"expected a list, got {shown(given.value)}")
        found: dict[str, Any] = {}
        for number, item in enumerate(given.value):
            one = _Slot(found, str(number), replace(slot.hint, many=False), f"{slot.full}.{number}")
            (self._group if slot.cls.is_group else self._class)(one, [], given.below(number, item))
        slot.values[slot.name] = list(found.values())

    def _group(self, slot: _Slot, rest: list[str], given: _Given) -> None:
        known = slot.cls.parameters or {}
        if rest:
            if rest[0].removesuffix("+") not in known:
                given.fail("", f"{slot.full} has no key '{'.'.join(rest)}'", nearest(".".join(rest), known))
            self._member(slot.values.setdefault(slot.name, {}), known, rest, given, f"{slot.full}.")
            return
        given = given.followed(slot.full)
        if not isinstance(given.value, Mapping):
            given.fail(slot.full, f"expected keys ({', '.join(known)}), got {shown(given.value)}")
        slot.values.setdefault(slot.name, {})
        for key, inner in given.value.items():
            self._group(slot, str(key).split("."), given.below(key, inner))

    def _class(self, slot: _Slot, rest: list[str], given: _Given) -> None:
        if rest and rest[0] != "class_path":
            below = rest[1:] if rest[0] in SPEC else rest
            if rest[0] == "dict_kwargs":
                spec = slot.values.setdefault(slot.name, {})
                more = {".".join(below): given.value} if below else given.value or {}
                if not isinstance(more, Mapping):
                    given.fail(f"{slot.full}.dict_kwargs", f"expected keys, got {shown(more)}")
                given.within(f"{slot.full}.dict_kwargs", complaint(f"{slot.full}.dict_kwargs", more))
                spec["dict_kwargs"] = {**spec.get("dict_kwargs", {}), **more}
            elif below:
                self._argument(slot, below, given)
            else:
                self._arguments(slot, given)
            return
        given = given.followed(slot.full)
        if isinstance(given.value, str):
            self._choose(slot, given)
        elif isinstance(given.value, Mapping):
            for key in given.value:
                if key not in SPEC:
                    self._misplaced(slot, str(key), given)
            if "class_path" in given.value:
                self._choose(slot, given.below("class_path", given.value["class_path"]))
            self._arguments(slot, given.below("init_args", given.value.get("init_args") or {}))
            if "dict_kwargs" in given.value:
                self._class(slot, ["dict_kwargs"], given.below("dict_kwargs", given.value["dict_kwargs"]))
        else:
            wanted = "the name of a class, or class_path and init_args"
            given.fail(slot.full, f"expected {wanted}, got {shown(given.value)}")

    def _misplaced(self, slot: _Slot, key: str, given: _Given) -> NoReturn:
        path = given.value.get("class_path", (slot.held or {}).get("class_path"))
        found = resolve(slot.cls, path) if isinstance(path, str) else None
        if found is not None and key in (found[1].parameters or {}):
            given.below(key).fail(slot.full, f"'{key}' belongs below init_args")
        given.below(key).fail("", f"{slot.full} has no key '{key}'", nearest(key, SPEC[:2]))

    def _choose(self, slot: _Slot, given: _Given) -> None:
        """Take the class of a short name or import path; arguments that it has too stay as they were given."""
        name = given.value
        if not isinstance(name, str):
            given.fail(slot.full, f"expected the name of a class, got {shown(name)}")
        found = resolve(slot.cls, name)
        if found is None or (found[1].abstract and "." not in name):
            problem = f"there is no '{name}' to import" if "." in name else f"there is no class '{name}'"
        elif not found[1].derives_from(slot.cls):
            problem = f"'{name}' does not fit here"
        else:
            problem = f"'{name}' is only the base of others" if found[1].abstract else ""
        if found is None or problem:
            given.fail(slot.full, problem, nearest(name.rpartition(".")[2], short_names(slot.cls), "choose from"))
        path, cls = found
        self.classes[path] = cls
        before = slot.held or {}
        if before.get("class_path") != path:
            known = _parameters(cls, slot.hint) or {}
            kept = {key: value for key, value in before.get("init_args", {}).items() if _keeps(known, key, value)}
            slot.values[slot.name] = {"class_path": path, "init_args": kept}

    def _arguments(self, slot: _Slot, given: _Given) -> None:
        if not isinstance(given.value, Mapping):
            given.fail(f"{slot.full}.init_args", f"expected keys, got {shown(given.value)}")
        for key, inner in given.value.items():
            self._argument(slot, [str(key)], given.below(key, inner))

    def _argument(self, slot: _Slot, path: list[str], given: _Given) -> None:
        spec = slot.held or {}
        if "class_path" not in spec:
            given.fail(slot.full, "name a class first (class_path)")
        cls, below, name = self.classes[spec["class_path"]], f"{slot.full}.init_args.", path[0].removesuffix("+")
        known = _parameters(cls, slot.hint)
        if f"{below}{name}" in self.linked:
            given.fail(f"{below}{name}", "follows from the data set; leave it out")
        if known is None:  # the class takes whatever it is given
            given.within(f"{below}{name}", complaint(f"{below}{name}", given.value))
            spec["init_args"][".".join(path)] = given.value
        elif name in known:
            self._member(spec["init_args"], known, path, given, below)
            if cls.module.name.startswith("torch.optim"):
                value = spec["init_args"].get(name)
                given.within(f"{below}{name}", optimiser_complaint(cls.name, name, value))
        else:
            given.fail(slot.full, f"{cls.name} has no option '{name}'", nearest(name, known))


def _parameters(cls: SourceClass, hint: Hint) -> Mapping[str, Parameter] | None:
    """What a configuration may give to a class: all but the arguments that a caller gives later."""
    return None if cls.parameters is None else dict(list(cls.parameters.items())[hint.positional :])


def _typed(parameter: Parameter) -> Any:
    """The default of a parameter as it is read from a file: 0 of a real number is 0.0."""
    if isinstance(parameter.default, bool) or not isinstance(parameter.default, (int, list)):
        return parameter.default
    try:
        return checked(parameter.hint.type, parameter.default)
    except ValueError:
        return parameter.default


def _keeps(known: Mapping[str, Parameter], name: str, value: Any) -> bool:
    """Whether an argument of the class before is one of the class that takes its place."""
    try:
        hint = known[name].hint
        return hint.cls is not None or checked(hint.type, value) is not UNKNOWN
    except (KeyError, ValueError):
        return False


def _short(key: str) -> str:
    return key.replace(".init_args.", ".")
