"""From a command line to a run, and from a run to the objects that its configuration names.

The configuration is read from signatures, without torch. jsonargparse then checks every value against the classes
themselves and makes the objects; it also writes the help.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedrs_lightning.cli.config.experiment import ADAM, LINKED, Experiment, RunSettings
from fedrs_lightning.cli.config.reading import options, read
from fedrs_lightning.cli.config.signatures import named
from fedrs_lightning.cli.config.values import one_line, yaml_text
from fedrs_lightning.engine.settings import FabricSettings, Schedule
from fedrs_lightning.errors import ConfigError, FedrsError
from fedrs_lightning.results.run import Run

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from fedrs_lightning.tasks import Task

TITLES = {"data": "data set and its clients", "task": "network, loss and metrics", "method": "federated method"}
DESCRIPTION = """Run one federated experiment, or continue it. Several --config files merge, later ones win; options
override them. --method FedAvg takes another method, --method.power 1.0 sets one of its arguments, --method.help FedMAD
lists them."""
BOTH = "class and its arguments, or a YAML file with both"


def configure(arguments: Sequence[str]) -> Run:
    """The run that a command line asks for. Torch is loaded for help alone.

    Raises:
        ConfigError: one line with file and line or option, the key, what is wrong, and the nearest valid name.
        SystemExit: after --help and --print_config.
    """
    given = options(arguments)
    names = [name or "" for name, _ in given]
    prints = [value for name, value in given if name == "print_config"]
    schema = named(f"{Experiment.__module__}.{Experiment.__name__}")
    assert schema is not None
    helps = any(name in ("help", "h", "-h") or name.endswith(".help") for name in names)
    config = read(schema, arguments, LINKED, partial=bool(prints) or helps)
    if helps or any(prints):
        _hand_over(arguments)
    if prints:
        print(yaml_text(config), end="")
        raise SystemExit(0)
    RunSettings(**config["run"])  # they say themselves which numbers cannot be
    Schedule(**config["schedule"])
    FabricSettings(**config["fabric"])
    files = [value for name, value in given if name == "config"]
    path = config["run"]["dir"]
    config["run"] |= {"name": config["run"]["name"] or (Path(str(files[0])).stem if files else "run"), "dir": None}
    return Run(config, None if path is None else Path(path))


def _hand_over(arguments: Sequence[str]) -> None:
    """Let jsonargparse print what is asked for, and leave."""
    from fedrs_lightning import data, methods, tasks

    for package in (data, methods, tasks):  # help lists the classes that are loaded
        for name in package.__all__:
            getattr(package, name)
    try:
        build_parser().parse_args(list(arguments))
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        raise ConfigError(one_line(error)) from None


def build(run: Run) -> Experiment:
    """The objects that a configuration names, the task with its optimiser.

    Raises:
        ConfigError: a constructor refuses its arguments, or the method the task.
    """
    from fedrs_lightning.seeding import rng_stream

    parser = build_parser()
    try:
        parsed = parser.parse_object(copy.deepcopy(run.config))  # it changes what it is given
        with rng_stream(run.seed, "model"):
            made = parser.instantiate(parsed)
    except (FedrsError, TypeError, ValueError, SystemExit) as error:
        raise ConfigError(refusal(error)) from None
    built = Experiment(**{name: made[name] for name in run.config})
    built.task.optimizer = built.optimizer
    if "class_names" in parsed.task.init_args and parsed.task.init_args.class_names is None:
        task: Any = built.task  # no link: only some tasks take names
        task.class_names, task.unscored = tuple(built.data.class_names), tuple(getattr(built.data, "unscored", ()))
    built.method.check(built.task)
    _check_optimiser(built.task)
    return built


def _check_optimiser(task: Task) -> None:
    """Refuse an optimiser that the constructor takes and that cannot take a step of local training."""
    try:
        optimiser = task.configure_optimizers()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer: {' '.join(str(error).split())}") from None
    name = type(optimiser).__name__
    closure = inspect.signature(optimiser.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ConfigError(f"optimizer: {name} takes several steps a batch, which local training does not; take another")
    if name == "SparseAdam":
        raise ConfigError("optimizer: SparseAdam needs sparse gradients, which no network here has; take Adam")


def build_parser() -> ArgumentParser:
    """jsonargparse's parser of `fedrs fit`."""
    from jsonargparse import ArgumentParser
    from torch import nn
    from torch.optim import Optimizer

    from fedrs_lightning.data import FederatedDataset
    from fedrs_lightning.methods import FedAvg
    from fedrs_lightning.tasks import Task

    usage = "fedrs fit --config FILE [--config FILE ...] [options]"
    strict: Any = {"exit_on_error": False, "allow_abbrev": False}
    parser = ArgumentParser(prog="fedrs fit", usage=usage, description=DESCRIPTION, **strict)
    parser.add_argument("--config", action="config", help="YAML file; repeatable")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run; every random stream derives from it")
    resume = "auto continues an interrupted run, never refuses a run directory that exists"
    parser.add_argument("--resume", type=Literal["auto", "never"], default="auto", help=resume)
    parser.add_class_arguments(FederatedDataset, "data", sub_configs=True)
    parser.add_subclass_arguments(Task, "task", required=True, help=BOTH)
    parser.add_subclass_arguments(FedAvg, "method", required=True, help=BOTH)
    parser.add_class_arguments(Schedule, "schedule", sub_configs=True)
    local = "optimiser of local training, made anew for each client and round"
    parser.add_argument("--optimizer", type=Callable[[Iterable[nn.Parameter]], Optimizer], default=ADAM, help=local)
    parser.add_class_arguments(FabricSettings, "fabric", sub_configs=True)
    parser.add_class_arguments(RunSettings, "run", sub_configs=True)
    for name, group in (parser.groups or {}).items():
        group.title = TITLES.get(name, group.title)  # instead of the base class's docstring
    for target, source in LINKED.items():
        parser.link_arguments(source, target, apply_on="instantiate")
    return parser


def refusal(error: BaseException) -> str:
    """One line that says why a constructor refused its arguments, behind whatever the parser made of it."""
    found = re.findall(r"class_path='([^']+)'", str(error))
    inner: BaseException = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    text = one_line(inner)
    name = found[0].rpartition(".")[2] if found else ""
    return text if not name or text.startswith(name) else f"{name}: {text}"
