"""Local training of one client: install its parameters, train, pack its upload, keep its memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import lightning as L
import numpy as np
import torch
from torch import Tensor

from fedrs_lightning.data.batches.loading import ClientLoader
from fedrs_lightning.engine.memory import ClientMemory
from fedrs_lightning.engine.ranks.uploads import REMEDY
from fedrs_lightning.errors import ConfigError, TrainingError
from fedrs_lightning.flat import FlatLayout, FlatState, placed
from fedrs_lightning.methods.base import FedAvg
from fedrs_lightning.nn.surgery import MODEL, network_of
from fedrs_lightning.nn.trainable import trainable
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.states import first_not_finite, nbytes, select
from fedrs_lightning.tasks.base import Task
from fedrs_lightning.types import Batch, Client, Local, State, Upload


class Composer:
    """Puts a client's model together inside the one task of this rank.

    Install order: initial private values < the client's memory < what the server sent.

    The network's parameters and buffers become views of one run of memory: first what is uploaded, then what is only
    received, then what stays on the client. So each of these is copied, checked and added as one piece.

    Args:
        task: adapted by the method, on its device.
        private: `model/*` keys that stay on clients.
        sent: `model/*` keys that clients upload; all that are not private where none are given.

    Attributes:
        size: bytes of the network.
        live: the network's entries by key.
        shared: layout of what travels; that of `sent` is its beginning.
        sent: the live entries that are uploaded.
        served: the server's flat state that clients receive; others are copied entry by entry.
    """

    def __init__(self, task: Task, private: set[str], sent: set[str] | None = None) -> None:
        self.task, self.private = task, private
        tensors = {MODEL + name: tensor for name, tensor in network_of(task).state_dict(keep_vars=True).items()}
        up = set(tensors) - private if sent is None else sent
        groups = (up, set(tensors) - private - up, private)
        _require_one_home(tensors, groups)
        self._tensors = tensors
        self._up = FlatLayout.of(select(tensors, groups[0]))
        self.shared = self._up + FlatLayout.of(select(tensors, groups[1]), self._up.size)
        self._private = FlatLayout.of(select(tensors, groups[2]), self.shared.size)
        self.size, self._start = self._private.size, self.shared.size
        device = next((tensor.device for tensor in tensors.values()), None)
        self._seats: dict[int, _Seat] = {}
        self._settle(self._seat(torch.zeros(self.size, dtype=torch.uint8, device=device)))
        self._initial = self._data[self._start :].clone()
        self.served: FlatState | None = None

    def move(self, data: Tensor) -> None:
        """Let the network live in other memory, uint8 [size]. Its values are undefined until the next `install`, except
        after the first move there, which takes them along.
        """
        if data.data_ptr() not in self._seats:
            self._seats[data.data_ptr()] = self._seat(data)
        self._settle(self._seats[data.data_ptr()])

    @torch.no_grad()
    def _seat(self, data: Tensor) -> _Seat:
        flat = FlatState(self.shared + self._private, data)
        for key, tensor in self._tensors.items():
            flat[key].copy_(tensor)
        live = {key: flat[key] for key in self._tensors}
        return _Seat(data, live, FlatState(self._up, data[: self._up.size]), FlatState(self._private, data))

    def _settle(self, seat: _Seat) -> None:
        for key, tensor in self._tensors.items():
            tensor.data = seat.live[key]
        self._data, self._own, self.live, self.sent = seat.data, seat.private, seat.live, seat.sent

    @torch.no_grad()
    def install(self, received: State, memory: State) -> None:
        """Copy values into the live parameters and buffers, in place."""
        sources = {key: value for key, value in memory.items() if key in self.private}
        if not self.private <= set(sources):
            self._data[self._start :].copy_(self._initial)
        served = self.served
        if served is not None and all(received.get(key) is value for key, value in served.items()):
            _copy(self._data[: self._start], served.data)
            received = {key: value for key, value in received.items() if key not in served}
        sources |= {key: value for key, value in received.items() if key in self.live}
        if sources:
            torch._foreach_copy_([self.live[key] for key in sources], list(sources.values()))

    def private_state(self) -> State:
        """The live private entries."""
        return dict(self._own)

    def first_not_finite(self, *more: State) -> str | None:
        """Name of the first private entry, or of `more`, with a NaN or infinity, or None."""
        return first_not_finite(self._own, *more)


def _copy(target: Tensor, source: Tensor) -> None:
    """Bytes to bytes; in host memory by NumPy, whose copy of a large run is the faster one."""
    if target.device.type == source.device.type == "cpu":
        np.copyto(target.numpy(), source.numpy())
    else:
        target.copy_(source)


@dataclass
class _Seat:
    """Views of one piece of memory in which the network may live."""

    data: Tensor
    live: State
    sent: FlatState
    private: FlatState


def _require_one_home(tensors: State, groups: Sequence[set[str]]) -> None:
    """Refuse one tensor under two names of which only one travels."""
    homes: dict[int, tuple[str, int]] = {}
    for key, tensor in tensors.items():
        home = next(number for number, keys in enumerate(groups) if key in keys)
        first, other = homes.setdefault(id(tensor), (key, home))
        if other != home:
            raise ConfigError(f"{first} and {key} are one tensor of the network, so both travel or neither does")


@dataclass
class LocalResult:
    """What local training leaves on this rank.

    Attributes:
        upload: its state is the live network's, good until the next client trains.
        own: the method's own entries, which go up beside it.
        keeps_memory: whether a memory version was written.
        bytes_down: what the client received.
    """

    upload: Upload
    own: State
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
        seed: the run's seed.
        local_epochs: passes over a client's data per round.
        on_step: called after every optimiser step.
    """

    fabric: L.Fabric
    method: FedAvg
    composer: Composer
    loader: ClientLoader
    memory: ClientMemory
    seed: int
    local_epochs: int
    on_step: Sequence[Callable[[], None]] = ()

    def __post_init__(self) -> None:
        self.task = self.composer.task
        self.parameters = tuple(key for key in trainable(self.task) if key in self.composer.sent)

    def compose(self, client_id: int, server: State) -> tuple[State, State]:
        """Install a client's model; returns what the server sent, on the device, and what the client kept, anywhere."""
        received = self.method.download(server, client_id)
        kept = self.memory.load(client_id)
        model = {key: tensor for key, tensor in kept.items() if key.startswith(MODEL)}
        self.composer.install(received, placed(model, self.fabric.device))
        return received, kept

    def train(self, client: Client, round: int, server: State) -> LocalResult:
        """Train `client` for one round, from 1, from the server state on the task's device.

        Raises:
            TrainingError: a loss term or a private parameter is not finite; names client, round and term.
        """
        received, kept = self.compose(client.id, server)
        with rng_stream(self.seed, "local", round, client.id):
            self.task.train()
            own = {key: value for key, value in kept.items() if not key.startswith(MODEL)}
            there = placed(own, self.fabric.device).items()
            memory = {key: value.clone() if value is own[key] else value for key, value in there}  # methods may write
            local = self._local(client, round, received, memory)
            self.method.on_local_start(local)
            epochs = (self.loader.epoch(client.id, round, epoch) for epoch in range(self.local_epochs))
            terms = [self._step(local, batch) for batches in epochs for batch in batches]
            self.method.on_local_end(local)
            extra = self.method.upload(local)
        log = self._mean_terms(terms, client, round) | local.log
        damaged = self.composer.first_not_finite(local.memory)
        if damaged is not None:
            problem = f"{damaged} is not finite after local training; lower the learning rate"
            raise TrainingError(f"client {client.id}, round {round}: {problem}")
        saved = self.memory.save(client.id, round, self.composer.private_state() | local.memory)
        upload = Upload(client, self.composer.sent, local.num_steps, log, self.parameters)
        return LocalResult(upload, extra, saved, nbytes(received))

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
                who = f"client {client.id}, round {round}"
                raise TrainingError(f"{who}: loss term '{name}' is {mean} {where}; {REMEDY}")
        return {f"loss/{name}": mean for name, mean in means.items()}
