"""Whatever lies in a run directory, reading it ends in a line or in a table, never in a traceback."""

import contextlib
import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrs_lightning.cli.run_directory import check_run
from fedrs_lightning.errors import FedrsError
from fedrs_lightning.results.plots import plot_curves, weighted_runs
from fedrs_lightning.results.run import Run
from fedrs_lightning.results.store import RunStore
from fedrs_lightning.results.tables import collect, tabulate

RUNS = Path(__file__).parents[1] / "results" / "conftest.py"
FILES = ("config.yaml", "environment.json", "rounds.jsonl", "clients.jsonl", "result.json")
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=4), inside, max_size=3),
    max_leaves=6,
)
NASTY = st.sampled_from(["[" * 5000, "{" * 5000, "&a [*a]", "9" * 5000, "NaN", "\0", "- 1", "run: false", "{[1]: 2}"])


class Files(dict):
    """Content by name; reports of failures do not print it."""

    __repr__ = object.__repr__


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Files of a complete run."""
    spec = importlib.util.spec_from_file_location("runs", RUNS)
    runs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runs)
    store = runs.write_run(tmp_path_factory.mktemp("runs"), method="FedMAD", num_rounds=3)
    return Files({name: (store.path / name).read_bytes() for name in FILES})


def put(value, keys, new):
    """Change a value somewhere inside."""
    inside = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not keys or not inside:
        return new
    key = inside[keys[0] % len(inside)]
    value[key] = put(value[key], keys[1:], new)
    return value


@st.composite
def damages(draw):
    """A file, and a function that damages its bytes."""
    kind = draw(st.sampled_from(["cut", "flip", "value", "text", "gone", "lines"]))
    place, keys, new = draw(st.integers(0, 10**4)), draw(st.lists(st.integers(0, 9), max_size=4)), draw(PLAIN)
    text = draw(NASTY | st.text(max_size=30))

    def damage(name, data):
        if kind == "cut":
            return data[: place % (len(data) + 1)]
        if kind == "flip":
            return (
                bytes([*data[: place % len(data)], data[place % len(data)] ^ 1 << place % 8])
                + data[place % len(data) + 1 :]
            )
        if kind == "text":
            return text.encode("utf-8", "surrogatepass")
        if kind == "gone":
            return None
        lines = data.splitlines(keepends=True)
        line = place % len(lines)
        if kind == "lines":
            return b"".join(lines[:line] + lines[line:][::-1] + lines[:1])
        if name.endswith(".jsonl"):
            lines[line] = json.dumps(put(json.loads(lines[line]), keys, new)).encode() + b"\n"
            return b"".join(lines)
        if name.endswith(".json"):
            return json.dumps(put(json.loads(data), keys, new)).encode()
        return json.dumps(put({"run": {"root": "x"}, "method": {"class_path": "a.B"}, "seed": 0}, keys, new)).encode()

    return draw(st.sampled_from(FILES)), damage


def asked_for():
    """A configuration that the run directory may belong to."""
    run = {"root": "runs", "name": "x", "label": None}
    return {"seed": 0, "method": {"class_path": "FedMAD"}, "schedule": {"num_rounds": 3}, "run": run, "resume": "auto"}


READERS = {
    "table": lambda path: tabulate(collect([RunStore(path)])),
    "plot": lambda path: plot_curves([RunStore(path)], path / "curves.svg", None),
    "weights": lambda path: weighted_runs([RunStore(path)]),
    "resume": lambda path: check_run(Run(asked_for(), path)),
    "environment": lambda path: RunStore(path).write_environment({"host": "other"}),
    "truncate": lambda path: RunStore(path).truncate(2),
    "append": lambda path: RunStore(path).append_round({"round": 4}),
}


@settings(settings.get_profile("fuzz"))
@given(st.lists(damages(), min_size=1, max_size=2, unique_by=lambda one: one[0]), st.sampled_from(sorted(READERS)))
def test_a_damaged_run_directory_is_a_line_or_a_result(whole, tmp_path_factory, damaged, reader):
    path = tmp_path_factory.mktemp("run")
    files = dict(whole)
    for name, damage in damaged:
        if files[name]:
            files[name] = damage(name, files[name])
    for name, data in files.items():
        if data is not None:
            (path / name).write_bytes(data)
    with contextlib.suppress(FedrsError):  # a line that says what is wrong
        READERS[reader](path)
