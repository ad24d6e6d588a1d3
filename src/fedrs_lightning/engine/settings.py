"""What a run is told about its rounds and about the machine. Plain values, checked without loading torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedrs_lightning.errors import ConfigError

if TYPE_CHECKING:
    from fedrs_lightning.data.batches.loading import Loading

ALWAYS_EVALUATED = 4
"""Last rounds that are evaluated whatever `evaluate_every` says: their mean stands beside the last value."""


@dataclass
class Schedule:
    """How long, with whom, in what batches.

    Args:
        num_rounds: communication rounds.
        local_epochs: passes over a client's data per round.
        clients_per_round: size of the cohort; null takes every client in every round.
        batch_size: of local training.
        min_last_batch: smallest last batch; a smaller remainder is spread over the earlier batches, since batch
            normalisation fails on one sample and suffers on a few. Null means a quarter of the batch size, at least 4;
            0 switches the rule off.
        eval_batch_size: of evaluation; results do not depend on it beyond rounding of the logits.
        evaluate_every: rounds between evaluations; the last four rounds are always evaluated.
    """

    num_rounds: int
    local_epochs: int = 1
    clients_per_round: int | None = None
    batch_size: int = 32
    min_last_batch: int | None = None
    eval_batch_size: int = 256
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        for name in ("num_rounds", "local_epochs", "batch_size", "eval_batch_size", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"schedule.{name}={getattr(self, name)} must be at least 1")

    def evaluates(self, round: int) -> bool:
        """Whether `round` is evaluated."""
        return round % self.evaluate_every == 0 or round > self.num_rounds - ALWAYS_EVALUATED


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
        memory_cache: what clients keep between rounds and a rank holds at hand beside the files, in GiB; on a GPU in
            its memory.
        write_behind: write client memories, logs and checkpoints while the next round trains; `false` waits for them.
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
    memory_cache: float = 1.0
    write_behind: bool = True
    residence: Literal["map", "ram", "device"] = "map"
    residence_budget: float = 4.0
    prefetch: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if not self.memory_cache >= 0:
            raise ConfigError(f"fabric.memory_cache={self.memory_cache} must be 0 (off) or a number of GiB")
        if not self.residence_budget > 0:
            raise ConfigError(f"fabric.residence_budget={self.residence_budget} must be above 0 GiB")
        if self.prefetch != "auto" and self.prefetch < 0:
            raise ConfigError(f"fabric.prefetch={self.prefetch} must be 0 (off) or a number of batches, or auto")

    @property
    def loading(self) -> Loading:
        """How batches come from the packs."""
        from fedrs_lightning.data.batches.loading import Loading

        ahead = None if self.prefetch == "auto" else self.prefetch
        return Loading(self.residence, self.residence_budget * 2**30, ahead)

    def resolve(self, num_clients: int) -> tuple[str, int, int]:
        """Accelerator, ranks on this machine and threads per rank.

        Raises:
            ConfigError: an accelerator or number of devices that is not there.
        """
        import torch

        from fedrs_lightning.results.environment import available_cores

        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        accelerator = ("gpu" if gpus else "cpu") if self.accelerator == "auto" else self.accelerator
        if accelerator == "gpu" and not gpus:
            problem = "fabric.accelerator=gpu, but torch sees no CUDA device"
            raise ConfigError(f"{problem}; use --fabric.accelerator cpu or install a CUDA build of torch")
        cores = available_cores()
        if self.devices == "auto":
            started = count_from_environment("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE")
            devices = started or min(gpus if accelerator == "gpu" else cores, max(1, num_clients))
        else:
            devices = self.devices
        if devices < 1:
            raise ConfigError(f"fabric.devices={devices} must be at least 1, or auto")
        if accelerator == "gpu" and devices > gpus:
            raise ConfigError(f"fabric.devices={devices}, but torch sees {gpus} CUDA device(s); lower it or use auto")
        threads = self.threads_per_rank
        if threads is None:
            threads = 1 if accelerator == "cpu" else max(1, cores // devices)
        if threads < 1:
            raise ConfigError(f"fabric.threads_per_rank={threads} must be at least 1")
        return accelerator, devices, threads


def started_externally() -> bool:
    """Whether torchrun or srun started this process. A shell inside a SLURM allocation has no step."""
    return "TORCHELASTIC_RUN_ID" in os.environ or "SLURM_STEP_ID" in os.environ


def count_from_environment(torchrun: str, slurm: str) -> int | None:
    """How many an external launcher started, or None."""
    name = torchrun if "TORCHELASTIC_RUN_ID" in os.environ else slurm
    return int(os.environ[name]) if started_externally() and name in os.environ else None
