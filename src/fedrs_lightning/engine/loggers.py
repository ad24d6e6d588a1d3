"""Loggers of a run, given to Fabric. The round is their step, and the round log is what they must agree with.

Each one can `catch_up` with the finished rounds of a run that continues, which a crash may have kept from it.
"""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import lightning.fabric.loggers as fabric_loggers
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import WandbLogger

from fedrs_lightning.errors import ConfigError

Rounds = Sequence[tuple[int, Mapping[str, float]]]
"""Number and values of finished rounds, ascending."""


class RoundLogger(Protocol):
    """What a run asks of its loggers."""

    def catch_up(self, rounds: Rounds) -> None:
        """Agree with the rounds that are finished, before the next is logged. Rank 0 calls it, also before round 1."""

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Log one round."""

    def finalize(self, status: str) -> None:
        """Write what is left and close."""


class RoundTable(fabric_loggers.CSVLogger):
    """`metrics.csv` in the run directory: one row a round."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, name="", version="", flush_logs_every_n_steps=1)

    @property
    def log_dir(self) -> str:
        """The run directory itself."""
        return self.root_dir

    def catch_up(self, rounds: Rounds) -> None:
        """Write the file anew."""
        with warnings.catch_warnings():
            # Lightning warns of an old file, which it then deletes: that is what is wanted.
            warnings.filterwarnings("ignore", r"Experiment logs directory .* exists and is not empty")
            _ = self.experiment
        for number, values in rounds:
            self.log_metrics(dict(values), step=number)


class RoundBoard(fabric_loggers.TensorBoardLogger):
    """TensorBoard events in `tensorboard/`."""

    def __init__(self, path: Path) -> None:
        # A purge tells readers to forget what an earlier life of the run wrote: its last rounds may be missing.
        super().__init__(path, name="", version="tensorboard", purge_step=1)

    def catch_up(self, rounds: Rounds) -> None:
        """Log all rounds again in place of what was written before."""
        for number, values in rounds:
            self.log_metrics(values, step=number)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log one round; it is on the disk when this returns."""
        super().log_metrics(metrics, step)
        self.experiment.flush()


class RoundCharts(WandbLogger):
    """A Weights & Biases run in `wandb/`; steps and x-axis are the round.

    Args:
        path: run directory.
        run_id: of the Weights & Biases run.
        offline: keep everything on this machine.
        **options: of `wandb.init`.
    """

    def __init__(self, path: Path, run_id: str, offline: bool, **options: Any) -> None:
        super().__init__(name=path.name, save_dir=path, offline=offline, id=run_id, resume="allow", **options)
        self._mode: Literal["offline"] | None = "offline" if offline else None

    def catch_up(self, rounds: Rounds) -> None:
        """Log all rounds that are not there yet.

        Online, the server says which it has. Offline, every life of a run writes a folder of its own and none reads
        those before: each is given all rounds, so that the newest is whole whatever a kill took from the others.

        Raises:
            ConfigError: the run cannot be opened: no login, no network.
        """
        import wandb

        Path(str(self.save_dir)).mkdir(parents=True, exist_ok=True)
        # Not the parent's way to open a run, which counts steps on its own. What is printed is no business of a chart.
        settings = wandb.Settings(silent=True, console="off")
        options = {name: value for name, value in self._wandb_init.items() if name != "anonymous"}
        try:
            self._experiment = self._opened(partial(wandb.init, **options, mode=self._mode, settings=settings))
        except wandb.errors.Error as error:
            reason = " ".join(str(error).split()).rstrip(".")
            remedy = "log in, or keep it on this machine with --run.wandb_offline true"
            raise ConfigError(f"Weights & Biases: {reason}; {remedy}") from None
        self._experiment.define_metric("round")
        self._experiment.define_metric("*", step_metric="round")
        for number, values in rounds:
            if number >= self._experiment.starting_step:
                self.log_metrics(values, step=number)

    def _opened(self, init: Callable[[], Any]) -> Any:
        """What `init` opens. A service that an earlier life shared with the process that started both may still hold
        the run's id: this life gets one of its own.
        """
        import wandb
        from wandb.sdk.mailbox.mailbox_handle import ServerResponseError

        try:
            return init()
        except ServerResponseError:
            wandb.teardown()
            os.environ.pop("WANDB_SERVICE", None)
        try:
            return init()
        except ServerResponseError as error:
            raise ConfigError(f"Weights & Biases: {error}") from None

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log one round."""
        self.experiment.log({**metrics, "round": step}, step=step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Close the run."""
        if self._experiment is not None:
            self.experiment.finish(exit_code=0 if status == "success" else 1)


def build_loggers(
    names: Sequence[str], path: Path, known: Mapping[str, str], offline: bool, **options: Any
) -> tuple[list[RoundLogger], dict[str, str]]:
    """Make the loggers of a run; nothing is written before `catch_up`.

    Args:
        names: `csv`, `tensorboard`, `wandb`.
        path: run directory.
        known: ids from the checkpoint that the run continues from.
        offline: keep Weights & Biases on this machine.
        **options: of `wandb.init`: `project`, `group` and `config`, which is shown beside the run.

    Returns:
        The loggers, and the ids that the checkpoint must keep.

    Raises:
        ConfigError: Weights & Biases is asked for and not installed.
    """
    loggers: list[RoundLogger] = []
    ids: dict[str, str] = {}
    if "csv" in names:
        loggers.append(RoundTable(path))
    if "tensorboard" in names:
        loggers.append(RoundBoard(path))
    if "wandb" in names:
        ids["wandb"] = known.get("wandb") or secrets.token_hex(4)
        try:
            loggers.append(RoundCharts(path, ids["wandb"], offline, **options))
        except ModuleNotFoundError as error:
            problem = f"run.loggers names wandb, but it cannot be imported ({error})"
            raise ConfigError(f"{problem}; pip install wandb, or leave it out") from None
    return loggers, ids
