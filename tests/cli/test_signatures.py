"""What a class takes, read from its source, is what Python says of it; and values go through in order."""

import inspect
import json
import typing
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fedrs_lightning import data, methods, tasks
from fedrs_lightning.cli.config.command_line import build_parser, configure
from fedrs_lightning.cli.config.signatures import UNKNOWN, LoadedClass, named, resolve, short_names
from fedrs_lightning.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
OURS = [
    (f"{package.__name__}.{name}", getattr(package, name))
    for package in (data, methods, tasks)
    for name in package.__all__
    if inspect.isclass(getattr(package, name)) and not name.endswith(("Source", "Federation", "Loader", "Listing"))
]
OPTIMIZERS = [
    (f"torch.optim.{name}", getattr(torch.optim, name)) for name in ("Adam", "AdamW", "SGD", "RMSprop", "LBFGS", "Muon")
]


def as_list(hint):
    """A sequence is given as a list, also where null may stand for it."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Sequence:
        return list[parts]
    return typing.Optional[as_list(parts[0])] if type(None) in parts and len(parts) == 2 else hint  # noqa: UP045


@pytest.mark.parametrize(("path", "cls"), OURS + OPTIMIZERS, ids=[path for path, _ in OURS + OPTIMIZERS])
def test_the_source_says_what_python_says(path, cls):
    found = named(path)
    assert not isinstance(found, LoadedClass)
    assert bool(found.abstract) == inspect.isabstract(cls)
    parameters = inspect.signature(cls).parameters if cls.__init__ is not object.__init__ else {}
    assert list(found.parameters) == list(parameters)
    for name, parameter in parameters.items():
        read = found.parameters[name]
        assert read.required == (parameter.default is parameter.empty)
        if read.default is not UNKNOWN and not read.required and "factory" not in repr(parameter.default):
            value = parameter.default
            assert read.default == (list(value) if isinstance(value, tuple) else value)
    if path.startswith("fedrs_lightning."):
        hints = typing.get_type_hints(cls.__init__) if parameters else {}
        for name in parameters:
            hint = found.parameters[name].hint
            if hint.cls is None and hint.type is not typing.Any:
                assert hint.type == as_list(hints[name]), name


@pytest.mark.parametrize(("package", "base"), [(data, "Archive"), (tasks, "Task"), (methods, "FedAvg")])
def test_short_names_are_the_classes_that_there_are(package, base):
    cls = getattr(package, base)
    fitting = [getattr(package, name) for name in package.__all__ if inspect.isclass(getattr(package, name))]
    expected = {one.__name__ for one in fitting if issubclass(one, cls) and not inspect.isabstract(one)}
    assert expected <= set(short_names(named(f"{package.__name__}.{base}")))


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's module, which must not be imported before it is used."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text, name="own_classes"):
        (tmp_path / f"{name}.py").write_text(text)
        return named(f"{name}.Mine")

    return write


BASE = named("fedrs_lightning.methods.FedProx")


def test_arguments_that_are_handed_on_belong_to_the_base(own):
    found = own(
        "import torch\nfrom fedrs_lightning.methods import FedProx\nclass Mine(FedProx):\n"
        "    def __init__(self, pull: float, **rest):\n        super().__init__(weighting='uniform', **rest)\n"
    )
    assert found.derives_from(BASE)
    assert found.derives_from(named("fedrs_lightning.methods.FedAvg"))
    assert list(found.parameters) == ["pull", *[name for name in BASE.parameters if name != "weighting"]]


def test_a_class_without_a_constructor_takes_what_its_base_takes(own):
    found = own("import fedrs_lightning.methods.fedprox as there\nclass Mine(there.FedProx):\n    pass\n", "own_two")
    assert list(found.parameters) == list(BASE.parameters)


def test_whatever_a_class_takes_is_left_to_it(own):
    found = own(
        "from fedrs_lightning.methods import FedAvg\nclass Mine(FedAvg):\n"
        "    def __init__(self, **options):\n        self.options = options\n",
        "own_three",
    )
    assert found.parameters is None


def test_types_are_followed_to_where_they_are_written(own, tmp_path):
    (tmp_path / "kinds.py").write_text("from typing import Literal\nKind = Literal['a', 'b']\nHALF = 2 ** -1\n")
    found = own(
        "from __future__ import annotations\nfrom pathlib import Path\nimport typing as t\nimport kinds\n"
        "from kinds import HALF, Kind as K\nfrom fedrs_lightning.data import Partition\n"
        "class Mine:\n    def __init__(self, a: K, b: 'kinds.Kind | None' = None, c: t.Optional[int] = 3, "
        "d: list[Partition] = (), e: Path = Path('x'), f=HALF, g: Partition | None = None, h: object = make()): ...\n",
        "own_four",
    )
    hints = {name: one.hint for name, one in found.parameters.items()}
    assert hints["a"].type == typing.Literal["a", "b"]
    assert hints["b"].type == typing.Literal["a", "b"] | None
    assert hints["c"].type == int | None
    assert (hints["d"].cls.name, hints["d"].many) == ("Partition", True)
    assert (hints["g"].cls.name, hints["g"].optional) == ("Partition", True)
    assert (hints["e"].type, hints["f"].type) == (Path, typing.Any)
    assert {name: one.default for name, one in found.parameters.items() if not one.required} == {
        "b": None, "c": 3, "d": [], "e": "x", "f": 0.5, "g": None, "h": UNKNOWN,
    }  # fmt: skip


def test_a_class_of_this_process_is_inspected():
    class Passing(methods.FedAvg):
        def __init__(self, strength: float, more: int = 2) -> None:
            super().__init__()

    path, found = resolve(named("fedrs_lightning.methods.FedAvg"), "Passing")
    assert path.endswith("Passing")
    assert {name: one.required for name, one in found.parameters.items()} == {"strength": True, "more": False}
    assert resolve(named("fedrs_lightning.methods.FedAvg"), "Absent") is None


EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))
MORE = [
    ("--method", "FedMAD", "--method.power", "3"),
    ("--optimizer", "torch.optim.SGD", "--optimizer.lr", "1e-2", "--optimizer.momentum", "0.9"),
    ("--optimizer", "AdamW"),
    ("--run.loggers+=wandb",),
    ("--run.name", "5", "--seed=7", "--resume=never"),
    ("--schedule.clients_per_round", "null", "--fabric.upload_memory", "2"),
    ("--method={class_path: FedMAD, init_args: {power: 1e-1}}",),
    ("--method", "FedAvg", "--method", "FedMAD", "--method.power", "2"),
]


def same_as_the_parser(*arguments):
    """jsonargparse, on the classes themselves, reads the same values."""
    parser = build_parser()
    parsed = parser.parse_args(list(arguments))
    expected = json.loads(parser.dump(parsed, format="json", skip_none=False, skip_validation=True))
    expected.pop("config", None)
    found = configure(arguments).config
    for config in (expected, found):
        config["run"] |= {"name": None, "dir": None}
    assert json.dumps(found, sort_keys=True) == json.dumps(expected, sort_keys=True)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_experiments_are_read_as_the_parser_reads_them(path):
    same_as_the_parser("--config", str(path))


@pytest.mark.parametrize("options", MORE, ids=" ".join)
def test_options_are_read_as_the_parser_reads_them(options):
    same_as_the_parser("--config", str(ROOT / "experiments" / "quickstart.yaml"), *options)


def test_a_mistake_in_a_list_of_groups_is_named(tmp_path):
    archive = "{class_path: Potsdam, init_args: {root: x, modalty: rgb}}"
    path = tmp_path / "list.yaml"
    path.write_text(f"data:\n  domains:\n  - name: a\n    num_clients: 1\n    archive: {archive}\n")
    with pytest.raises(ConfigError) as error:
        configure(["--config", str(path)])
    assert str(error.value) == (
        f"{path}:5: data.domains.0.archive: Potsdam has no option 'modalty'; did you mean 'modality'?"
    )
