"""Processes that share a group but no gradients: each rank trains whole clients on its own.

`build_fabric` turns a few plain options into a Fabric to launch. The process group is gloo on every device: what
crosses ranks are packed bytes in host memory (exchange.py), never gradients.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

import lightning as L
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment
from lightning.fabric.strategies import DDPStrategy
from lightning.fabric.strategies.launchers import subprocess_script
from lightning.fabric.strategies.strategy import Strategy
from torch import nn

from fedrs_lightning.engine.ranks.launch import Launch, this_launch
from fedrs_lightning.engine.ranks.placement import shared_devices
from fedrs_lightning.engine.ranks.rendezvous import meet
from fedrs_lightning.engine.ranks.watch import RANK_ZERO, RankWatch, naming_the_dead_rank
from fedrs_lightning.engine.settings import FabricSettings

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
    """A Fabric ready for `launch()`, which starts the ranks, or joins them under torchrun and srun.

    Raises:
        ConfigError: see `FabricSettings.resolve`.
    """
    placement, launch = settings.resolve(num_clients), this_launch()
    os.environ["OMP_NUM_THREADS"] = str(placement.threads)
    torch.set_num_threads(placement.threads)
    if placement.accelerator == "gpu":
        set_kernels(settings)
    if launch is None and int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) > placement.num_nodes:
        nodes = f"Slurm gave {os.environ['SLURM_JOB_NUM_NODES']} machines to this job"
        warnings.warn(f"{nodes}, and without srun all ranks are on this one", stacklevel=2)
    environment: ClusterEnvironment = LightningEnvironment() if launch is None else Launched(launch)
    # Choosing it here: Lightning takes any allocation of Slurm for srun, and an interactive step too.
    machine: Any = {"accelerator": placement.accelerator, "num_nodes": placement.num_nodes, "plugins": [environment]}
    strategy: Strategy | str = "auto"
    if placement.ranks * placement.num_nodes > 1 or (launch is not None and launch.world_size > 1):
        kind = "cuda" if placement.accelerator == "gpu" else "cpu"
        devices = [torch.device(kind, index) if kind == "cuda" else torch.device(kind) for index in placement.devices]
        strategy = ClientParallelStrategy(
            start_method,
            parallel_devices=devices,
            join_timeout=settings.join_timeout,
            ranks_per_device=settings.ranks_per_device,
        )
    # With a strategy its devices count; several ranks may share one, of which Fabric's own option knows nothing.
    machine |= {"devices": 1, "strategy": strategy}
    return L.Fabric(**machine, precision=settings.precision, callbacks=list(callbacks), loggers=list(loggers))


def set_kernels(settings: FabricSettings) -> None:
    """Tell torch how exact and how repeatable its kernels on GPUs have to be."""
    torch.set_float32_matmul_precision(settings.matmul_precision)
    torch.backends.cudnn.allow_tf32 = settings.matmul_precision != "highest"
    torch.backends.cudnn.benchmark = settings.deterministic == "false"
    if settings.deterministic != "false":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=settings.deterministic == "warn")
        # Fresh memory would otherwise be filled with NaN on every allocation: costly, and nothing here reads it.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


class Launched(ClusterEnvironment):
    """Ranks that srun or torchrun has started. Machines may have unequal numbers of them."""

    def __init__(self, launch: Launch) -> None:
        super().__init__()
        self.launch = launch

    @property
    def creates_processes_externally(self) -> bool:
        """They are there already."""
        return True

    @property
    def main_address(self) -> str:
        """Where rank 0 listens."""
        return self.launch.address

    @property
    def main_port(self) -> int:
        """Where rank 0 listens."""
        return self.launch.port

    @staticmethod
    def detect() -> bool:
        """Whether this process was started so."""
        return this_launch() is not None

    def world_size(self) -> int:
        """Number of ranks."""
        return self.launch.world_size

    def set_world_size(self, size: int) -> None:
        """The launcher has decided."""

    def global_rank(self) -> int:
        """Number of this rank among all."""
        return self.launch.rank

    def set_global_rank(self, rank: int) -> None:
        """The launcher has decided."""

    def local_rank(self) -> int:
        """Number of this rank among those of its machine."""
        return self.launch.local_rank

    def node_rank(self) -> int:
        """Number of this machine."""
        return self.launch.node


class ClientParallelStrategy(DDPStrategy):
    """DDP's launcher and process group without gradient synchronisation: ranks may take unequal numbers of steps.

    Args:
        start_method: `popen` runs the command again for each further rank; `fork` suits tests.
        join_timeout: seconds that ranks wait for each other at the start.
        ranks_per_device: most ranks on a GPU.
    """

    def __init__(
        self,
        start_method: StartMethod = "popen",
        *,
        join_timeout: float = 600.0,
        ranks_per_device: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(process_group_backend="gloo", timeout=PATIENCE, start_method=start_method, **kwargs)
        self.join_timeout, self.ranks_per_device = join_timeout, ranks_per_device

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        """Leave the module as it is."""
        return module

    def setup_environment(self) -> None:
        """Join the other ranks, then take a device: which one may depend on what the others see.

        Raises:
            RunError: not all ranks joined in time.
            LaunchError: more ranks than the GPUs of a machine may hold.
        """
        self._setup_distributed()
        if self.root_device.type == "cuda" and isinstance(self.cluster_environment, Launched):
            seen: list[Any] = [None] * self.world_size
            dist.all_gather_object(seen, (self.node_rank, visible_gpus()))
            assert self.parallel_devices is not None
            index = shared_devices(seen, self.ranks_per_device)[self.global_rank]
            self.parallel_devices[self.local_rank] = torch.device("cuda", index)
        self.accelerator.setup_device(self.root_device)  # type: ignore[union-attr]

    def _setup_distributed(self) -> None:
        self._set_world_ranks()
        environment = self.cluster_environment
        assert environment is not None
        if dist.is_initialized():
            return
        if self.num_nodes == 1 and "lo" in (name for _, name in socket.if_nameindex()):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # nothing listens for other machines
        attempt = None
        if isinstance(environment, Launched) and environment.launch.agent:
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        where = environment.main_address, environment.main_port
        store = meet(*where, self.global_rank, self.world_size, self.join_timeout, attempt)
        dist.init_process_group(
            "gloo", store=store, rank=self.global_rank, world_size=self.world_size, timeout=PATIENCE
        )

    def _configure_launcher(self) -> None:
        if self._start_method == "popen":
            assert self.cluster_environment is not None
            self._launcher = _WatchedLauncher(self.cluster_environment, self.num_processes, self.num_nodes)
        else:
            super()._configure_launcher()


def visible_gpus() -> list[str]:
    """Identities of the GPUs that this process sees, the same in every process of a machine."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if named.startswith("MIG-"):  # a part of a GPU, and torch gives the identity of the whole
        return named.split(",")[:1]
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]


class _WatchedLauncher(subprocess_script._SubprocessScriptLauncher):
    """Starts the further ranks under a `RankWatch`, and the number of threads stays what was asked for."""

    watch: RankWatch | None = None

    def launch(self, function: Any, *args: Any, **kwargs: Any) -> Any:
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
