"""Imports run one way (docs/architecture.md, layers): read from the syntax trees, also those inside functions and for
types.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = "fedrs_lightning"
SOURCE = Path(__file__).resolve().parents[1] / "src" / PACKAGE
MODULES = sorted(SOURCE.rglob("*.py"))

GROUND = {"types", "states", "seeding", "errors", "files"}
BELOW = {
    "types": set(),
    "errors": set(),
    "seeding": set(),
    "states": {"types"},
    "files": {"errors"},
    "nn": GROUND,
    "data": GROUND,
    "synth": GROUND | {"data"},
    "models": GROUND | {"nn"},
    "tasks": GROUND | {"nn", "models"},
    "methods": GROUND | {"nn", "models", "tasks"},
    "results": GROUND,
    "engine": GROUND | {"nn", "data", "tasks", "methods", "results"},
    "cli": GROUND | {"nn", "data", "synth", "models", "tasks", "methods", "engine", "results"},
}
"""What a part of the package may import beside itself."""

ENGINE_SEES = {"tasks": {"tasks.base"}, "methods": {"methods.base"}}
"""The engine knows the interfaces of tasks and methods, and none that implements them."""


def name_of(path):
    parts = list(path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path):
    """Dotted names below the package that a module imports, with their lines."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are written in full"
            # `from package.data import EuroSAT` may name a module or something in it; both are seen.
            names = [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [(name.removeprefix(f"{PACKAGE}."), node.lineno) for name in names if name.startswith(f"{PACKAGE}.")]
    return found


def part(name):
    return name.split(".")[0]


def test_every_part_has_its_place():
    parts = {part(name_of(path)) for path in MODULES} - {""}
    assert parts == set(BELOW)


@pytest.mark.parametrize("path", [path for path in MODULES if name_of(path)], ids=name_of)
def test_imports_run_downwards(path):
    own = part(name_of(path))
    allowed = BELOW[own] | {own}
    for name, line in imports(path):
        if name == "__version__":
            continue
        assert part(name) in allowed, f"{path}:{line}: {own} may not import {name}"
        seen = ENGINE_SEES.get(part(name)) if own == "engine" else None
        if seen is not None and name != part(name):
            assert any(name == module or name.startswith(f"{module}.") for module in seen), (
                f"{path}:{line}: engine may not import {name}"
            )


def test_the_engine_names_no_method_and_no_data_set():
    concrete = set()
    for folder in ("methods", "data/datasets"):
        for path in (SOURCE / folder).glob("*.py"):
            if path.stem not in ("base", "__init__"):
                tree = ast.parse(path.read_text(encoding="utf-8"))
                concrete |= {
                    node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
                }
    assert {"FedBN", "FedMAD", "Centralised", "LocalOnly", "EuroSAT"} <= concrete
    for path in (SOURCE / "engine").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = {getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "name", "")}
            # Text that is compared or looked up, such as type(method).__name__ == "FedBN".
            names |= {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()
            assert not names & concrete, f"{path}:{node.lineno}: names {names & concrete}"


@pytest.mark.parametrize(
    "module",
    [PACKAGE, f"{PACKAGE}.cli.main", f"{PACKAGE}.cli.process", f"{PACKAGE}.results.store", f"{PACKAGE}.cli.table"],
)
def test_light_modules_load_no_torch(module):
    script = (
        f"import sys, {module}; sys.exit(' '.join({{'torch', 'lightning', 'jsonargparse'}} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
