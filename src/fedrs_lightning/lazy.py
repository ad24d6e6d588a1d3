"""Packages that load a module when somebody first asks for one of its names, so that a run loads what it uses alone."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a file outside functions and classes, also those below `if TYPE_CHECKING` and `try`."""
    for node in body:
        if isinstance(node, (ast.If, ast.Try)):
            yield from top_level(node.body)
        else:
            yield node


def imported(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Module and name there of each name that a file imports."""
    found: dict[str, tuple[str, str]] = {}
    for node in top_level(tree.body):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    return found


def lazy_imports(package: str, file: str) -> Callable[[str], Any]:
    """`__getattr__` of a package whose `__init__` imports its names below `if TYPE_CHECKING`: the list stands once.

    Args:
        package: its `__name__`.
        file: its `__file__`.
    """
    names = imported(ast.parse(Path(file).read_text(encoding="utf-8")))

    def load(name: str) -> Any:
        if name not in names or name.startswith("_"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, own = names[name]
        return getattr(importlib.import_module(module), own)

    return load
