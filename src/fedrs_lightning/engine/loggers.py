"""Loggers of a run, given to Fabric; the round is their step."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.fabric.loggers import CSVLogger, Logger, TensorBoardLogger

from fedrs_lightning.errors import ConfigError


def build_loggers(
    names: Sequence[str], path: Path, known: Mapping[str, str], *, project: str, offline: bool, config: dict[str, Any], group: str
) -> tuple[list[Logger], dict[str, str]]:
    """Make the loggers of a run.

    Args:
        names: `csv`, `tensorboard`, `wandb`.
        path: run directory.
        known: ids from the checkpoint that the run continues from.
        project: Weights & Biases project.
        offline: keep Weights & Biases on this machine.
        config: resolved configuration, shown beside a Weights & Biases run.
        group: name that Weights & Biases groups runs by.

    Returns:
        The loggers, and the ids that the checkpoint must keep.

    Raises:
        ConfigError: Weights & Biases cannot be used as asked for.
    """
    loggers: list[Logger] = []
    ids: dict[str, str] = {}
    if "csv" in names:
        loggers.append(CSVLogger(path, name="", version="csv", flush_logs_every_n_steps=1))
    if "tensorboard" in names:
        loggers.append(TensorBoardLogger(path, name="", version="tensorboard"))
    if "wandb" in names:
        ids["wandb"] = known.get("wandb") or secrets.token_hex(4)
        loggers.append(_wandb(path, ids["wandb"], project, offline, config, group))
    return loggers, ids


def starts_anew(logger: Logger) -> bool:
    """Whether a logger begins its file from nothing when a run continues."""
    return isinstance(logger, CSVLogger)


def _wandb(path: Path, run_id: str, project: str, offline: bool, config: dict[str, Any], group: str) -> Any:
    from lightning.pytorch.loggers import WandbLogger

    path.mkdir(parents=True, exist_ok=True)
    try:
        return WandbLogger(
            name=path.name, save_dir=path, offline=offline, id=run_id, project=project, resume="allow", group=group, config=config
        )
    except (ModuleNotFoundError, ImportError) as error:
        raise ConfigError(f"run.loggers names wandb, but it cannot be imported ({error}); pip install wandb, or leave it out") from None
