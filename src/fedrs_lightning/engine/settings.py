"""What a run is told about its rounds and about the machine. Plain values, checked without loading torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedrs_lightning.errors import ConfigError

if TYPE_CHECKING:
    from fedrs_lightning.data.batches.loading import Loading
    from fedrs_lightning.engine.ranks.placement import Placement

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
        devices: GPUs of a machine that compute, or on CPUs ranks; `auto` takes what srun or torchrun started, else
            every GPU, or on a CPU one rank per core, never more than clients in a round.
        ranks_per_device: ranks that share a GPU, for many small clients; on CPUs it multiplies the ranks.
        num_nodes: machines; `auto` takes what srun or torchrun started, else one.
        join_timeout: seconds that ranks wait for each other at the start.
        precision: `32-true` or `bf16-mixed`. float16 is not offered: its loss scale would travel from client to client.
        matmul_precision: of float32 on GPUs, with torch's words, for matrix products and convolutions: `highest` is
            full float32, `high` TF32 (ten bits of mantissa), `medium` bfloat16 in products and TF32 in convolutions.
            CPUs always compute in full float32.
        threads_per_rank: CPU threads of a rank. Unset: one on CPUs (faster than one rank with several, and the bits of
            a sum depend on the number of threads), beside GPUs the cores of its task, or of the machine divided by
            ranks.
        channels_last: lay images out channel by channel per pixel; faster convolutions on most hardware.
        compile: compile the network with torch.compile, once for all clients.
        deterministic: ask torch for deterministic kernels on GPUs: `true` refuses an operation that has none, `warn`
            only says so, `false` lets cuDNN choose the fastest kernel by trying. CPUs are deterministic anyway.
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
    ranks_per_device: int = 1
    num_nodes: int | Literal["auto"] = "auto"
    join_timeout: float = 600.0
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    threads_per_rank: int | None = None
    channels_last: bool = False
    compile: bool = False
    deterministic: Literal["true", "warn", "false"] = "true"
    upload_memory: float = 1.0
    memory_cache: float = 1.0
    write_behind: bool = True
    residence: Literal["map", "ram", "device"] = "map"
    residence_budget: float = 4.0
    prefetch: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if not self.memory_cache >= 0:
            raise ConfigError(f"fabric.memory_cache={self.memory_cache} must be 0 (off) or a number of GiB")
        for name in ("devices", "num_nodes", "ranks_per_device", "threads_per_rank"):
            value = getattr(self, name)
            if value not in ("auto", None) and value < 1:
                otherwise = ", or auto" if name in ("devices", "num_nodes") else ""
                raise ConfigError(f"fabric.{name}={value} must be at least 1{otherwise}")
        if not self.join_timeout > 0:
            raise ConfigError(f"fabric.join_timeout={self.join_timeout} must be above 0 s")
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

    def resolve(self, num_clients: int) -> Placement:
        """Accelerator, ranks and GPUs of this machine, and threads per rank.

        Raises:
            ConfigError: see `ranks.placement.place`.
        """
        import torch

        from fedrs_lightning.engine.ranks.launch import this_launch
        from fedrs_lightning.engine.ranks.placement import Machine, place
        from fedrs_lightning.results.environment import available_cores

        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        machine = Machine.of(os.environ, gpus, available_cores())
        return place(self, this_launch(), machine, num_clients, "NODE_RANK" in os.environ)
