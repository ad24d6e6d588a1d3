"""What a class takes, read from its source file. Nothing is imported, so that a mistake costs no waiting for torch.

Types are kept where the parser can check a value against them; any other type takes every value here, and the
constructor judges it. A class whose source cannot be read is imported and inspected instead.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import operator
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Literal, Union

from fedrs_lightning.lazy import imported, top_level

UNKNOWN = object()
"""A default that only the constructor knows, such as the value of a call."""

_TYPES = {"int": int, "float": float, "str": str, "bool": bool, "Path": Path, "None": None, "Any": Any}
_LISTS = ("list", "List", "Sequence", "Iterable", "Collection")
_MAPPINGS = ("dict", "Dict", "Mapping")
_FOREIGN = frozenset(sys.stdlib_module_names) | {"typing_extensions"}
_LIBRARIES = frozenset({"torch", "lightning"})  # long files, and nothing in their bases is abstract
_ARITHMETIC = {ast.Mult: operator.mul, ast.Add: operator.add, ast.Sub: operator.sub, ast.Pow: operator.pow}


@dataclass(frozen=True)
class Hint:
    """A type.

    Attributes:
        type: what a plain value is checked against; `Any` takes everything.
        cls: the class that the value names or, of a group, whose arguments it gives; None for a plain value.
        many: whether it is a list of them.
        optional: whether null stands for none of them.
        positional: leading arguments of the class that a caller gives later, where a factory is asked for.
    """

    type: Any = Any
    cls: SourceClass | None = None
    many: bool = False
    optional: bool = False
    positional: int = 0


class Parameter:
    """What a class takes under one name. Type and default are read when they are asked for.

    Args:
        module: where it is written.
        annotation: its type, where it has one.
        value: its default; None where it has none, and must be given.
    """

    def __init__(self, module: SourceModule, annotation: ast.expr | None, value: ast.expr | None) -> None:
        self._module, self._annotation, self._value = module, annotation, value
        self.required = value is None

    @functools.cached_property
    def hint(self) -> Hint:
        """Its type."""
        return Hint() if self._annotation is None else hint_of(self._module, self._annotation)

    @functools.cached_property
    def default(self) -> Any:
        """As plain JSON values, or `UNKNOWN`."""
        return UNKNOWN if self._value is None else _constant(self._module, self._value)


class SourceModule:
    """The names that a source file defines or imports at its top level; none where there is no file."""

    def __init__(self, name: str, file: Path | None = None) -> None:
        self.name, self.file = name, file
        tree = ast.parse(file.read_text(encoding="utf-8") if file is not None else "")
        self.imported = imported(tree)
        self.values: dict[str, ast.expr] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.aliases: dict[str, str] = {}
        for node in top_level(tree.body):
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
            elif isinstance(node, ast.Import):
                self.aliases |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level:  # relative, which `imported` leaves out
                package = name.split(".") if file is not None and file.name == "__init__.py" else name.split(".")[:-1]
                above = ".".join(package[: len(package) - node.level + 1])
                source = f"{above}.{node.module}" if node.module else above
                self.imported |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.values[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self.values[node.target.id] = node.value

    def origin(self, name: str) -> str:
        """Top package that a dotted name is imported from; of what is defined here, nothing."""
        first = name.partition(".")[0]
        return (self.imported[first][0] if first in self.imported else self.aliases.get(first, "")).partition(".")[0]

    def find(self, name: str) -> SourceClass | tuple[SourceModule, ast.expr] | str | None:
        """What a dotted name is here: a class, a value with its module, a name of the standard library, or unknown."""
        first, _, rest = name.partition(".")
        if first in self.classes:
            return None if rest else SourceClass(self, first)
        if first in self.values:
            return None if rest else (self, self.values[first])
        if first in self.imported:
            module, own = self.imported[first]
            if module.split(".")[0] in _FOREIGN:
                return f"{own}.{rest}" if rest else own
            source = source_of(module) if module != self.name else None  # a module of this package
            found = source.find(f"{own}.{rest}" if rest else own) if source is not None else None
            below = source_of(f"{module}.{own}") if found is None and rest else None
            return below.find(rest) if below is not None else found
        if first in self.aliases:
            source = source_of(self.aliases[first]) if self.aliases[first].split(".")[0] not in _FOREIGN else None
            return source.find(rest) if source is not None and rest else rest or None
        return name


@functools.cache
def source_of(module: str) -> SourceModule | None:
    """The source of a module, found as an import would find it; None where there is none to read."""
    top, *rest = module.split(".")
    try:
        spec, name = importlib.util.find_spec(top), top
        for part in rest:
            if spec is None:
                return None
            name = f"{name}.{part}"
            spec = PathFinder.find_spec(name, spec.submodule_search_locations)
        return SourceModule(module, Path(spec.origin)) if spec and spec.origin and spec.has_location else None
    except (ImportError, SyntaxError, UnicodeDecodeError, ValueError, OSError):
        return None


class SourceClass:
    """A class as its source file describes it; equal to another of the same name and module."""

    def __init__(self, module: SourceModule, name: str) -> None:
        self.module, self.name, self.node = module, name, module.classes[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SourceClass) and (other.module.name, other.name) == (self.module.name, self.name)

    def __hash__(self) -> int:
        return hash((self.module.name, self.name))

    @functools.cached_property
    def bases(self) -> list[SourceClass]:
        """Base classes whose source can be read."""
        return self._bases(frozenset())

    def _bases(self, skipped: frozenset[str]) -> list[SourceClass]:
        names = [ast.unparse(base) for base in self.node.bases]
        found = [self.module.find(name) for name in names if self.module.origin(name) not in skipped]
        return [base for base in found if isinstance(base, SourceClass)]

    def derives_from(self, base: SourceClass) -> bool:
        """Whether this class is the base, or derives from it."""
        return self == base or any(own.derives_from(base) for own in self.bases)

    def constant(self, name: str) -> Any:
        """A plain value that the class or a base gives to one of its attributes; None where there is none."""
        for node in self.node.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            value = getattr(node, "value", None)
            if value is not None and any(isinstance(one, ast.Name) and one.id == name for one in targets):
                found = _constant(self.module, value)
                return None if found is UNKNOWN else found
        return next((found for base in self.bases if (found := base.constant(name)) is not None), None)

    @functools.cached_property
    def decorators(self) -> set[str]:
        """Names of its decorators."""
        return {ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in self.node.decorator_list}

    @property
    def is_group(self) -> bool:
        """Whether a configuration gives its arguments without naming it: a data class or a final class."""
        return not self.decorators.isdisjoint({"dataclass", "final"})

    @functools.cached_property
    def abstract(self) -> frozenset[str]:
        """Names of the methods that a class derived from this one must define."""
        inherited = frozenset[str]().union(*(base.abstract for base in self._bases(_LIBRARIES)))
        own = {node.name: node for node in self.node.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
        decorators = {name: " ".join(map(ast.unparse, node.decorator_list)) for name, node in own.items()}
        mine = {name for name, text in decorators.items() if "abstract" in text}
        assigned = [node for node in self.node.body if isinstance(node, (ast.Assign, ast.AnnAssign))]
        targets = [target for node in assigned for target in getattr(node, "targets", [getattr(node, "target", node)])]
        fields = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        return (inherited - own.keys() - fields) | mine

    @functools.cached_property
    def parameters(self) -> Mapping[str, Parameter] | None:
        """What the constructor takes, in order; None where its source does not say."""
        if "dataclass" in self.decorators:
            found: dict[str, Parameter] = {}
            for base in reversed(self.bases):
                found |= base.parameters or {}
            for node in self.node.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found[node.target.id] = Parameter(self.module, node.annotation, node.value)
            return found
        for node in self.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                return self._arguments(node)
        if len(self.bases) == len([base for base in self.node.bases if ast.unparse(base) not in ("ABC", "object")]):
            return self.bases[0].parameters if self.bases else {}
        return None

    def _arguments(self, node: ast.FunctionDef) -> dict[str, Parameter] | None:
        names = [*node.args.posonlyargs, *node.args.args][1:]
        defaults: list[ast.expr | None] = [None] * (len(names) - len(node.args.defaults)) + list(node.args.defaults)
        pairs = [*zip(names, defaults, strict=True), *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
        found = {name.arg: Parameter(self.module, name.annotation, default) for name, default in pairs}
        if node.args.kwarg is None:
            return found
        for call in ast.walk(node):  # `super().__init__(first, name=..., **kwargs)` hands the rest to the base
            if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "super().__init__" and self.bases):
                continue
            if not any(word.arg is None and ast.unparse(word.value) == node.args.kwarg.arg for word in call.keywords):
                continue
            inherited = self.bases[0].parameters
            if inherited is None:
                return None
            taken = {word.arg for word in call.keywords} | set(list(inherited)[: len(call.args)])
            return found | {name: one for name, one in inherited.items() if name not in taken and name not in found}
        return None


def hint_of(module: SourceModule, node: ast.expr) -> Hint:
    """The type that an annotation means in its module."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            return hint_of(module, ast.parse(node.value, mode="eval").body)
        return Hint(None) if node.value is None else Hint()
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([hint_of(module, node.left), hint_of(module, node.right)])
    if isinstance(node, (ast.Name, ast.Attribute)):
        found = module.find(ast.unparse(node))
        if isinstance(found, SourceClass):
            return Hint(cls=found)
        if isinstance(found, tuple):
            return hint_of(*found)
        name = (found or "").rpartition(".")[2]
        return Hint(_TYPES.get(name, list if name in _LISTS else dict if name in _MAPPINGS else Any))
    if not isinstance(node, ast.Subscript):
        return Hint()
    found = module.find(ast.unparse(node.value))
    name = found.rpartition(".")[2] if isinstance(found, str) else ""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "Literal":
        return Hint(Literal[tuple(ast.literal_eval(part) for part in parts)])
    if name == "Callable":
        return replace(hint_of(module, parts[1]), positional=len(getattr(parts[0], "elts", ())))
    inner = [hint_of(module, part) for part in parts if not (isinstance(part, ast.Constant) and part.value is ...)]
    if name in ("Union", "Optional"):
        return _union([*inner, *([Hint(None)] if name == "Optional" else [])])
    if name in ("Annotated", "ClassVar", "Final"):
        return inner[0]
    if name in _LISTS:
        return replace(inner[0], many=True) if inner[0].cls is not None else Hint(list[inner[0].type])  # type: ignore[misc]
    if name in _MAPPINGS and not any(one.cls for one in inner):
        return Hint(dict[inner[0].type, inner[1].type])  # type: ignore[misc]
    if name == "tuple" and not any(one.cls for one in inner):
        return Hint(tuple[(*(one.type for one in inner), *((...,) if len(inner) < len(parts) else ()))])  # type: ignore[misc]
    return Hint()


def _union(hints: list[Hint]) -> Hint:
    """A class that may be left out stays a class; beside plain types a class (`float | Tensor`) is left out."""
    classes = [hint for hint in hints if hint.cls is not None]
    plain = [hint for hint in hints if hint.cls is None]
    if len(classes) == 1 and all(hint.type is None for hint in plain):
        return replace(classes[0], optional=True)
    types = tuple(hint.type for hint in plain if hint.type is not Any)
    return Hint(Union[types] if types and len(types) == len(plain) else Any)  # noqa: UP007


def _constant(module: SourceModule, node: ast.expr) -> Any:
    """The value of a default as plain JSON values, or `UNKNOWN`."""
    try:
        return _plain(ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError):
        pass
    if isinstance(node, (ast.Name, ast.Attribute)):
        found = module.find(ast.unparse(node))
        return _constant(*found) if isinstance(found, tuple) else UNKNOWN
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        sides = [_constant(module, side) for side in (node.left, node.right)]
        return UNKNOWN if UNKNOWN in sides else _ARITHMETIC[type(node.op)](*sides)
    if not isinstance(node, ast.Call):
        return UNKNOWN
    name, words = ast.unparse(node.func), {word.arg: word.value for word in node.keywords}
    factory = words.get("default_factory")
    if name.endswith("field") and "default" in words:
        return _constant(module, words["default"])
    if name.endswith("field") and isinstance(factory, ast.Lambda):
        return _constant(module, factory.body)
    if name.endswith("field") and factory is not None:
        made = ast.unparse(factory)
        if isinstance(module.find(made), SourceClass):
            return {}  # of a group: its own defaults
        return {"list": [], "dict": {}}.get(made, UNKNOWN)
    return _constant(module, node.args[0]) if name.endswith("Path") and len(node.args) == 1 else UNKNOWN


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


class LoadedClass(SourceClass):
    """A class whose source cannot be read, inspected instead."""

    def __init__(self, cls: type) -> None:
        self.cls, self.name = cls, cls.__name__
        self.module = SourceModule(cls.__module__)
        self.abstract = frozenset(getattr(cls, "__abstractmethods__", ()))
        self.decorators = set()

    def constant(self, name: str) -> Any:
        """See `SourceClass.constant`."""
        return getattr(self.cls, name, None)

    def derives_from(self, base: SourceClass) -> bool:
        """Whether this class is the base, or derives from it."""
        return any((one.__module__, one.__name__) == (base.module.name, base.name) for one in self.cls.__mro__)

    @functools.cached_property
    def parameters(self) -> Mapping[str, Parameter] | None:
        """What the constructor takes, in order, of any type; None where it takes whatever it is given."""
        found = list(inspect.signature(self.cls).parameters.values())
        if any(one.kind is one.VAR_KEYWORD for one in found):
            return None
        defaults = [None if one.default is one.empty else ast.Name("unknown") for one in found]
        return {one.name: Parameter(self.module, None, value) for one, value in zip(found, defaults, strict=True)}


def named(path: str) -> SourceClass | None:
    """The class of an import path, or of a shorter one that a package offers, read from its source; None without one.

    A module that is loaded already is asked too, and one that has no source, such as a compiled one, is imported. A
    module with a source is never imported here: whether its class fits is known before any of its code runs.
    """
    module, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")):
        return None
    source = source_of(module) if module else None
    found = source.find(name) if source is not None else None
    if isinstance(found, SourceClass):
        return found
    foreign = module.partition(".")[0] in _FOREIGN
    if module not in sys.modules and (not module or source is not None or foreign):
        return None
    try:
        loaded = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return None
    return LoadedClass(loaded) if inspect.isclass(loaded) else None


def package_of(base: SourceClass) -> SourceModule | None:
    """The package that offers a base class and the classes derived from it by short names."""
    parts = base.module.name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        package = source_of(".".join(parts[:length]))
        if package is not None and base.name in package.imported:
            return package
    return None


def short_names(base: SourceClass) -> list[str]:
    """Short names of the classes that may be given for a base class."""
    package = package_of(base)
    found = [package.find(name) for name in package.imported] if package is not None else []
    fitting = [one for one in found if isinstance(one, SourceClass) and one.derives_from(base) and not one.abstract]
    skip = base.name if base.module.name.startswith("torch.") else ""
    return sorted({one.name for one in fitting} - {skip} | {cls.__name__ for cls in _loaded(base)})


def resolve(base: SourceClass, name: str) -> tuple[str, SourceClass] | None:
    """Import path and class of a short name or import path; None where there is no such class."""
    package = package_of(base)
    if package is not None and name in package.imported:
        found = package.find(name)
        if isinstance(found, SourceClass) and found.derives_from(base):
            return f"{package.name}.{name}", found
    for cls in _loaded(base):
        if cls.__name__ == name:
            return f"{cls.__module__}.{cls.__qualname__}", LoadedClass(cls)
    found = named(name) if "." in name else None
    return None if found is None else (name, found)


def _loaded(base: SourceClass) -> list[type]:
    """Classes from outside the base's package that this process has loaded already, in tests and notebooks."""
    cls = getattr(sys.modules.get(base.module.name), base.name, None)
    package, below, open_ = base.module.name.split(".")[0], [], [cls] if inspect.isclass(cls) else []
    while open_:
        children = open_.pop().__subclasses__()
        open_ += children
        below += [child for child in children if child.__module__.split(".")[0] != package]
    return [child for child in below if not inspect.isabstract(child) and not child.__name__.startswith("_")]
