"""Processes that share a group but no gradients: each rank trains whole clients on its own.

`FabricSettings` turns a few plain options into a launched Fabric. The process group is gloo on every device: what
crosses ranks are packed bytes in host memory (exchange.py), never gradients.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import lightning as L
import torch
from lightning.fabric.strategies import DDPStrategy
from lightning.fabric.strategies.launchers import subprocess_script
from lightning.fabric.strategies.strategy import Strategy
from torch import nn

from fedrs_lightning.data.batches.loading import Loading
from fedrs_lightning.data.packs.residence import BUDGET, GIB, Residence
from fedrs_lightning.engine.ranks import RANK_ZERO, RankWatch, telling
from fedrs_lightning.errors import ConfigError

StartMethod = Literal["popen", "fork", "spawn", "forkserver"]


@dataclass
class FabricSettings:
    """Where and how a run computes.

    Args:
        accelerator: `cpu`, `gpu`, or `auto` (a GPU where there is one).
        devices: ranks on a machine; `auto` takes what SLURM or torchrun started, else every GPU, or on a CPU one rank
            per core, never more than clients in a round.
        num_nodes: machines; `auto` takes what SLURM or torchrun started, else one.
        precision: `32-true` or `bf16-mixed`. float16 is not offered: its loss scale would travel from client to client.
        threads_per_rank: CPU threads of a rank. Unset: one on CPUs (faster than one rank with several, and the bits of
            a sum depend on the number of threads), cores divided by ranks beside GPUs.
        channels_last: lay images out channel by channel per pixel; faster convolutions on most hardware.
        compile: compile the network with torch.compile, once for all clients.
        deterministic: ask torch for deterministic kernels: `true` refuses an operation that has none, `warn` only says
            so.
        upload_memory: bytes that a rank may hold in uploads of one round, in GiB; more are spooled to the run
            directory.
        residence: where packed images lie: `map` leaves them in the mapped file, `ram` copies them into each rank's
            memory, `device` onto its device. What is too large for `residence_budget` stays mapped.
        residence_budget: GiB of packed images that a rank may hold. Of a mapped file it gives back what it touched
            beyond.
        prefetch: batches that a thread of each rank loads ahead; `auto` takes 2 on GPUs and 0 on CPUs.
    """

    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int | Literal["auto"] = "auto"
    num_nodes: int | Literal["auto"] = "auto"
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    threads_per_rank: int | None = None
    channels_last: bool = False
    compile: bool = False
    deterministic: Literal["true", "warn", "false"] = "warn"
    upload_memory: float = 1.0
    residence: Residence = "map"
    residence_budget: float = BUDGET
    prefetch: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if not self.residence_budget > 0:
            raise ConfigError(f"fabric.residence_budget={self.residence_budget} must be above 0 GiB")
        if self.prefetch != "auto" and self.prefetch < 0:
            raise ConfigError(f"fabric.prefetch={self.prefetch} must be 0 (off) or a number of batches, or auto")

    @property
    def loading(self) -> Loading:
        """How batches come from the packs."""
        return Loading(self.residence, self.residence_budget * GIB, None if self.prefetch == "auto" else self.prefetch)

    def resolve(self, num_clients: int) -> tuple[str, int, int]:
        """Accelerator, ranks on this machine and threads per rank.

        Raises:
            ConfigError: an accelerator or number of devices that is not there.
        """
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        accelerator = ("gpu" if gpus else "cpu") if self.accelerator == "auto" else self.accelerator
        if accelerator == "gpu" and not gpus:
            raise ConfigError(
                "fabric.accelerator=gpu, but torch sees no CUDA device; use --fabric.accelerator cpu or install a "
                "CUDA build of torch"
            )
        cores = available_cores()
        if self.devices == "auto":
            started = _from_environment("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE")
            devices = started or min(gpus if accelerator == "gpu" else cores, max(1, num_clients))
        else:
            devices = self.devices
        if devices < 1:
            raise ConfigError(f"fabric.devices={devices} must be at least 1, or auto")
        if accelerator == "gpu" and devices > gpus:
            raise ConfigError(f"fabric.devices={devices}, but torch sees {gpus} CUDA device(s); lower it or use auto")
        threads = (
            (1 if accelerator == "cpu" else max(1, cores // devices))
            if self.threads_per_rank is None
            else self.threads_per_rank
        )
        if threads < 1:
            raise ConfigError(f"fabric.threads_per_rank={threads} must be at least 1")
        return accelerator, devices, threads

    def build(
        self,
        num_clients: int,
        *,
        callbacks: Sequence[Any] = (),
        loggers: Sequence[Any] = (),
        start_method: StartMethod = "popen",
    ) -> L.Fabric:
        """A Fabric ready for `launch()`, which starts the ranks, or joins them under torchrun and SLURM.

        Raises:
            ConfigError: see `resolve`.
        """
        accelerator, devices, threads = self.resolve(num_clients)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)
        if self.deterministic != "false" and accelerator == "gpu":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=self.deterministic == "warn")
            # Fresh memory would otherwise be filled with NaN on every allocation: costly, and nothing here reads it.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
            torch.backends.cudnn.benchmark = False
        nodes = (
            (_from_environment("GROUP_WORLD_SIZE", "SLURM_NNODES") or 1) if self.num_nodes == "auto" else self.num_nodes
        )
        strategy: Strategy | str = "auto" if devices * nodes == 1 else ClientParallelStrategy(start_method=start_method)
        return L.Fabric(
            accelerator=accelerator,
            devices=devices,
            num_nodes=nodes,
            precision=self.precision,
            strategy=strategy,
            callbacks=list(callbacks),
            loggers=list(loggers),
        )


def started_externally() -> bool:
    """Whether torchrun or srun started this process. A shell inside a SLURM allocation has no step."""
    return "TORCHELASTIC_RUN_ID" in os.environ or "SLURM_STEP_ID" in os.environ


def _from_environment(torchrun: str, slurm: str) -> int | None:
    """How many an external launcher started, or None."""
    name = torchrun if "TORCHELASTIC_RUN_ID" in os.environ else slurm
    return int(os.environ[name]) if started_externally() and name in os.environ else None


def available_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


class ClientParallelStrategy(DDPStrategy):
    """DDP's launcher and process group without gradient synchronisation, so that ranks may take unequal numbers of
    steps.

    Args:
        timeout: how long a collective waits; a rank with short clients waits for one with long ones.
        start_method: `popen` runs the command again for each further rank; `fork` suits tests.
    """

    def __init__(
        self, timeout: timedelta = timedelta(hours=6), start_method: StartMethod = "popen", **kwargs: Any
    ) -> None:
        super().__init__(process_group_backend="gloo", timeout=timeout, start_method=start_method, **kwargs)

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
            with telling(self.watch):
                return function(*args, **kwargs)
        except BaseException:
            if self.watch is not None:
                self.watch.end()
            raise
