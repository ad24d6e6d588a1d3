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

GROUND = {"types", "flat", "states", "seeding", "errors", "files", "progress", "lazy"}
BELOW = {
    "types": set(),
    "errors": set(),
    "seeding": set(),
    "flat": set(),
    "states": {"errors", "flat", "types"},
    "files": {"errors"},
    "progress": set(),
    "lazy": set(),
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


ROOMS = ("rasters", "packs", "transforms", "check", "archives", "clients", "batches")
"""Of `data`, from the ground up; packs, transforms and checks lie side by side."""

SIDE_BY_SIDE = {"packs", "transforms", "check"}


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


def imports_at_load(path):
    """Full names of the modules that a module loads when it is loaded itself: not for types, nor inside functions."""
    found = set()

    def walk(nodes):
        for node in nodes:
            typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            if typing or isinstance(node, (ast.FunctionDef, ast.Lambda)):
                continue
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                found.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
            walk(ast.iter_child_nodes(node))

    walk(ast.parse(path.read_text(encoding="utf-8")).body)
    return {name.removeprefix(f"{PACKAGE}.") for name in found if name.startswith(f"{PACKAGE}.")}


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


@pytest.mark.parametrize("path", sorted((SOURCE / "data").rglob("*/*.py")), ids=name_of)
def test_rooms_of_data_load_downwards(path):
    own = name_of(path).split(".")[1]
    for name in imports_at_load(path):
        room = name.split(".")[1] if name.startswith("data.") else None
        if own not in ROOMS or room not in ROOMS or room == own:
            continue
        below = ROOMS.index(room) < ROOMS.index(own) and not {own, room} <= SIDE_BY_SIDE
        assert below, f"{path}: data.{own} may not load {name}"


def test_no_circle_of_modules():
    modules = {name_of(path): path for path in MODULES}
    loads = {name: imports_at_load(path) & modules.keys() - {name} for name, path in modules.items()}
    while True:
        free = {name for name, below in loads.items() if not below}
        if not free:
            break
        loads = {name: below - free for name, below in loads.items() if name not in free}
    assert not loads, f"modules that load each other: {sorted(loads)}"


def test_the_engine_names_no_method_and_no_data_set():
    concrete = set()
    for folder in ("methods", "data/archives"):
        for path in (SOURCE / folder).rglob("*.py"):
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
