"""The options of a federated run: signatures are the schema, YAML files and the command line fill them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")

import torch
from jsonargparse import ArgumentParser, Namespace
from torch import nn
from torch.optim import Optimizer

from fedrs_lightning.cli.messages import plain_message, refusal
from fedrs_lightning.cli.mistakes import Schema, config_files, first_mistake
from fedrs_lightning.data import FederatedDataset
from fedrs_lightning.engine.engine import Schedule
from fedrs_lightning.engine.strategy import FabricSettings
from fedrs_lightning.errors import ConfigError, FedrsError
from fedrs_lightning.methods import FedAvg
from fedrs_lightning.results.tables import HARMLESS_KEYS, flatten, is_place
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks import Task

Resume = Literal["auto", "never"]
LoggerName = Literal["csv", "tensorboard", "wandb"]


@dataclass
class RunSettings:
    """Where a run lies and who is told about it. Nothing here changes a result.

    Args:
        root: folder of all runs.
        name: experiment, a folder below `root`; null takes the name of the first config file.
        dir: run directory itself, instead of `root/name/method-seed-hash`.
        label: name of the run in tables and plots; null takes the method's.
        loggers: `csv` (metrics.csv), `tensorboard`, `wandb`; the round log and the result are always written.
        wandb_project: project of Weights & Biases.
        wandb_offline: keep Weights & Biases on this machine; `wandb sync` uploads later.
        keep_checkpoints: how many of the newest checkpoints stay, at least 2.
        plot: draw `curves.png` at the end.
    """

    root: Path = Path("runs")
    name: str | None = None
    dir: Path | None = None
    label: str | None = None
    loggers: list[LoggerName] = field(default_factory=lambda: ["csv"])
    wandb_project: str = "fedrs-lightning"
    wandb_offline: bool = True
    keep_checkpoints: int = 2
    plot: bool = True

    def __post_init__(self) -> None:
        if self.keep_checkpoints < 2:
            raise ConfigError(
                f"run.keep_checkpoints={self.keep_checkpoints} must be at least 2, so that a damaged one has a "
                "predecessor"
            )


NEUTRAL = ("run", "resume", *HARMLESS_KEYS)
"""Keys that may differ between a run and its continuation, and the folders of data: they say where it runs, not what it
computes.
"""


TITLES = {"data": "data set and its clients", "task": "network, loss and metrics", "method": "federated method"}

LINKED = {"data.num_classes": "task.init_args.num_classes", "data.in_channels": "task.init_args.in_channels"}
"""What the data set knows and the task takes over."""


def schema() -> Schema:
    """What `build_parser` accepts, for messages about mistakes."""
    return Schema(
        plain={"seed": int, "resume": Resume},
        groups={"data": FederatedDataset, "schedule": Schedule, "fabric": FabricSettings, "run": RunSettings},
        classes={"task": Task, "method": FedAvg, "optimizer": Optimizer},
        defaults={"optimizer": torch.optim.Adam},
        given={"task": frozenset(target.rpartition(".")[2] for target in LINKED.values())},
    )


def build_parser() -> ArgumentParser:
    """Parser of `fedrs fit`."""
    parser = ArgumentParser(
        prog="fedrs fit",
        usage="fedrs fit --config FILE [--config FILE ...] [options]",
        description=(
            "Run one federated experiment, or continue it. Several --config files merge, later ones win; options "
            "override them. "
            "--method FedAvg takes another method, --method.power 1.0 sets one of its arguments, --method.help FedMAD "
            "lists them."
        ),
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--config", action="config", help="YAML file; repeatable")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run; every random stream derives from it")
    parser.add_argument(
        "--resume",
        type=Resume,
        default="auto",
        help="auto continues an interrupted run, never refuses a run directory that exists",
    )
    parser.add_class_arguments(FederatedDataset, "data", sub_configs=True)
    parser.add_subclass_arguments(Task, "task", required=True, help="class and its arguments, or a YAML file with both")
    parser.add_subclass_arguments(
        FedAvg, "method", required=True, help="class and its arguments, or a YAML file with both"
    )
    parser.add_class_arguments(Schedule, "schedule", sub_configs=True)
    parser.add_argument(
        "--optimizer",
        type=Callable[[Iterable[nn.Parameter]], Optimizer],
        default={"class_path": "torch.optim.Adam", "init_args": {"lr": 0.001}},
        help="optimiser of local training, made anew for each client and round",
    )
    parser.add_class_arguments(FabricSettings, "fabric", sub_configs=True)
    parser.add_class_arguments(RunSettings, "run", sub_configs=True)
    for name, group in (parser.groups or {}).items():
        group.title = TITLES.get(name, group.title)  # instead of the base class's docstring
    for source, target in LINKED.items():
        parser.link_arguments(source, target, apply_on="instantiate")
    return parser


def parse(arguments: Sequence[str]) -> tuple[ArgumentParser, Namespace]:
    """Parse the command line.

    Raises:
        ConfigError: one line with the key, what is wrong, and the nearest valid name.
        SystemExit: after --help and --print_config.
    """
    config_files(arguments)  # the parser neither names the line of a mistake nor minds a key that stands twice
    parser = build_parser()
    try:
        config = parser.parse_args(list(arguments))
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        raise ConfigError(first_mistake(schema(), arguments) or plain_message(error)) from None
    for option in LINKED.values():
        if config.get(option) is not None:
            raise ConfigError(f"{option} follows from the data set; leave it out")
    return parser, config


def instantiate(parser: ArgumentParser, config: Namespace) -> Any:
    """The objects that a configuration names: `data`, `task` (with its optimiser), `method`, `schedule`, `fabric`,
    `run`.

    Raises:
        ConfigError: a constructor refuses its arguments, or the method the task.
    """
    try:
        with rng_stream(config.seed, "model"):
            parts = parser.instantiate(config)
    except (FedrsError, TypeError, ValueError) as error:
        raise ConfigError(refusal(error)) from None
    parts.task.optimizer = parts.optimizer
    if "class_names" in config.task.init_args and config.task.init_args.class_names is None:
        parts.task.class_names = tuple(parts.data.class_names)  # no link: only some tasks take names
        parts.task.unscored = tuple(getattr(parts.data, "unscored", ()))
    parts.method.check(parts.task)
    try:
        parts.task.configure_optimizers()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer: {' '.join(str(error).split())}") from None
    return parts


def experiment_name(config: Namespace) -> str:
    """Name of the experiment: `run.name`, else the name of the first config file."""
    if config.run.name:
        return str(config.run.name)
    return Path(str(config.config[0])).stem if config.config else "run"


def resolved(parser: ArgumentParser, config: Namespace) -> dict[str, Any]:
    """The complete configuration as plain values, enough to run it again."""
    plain: dict[str, Any] = json.loads(parser.dump(config, format="json", skip_none=False, skip_validation=True))
    plain.pop("config", None)
    plain["run"] |= {"name": experiment_name(config), "dir": None}
    return plain


def config_hash(plain: dict[str, Any]) -> str:
    """SHA-256 over everything that decides a number."""
    return hashlib.sha256(json.dumps(deciding(plain), sort_keys=True).encode()).hexdigest()


def deciding(plain: dict[str, Any]) -> dict[str, Any]:
    """Flat `key: value` of a resolved configuration without the neutral keys."""
    return {key: value for key, value in flatten(plain).items() if value != {} and not _neutral(key)}


def _neutral(key: str) -> bool:
    return is_place(key) or any(key == name or key.startswith(f"{name}.") for name in NEUTRAL)
