"""Local training of one client: install its parameters, train, pack its upload, keep its memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
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
    seconds: float


class LocalTraining:
    """Trains one client after the other on this rank, with one task and one loader for all.

    Args:
        fabric: launched.
        method: whose hooks are called.
        composer: of this rank's task.
        loader: of the training data.
        memory: of all clients.
        buffers: room for packed uploads.
        seed: the run's seed.
        local_epochs: passes over a client's data per round.
        on_step: called after every optimiser step.
    """

    def __init__(
        self,
        fabric: L.Fabric,
        method: FedAvg,
        composer: Composer,
        loader: ClientLoader,
        memory: ClientMemory,
        buffers: UploadBuffers,
        seed: int,
        local_epochs: int,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.fabric, self.method, self.composer, self.loader = fabric, method, composer, loader
        self.memory, self.buffers, self.on_step = memory, buffers, on_step
        self.seed, self.local_epochs = seed, local_epochs
        self.task = composer.task
        self.sent = method.sent_keys(self.task)
        self.parameters = tuple(key for key in trainable(self.task) if key in self.sent)

    def train(self, client: Client, round: int, server: State) -> LocalResult:
        """Train `client` for one round.

        Args:
            client: whose turn it is.
            round: current round, from 1.
            server: the server state, on the task's device.

        Raises:
            TrainingError: a loss term or a private parameter is not finite; names client, round and term.
        """
        start = time.perf_counter()
        received = self.method.download(server, client.id)
        kept = {key: tensor.to(self.fabric.device) for key, tensor in self.memory.load(client.id).items()}
        self.composer.install(received, kept)
        with rng_stream(self.seed, "local", round, client.id):
            self.task.train()
            local = self._local(
                client, round, received, {key: value for key, value in kept.items() if not key.startswith("model/")}
            )
            self.method.on_local_start(local)
            terms = [
                self._step(local, batch)
                for epoch in range(self.local_epochs)
                for batch in self.loader.epoch(client.id, round, epoch)
            ]
            self.method.on_local_end(local)
            extra = self.method.upload(local)
        log = self._mean_terms(terms, client, round) | local.log
        keep = self.composer.private_state() | local.memory
        damaged = first_not_finite(keep)
        if damaged is not None:
            raise TrainingError(
                f"client {client.id}, round {round}: {damaged} is not finite after local training; lower the learning "
                "rate"
            )
        state = self.buffers.put(select(self.composer.live, self.sent) | extra, f"client-{client.id}")
        saved = self.memory.save(client.id, round, keep)
        upload = Upload(client, state, local.num_steps, log, self.parameters)
        return LocalResult(upload, saved, nbytes(received), time.perf_counter() - start)

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
        self.on_step()
        return terms

    def _mean_terms(self, terms: list[dict[str, Tensor]], client: Client, round: int) -> dict[str, float]:
        """Mean of each loss term over the steps, in float64, with a single read from the device."""
        names = list(terms[0])
        table = torch.stack(
            [torch.stack([step[name].float() for name in names]) for step in terms]
        ).double()  # [M, terms]
        means = dict(zip(names, table.mean(0).tolist(), strict=True))
        for column, (name, mean) in enumerate(means.items()):
            if not math.isfinite(mean):
                step = int((~torch.isfinite(table[:, column])).nonzero()[0, 0]) + 1
                raise TrainingError(
                    f"client {client.id}, round {round}: loss term '{name}' is {mean} (first at local step {step} of "
                    f"{len(terms)}); "
                    "lower the learning rate (optimizer.init_args.lr) or look at this client's data"
                )
        return {f"loss/{name}": mean for name, mean in means.items()}
