"""Processes that share a group but no gradients: each rank trains whole clients on its own.

`build_fabric` turns a few plain options into a Fabric to launch. The process group is gloo on every device: what
crosses ranks are packed bytes in host memory (exchange.py), never gradients.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

import lightning as L
import torch
from lightning.fabric.strategies import DDPStrategy
from lightning.fabric.strategies.launchers import subprocess_script
from lightning.fabric.strategies.strategy import Strategy
from torch import nn

from fedrs_lightning.engine.ranks.watch import RANK_ZERO, RankWatch, naming_the_dead_rank
from fedrs_lightning.engine.settings import FabricSettings, count_from_environment

PATIENCE = timedelta(hours=6)  # of a collective: a rank with short clients waits for one with long ones
StartMethod = Literal["popen", "fork", "spawn", "forkserver"]


def build_fabric(
    settings: FabricSettings,
    num_clients: int,
    *,
    callbacks: Sequence[Any] = (),
    loggers: Sequence[Any] = (),
    start_method: StartMethod = "popen",
) -> L.Fabric:
    """A Fabric ready for `launch()`, which starts the ranks, or joins them under torchrun and SLURM.

    Raises:
        ConfigError: see `FabricSettings.resolve`.
    """
    accelerator, devices, threads = settings.resolve(num_clients)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    if settings.deterministic != "false" and accelerator == "gpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=settings.deterministic == "warn")
        # Fresh memory would otherwise be filled with NaN on every allocation: costly, and nothing here reads it.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = False
    started = count_from_environment("GROUP_WORLD_SIZE", "SLURM_NNODES") or 1
    nodes = started if settings.num_nodes == "auto" else settings.num_nodes
    strategy: Strategy | str = "auto" if devices * nodes == 1 else ClientParallelStrategy(start_method=start_method)
    machine: Any = {"accelerator": accelerator, "devices": devices, "num_nodes": nodes, "strategy": strategy}
    return L.Fabric(**machine, precision=settings.precision, callbacks=list(callbacks), loggers=list(loggers))


class ClientParallelStrategy(DDPStrategy):
    """DDP's launcher and process group without gradient synchronisation: ranks may take unequal numbers of steps.

    Args:
        start_method: `popen` runs the command again for each further rank; `fork` suits tests.
    """

    def __init__(self, start_method: StartMethod = "popen", **kwargs: Any) -> None:
        super().__init__(process_group_backend="gloo", timeout=PATIENCE, start_method=start_method, **kwargs)

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        """Leave the module as it is."""
        return module

    def _configure_launcher(self) -> None:
        if self._start_method == "popen":
            assert self.cluster_environment is not None
            self._launcher = _WatchedLauncher(self.cluster_environment, self.num_processes, self.num_nodes)
        else:
            super()._configure_launcher()


class _WatchedLauncher(subprocess_script._SubprocessScriptLauncher):
    """Starts the further ranks under a `RankWatch`, and the number of threads stays what was asked for."""

    watch: RankWatch | None = None

    def launch(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally:
            os.environ[RANK_ZERO] = str(os.getpid())
            self._call_children_scripts()
            self.watch = RankWatch(self.procs)
            self.watch.begin()
        try:
            with naming_the_dead_rank(self.watch):
                return function(*args, **kwargs)
        except BaseException:
            if self.watch is not None:
                self.watch.end()
            raise
