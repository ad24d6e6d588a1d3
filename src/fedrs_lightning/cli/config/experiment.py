"""What a federated run is made of. The fields and signatures here are the options of `fedrs fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedrs_lightning.engine.settings import FabricSettings, Schedule
from fedrs_lightning.errors import ConfigError

if TYPE_CHECKING:
    from torch.nn import Parameter
    from torch.optim import Optimizer

    from fedrs_lightning.data import FederatedDataset
    from fedrs_lightning.methods import FedAvg
    from fedrs_lightning.tasks import Task


ADAM = {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.001}}
"""The optimiser where none is named, as a configuration spells it."""


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
    loggers: list[Literal["csv", "tensorboard", "wandb"]] = field(default_factory=lambda: ["csv"])
    wandb_project: str = "fedrs-lightning"
    wandb_offline: bool = True
    keep_checkpoints: int = 2
    plot: bool = True

    def __post_init__(self) -> None:
        if self.keep_checkpoints < 2:
            why = "so that a damaged one has a predecessor"
            raise ConfigError(f"run.keep_checkpoints={self.keep_checkpoints} must be at least 2, {why}")
        if self.name is not None and not _stays_below(self.name):
            raise ConfigError(f"run.name='{self.name}' must be the name of a folder below run.root")


def _stays_below(name: str) -> bool:
    parts = Path(name).parts
    return bool(parts) and ".." not in parts and not Path(name).is_absolute()


@dataclass
class Experiment:
    """Everything that a run is given; its fields are the top-level keys of a configuration.

    Args:
        data: data set and its clients: class and its arguments, or a YAML file with both.
        task: network, loss and metrics: class and its arguments, or a YAML file with both.
        method: federated method: class and its arguments, or a YAML file with both.
        schedule: how long, with whom, in what batches.
        optimizer: of local training, made anew for each client and round.
        fabric: where and how the run computes.
        run: where the run lies and who is told about it.
        seed: of the run; every random stream derives from it.
        resume: auto continues an interrupted run, never refuses a run directory that exists.
    """

    data: FederatedDataset
    task: Task
    method: FedAvg
    schedule: Schedule
    optimizer: Callable[[Iterable[Parameter]], Optimizer] = field(default_factory=lambda: ADAM)  # type: ignore[assignment]
    fabric: FabricSettings = field(default_factory=FabricSettings)
    run: RunSettings = field(default_factory=RunSettings)
    seed: int = 0
    resume: Literal["auto", "never"] = "auto"


LINKED = {"task.init_args.num_classes": "data.num_classes", "task.init_args.in_channels": "data.in_channels"}
"""What the task takes over from the data set."""
