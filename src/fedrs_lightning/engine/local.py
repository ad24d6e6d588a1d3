"""Local training of one client: install its parameters, train, pack its upload, keep its memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import lightning as L
import torch
from torch import Tensor

from fedrs_lightning.data.batches.loading import ClientLoader
from fedrs_lightning.engine.memory import ClientMemory
from fedrs_lightning.engine.ranks.exchange import UploadBuffers
from fedrs_lightning.errors import TrainingError
from fedrs_lightning.methods.base import FedAvg
from fedrs_lightning.nn.trainable import trainable
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.states import first_not_finite, nbytes, select
from fedrs_lightning.tasks.base import Task
from fedrs_lightning.types import Batch, Client, Local, State, Upload


class Composer:
    """Puts a client's model together inside the one task of this rank.

    Install order: initial private values < the client's memory < what the server sent.

    Args:
        task: adapted by the method, on its device.
        private: `model/*` keys that stay on clients.
    """

    def __init__(self, task: Task, private: set[str]) -> None:
        self.task, self.private = task, private
        self.live = task.model_state()
        self.initial = {key: tensor.clone() for key, tensor in self.live.items() if key in private}

    @torch.no_grad()
    def install(self, received: State, memory: State) -> None:
        """Copy values into the live parameters and buffers, in place."""
        sources = self.initial | {key: value for key, value in memory.items() if key in self.live}
        sources |= {key: value for key, value in received.items() if key in self.live}
        targets = [self.live[key] for key in sources]
        torch._foreach_copy_(targets, list(sources.values()))

    def private_state(self) -> State:
        """The live private entries."""
        return select(self.live, self.private)


@dataclass
class LocalResult:
    """What local training leaves on this rank."""

    upload: Upload
    keeps_memory: bool
    bytes_down: int


@dataclass
class LocalTraining:
    """Trains one client after the other on this rank, with one task and one loader for all.

    Attributes:
        fabric: launched.
        method: whose hooks are called.
        composer: of this rank's task.
        loader: of all data.
        memory: of all clients.
        buffers: room for packed uploads.
        seed: the run's seed.
        local_epochs: passes over a client's data per round.
        on_step: called after every optimiser step.
    """

    fabric: L.Fabric
    method: FedAvg
    composer: Composer
    loader: ClientLoader
    memory: ClientMemory
    buffers: UploadBuffers
    seed: int
    local_epochs: int
    on_step: Sequence[Callable[[], None]] = ()

    def __post_init__(self) -> None:
        self.task = self.composer.task
        self.sent = self.method.sent_keys(self.task)
        self.parameters = tuple(key for key in trainable(self.task) if key in self.sent)

    def compose(self, client_id: int, server: State) -> tuple[State, State]:
        """Install a client's model; returns what the server sent, on the device, and what the client kept, anywhere."""
        received = self.method.download(server, client_id)
        kept = self.memory.load(client_id)
        model = {key: tensor.to(self.fabric.device) for key, tensor in kept.items() if key.startswith("model/")}
        self.composer.install(received, model)
        return received, kept

    def train(self, client: Client, round: int, server: State) -> LocalResult:
        """Train `client` for one round, from 1, from the server state on the task's device.

        Raises:
            TrainingError: a loss term or a private parameter is not finite; names client, round and term.
        """
        received, kept = self.compose(client.id, server)
        with rng_stream(self.seed, "local", round, client.id):
            self.task.train()
            own = {key: value for key, value in kept.items() if not key.startswith("model/")}
            memory = {key: value.to(self.fabric.device, copy=True) for key, value in own.items()}  # methods may write
            local = self._local(client, round, received, memory)
            self.method.on_local_start(local)
            epochs = (self.loader.epoch(client.id, round, epoch) for epoch in range(self.local_epochs))
            terms = [self._step(local, batch) for batches in epochs for batch in batches]
            self.method.on_local_end(local)
            extra = self.method.upload(local)
        log = self._mean_terms(terms, client, round) | local.log
        keep = self.composer.private_state() | local.memory
        damaged = first_not_finite(keep)
        if damaged is not None:
            problem = f"{damaged} is not finite after local training; lower the learning rate"
            raise TrainingError(f"client {client.id}, round {round}: {problem}")
        state = self.buffers.put(select(self.composer.live, self.sent) | extra, f"client-{client.id}")
        saved = self.memory.save(client.id, round, keep)
        return LocalResult(Upload(client, state, local.num_steps, log, self.parameters), saved, nbytes(received))

    def _local(self, client: Client, round: int, received: State, memory: State) -> Local:
        def batches(augment: bool) -> Iterator[Batch]:
            return self.loader.epoch(client.id, round, 0, augment)

        return Local(
            client=client,
            round=round,
            task=self.task,
            received=received,
            memory=memory,
            num_steps=self.loader.num_steps(client.id, self.local_epochs),
            optimizer=self.task.configure_optimizers(),
            fabric=self.fabric,
            batches=batches,
        )

    def _step(self, local: Local, batch: Batch) -> dict[str, Tensor]:
        terms = self.method.local_step(local, batch)
        for notice in self.on_step:
            notice()
        return terms

    def _mean_terms(self, terms: list[dict[str, Tensor]], client: Client, round: int) -> dict[str, float]:
        """Mean of each loss term over the steps, in float64, with a single read from the device."""
        names = list(terms[0])
        rows = [torch.stack([step[name].float() for name in names]) for step in terms]
        table = torch.stack(rows).double()  # [M, terms]
        means = dict(zip(names, table.mean(0).tolist(), strict=True))
        for column, (name, mean) in enumerate(means.items()):
            if not math.isfinite(mean):
                step = int((~torch.isfinite(table[:, column])).nonzero()[0, 0]) + 1
                where = f"(first at local step {step} of {len(terms)})"
                remedy = "lower the learning rate (optimizer.init_args.lr) or look at this client's data"
                who = f"client {client.id}, round {round}"
                raise TrainingError(f"{who}: loss term '{name}' is {mean} {where}; {remedy}")
        return {f"loss/{name}": mean for name, mean in means.items()}
