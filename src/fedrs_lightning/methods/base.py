"""FedAvg, which is also the interface of every method: override the hooks where a method differs.

Federated averaging (McMahan et al., 2017, arXiv:1602.05629; docs/methods.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedrs_lightning.flat import in_same_places
from fedrs_lightning.nn.surgery import MODEL, buffer_keys
from fedrs_lightning.states import Summed, entries, flat_sum, numerators, ordered_sum, weighted_sum
from fedrs_lightning.types import Batch, Client, Local, Output, State, Upload

if TYPE_CHECKING:
    from fedrs_lightning.tasks.base import Task

Weighting = Literal["samples", "uniform"]
Buffers = Literal["mean", "keep_server", "keep_client"]


class FedAvg:
    """Weighted mean of the clients' models.

        w <- sum over participants k of p_k * theta_k,   p_k = n_k / sum_j n_j

    Hooks, in the order in which a run calls them. *Structure*, once: `check`, `adapt`, `private_keys`, `init_server`.
    *Server to client*: `download`. *Client*: `on_local_start`, `local_step` (which calls `loss` and `before_step`),
    `on_local_end`, `upload`. *Server*: `aggregate` (which calls `weights`).

    A method keeps no state in itself: what the server remembers lies in the server state, what a client remembers in
    `local.memory`. That is why runs resume, and why a client may train on any rank.

    Args:
        weighting: `samples` weights a participant by its number of training samples, `uniform` equally.
        buffers: floating buffers (batch-norm statistics): `mean` averages them with the same weights as parameters,
            `keep_server` never sends them up, `keep_client` leaves them on each client. Integer buffers keep the
            largest value (docs/methods.md).
    """

    pools_clients: bool = False
    """True trains on all clients' data as if they were one client: the centralised bound."""

    streams: bool = True
    """True where `weights` looks at nothing of an upload but its client and `aggregate` at no `model/*` entry of it.
    Then shared entries are added while others still train, and the memory of a round does not grow with the cohort.
    A method that overrides one of the two, or `average`, gets all uploads as they are unless it says so itself."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "streams" not in vars(cls) and {"weights", "aggregate", "average"} & set(vars(cls)):
            cls.streams = False

    def __init__(self, weighting: Weighting = "samples", buffers: Buffers = "mean") -> None:
        self.weighting, self.buffers = weighting, buffers

    # Structure

    def check(self, task: Task) -> None:
        """Refuse a task that the method is not defined for; asked before the data are touched.

        Raises:
            ConfigError: says what the method needs.
        """

    def adapt(self, task: Task) -> None:
        """Insert layers into `task.model`, once, before anything is trained."""

    def private_keys(self, task: Task) -> set[str]:
        """`model/*` keys that stay on the client."""
        return buffer_keys(task) if self.buffers == "keep_client" else set()

    def personal_keys(self, task: Task) -> set[str]:
        """Private keys on which predictions depend. Where there are none, all clients share one model."""
        return self.private_keys(task)

    def sent_keys(self, task: Task) -> set[str]:
        """`model/*` keys that a client uploads: all shared ones, less the buffers under `keep_server`."""
        shared = set(task.model_state()) - self.private_keys(task)
        return shared - buffer_keys(task) if self.buffers == "keep_server" else shared

    def init_server(self, task: Task, clients: Sequence[Client]) -> State:
        """The method's own entries of the server state before round 1; `clients` are all K."""
        return {}

    # Server to client

    def download(self, server: State, client_id: int) -> State:
        """What this client receives: the `model/*` entries. A method adds those of its own entries that travel."""
        return {key: value for key, value in server.items() if key.startswith(MODEL)}

    # Client

    def on_local_start(self, local: Local) -> None:
        """Before the first step of local training."""

    def loss(self, local: Local, batch: Batch, output: Output) -> dict[str, Tensor]:
        """Named terms of the local objective; their sum is minimised and each is logged."""
        return {"task": local.task.criterion(output, batch)}

    def local_step(self, local: Local, batch: Batch) -> dict[str, Tensor]:
        """One optimiser step: one forward pass, loss, backward, update. Returns the detached terms."""
        local.optimizer.zero_grad(set_to_none=True)
        with local.fabric.autocast():
            terms = self.loss(local, batch, local.task(batch["image"]))
            total = next(iter(terms.values()))
            if len(terms) > 1:
                total = torch.stack([term.float() for term in terms.values()]).sum()
        local.fabric.backward(total)
        with torch.no_grad():
            self.before_step(local)
        local.optimizer.step()
        return {name: term.detach() for name, term in terms.items()}

    def before_step(self, local: Local) -> None:
        """Change gradients in place, before the optimiser's step. One of a parameter that the loss left out is None."""

    def on_local_end(self, local: Local) -> None:
        """After the last step of local training; what is put into `local.memory` is kept."""

    def upload(self, local: Local) -> State:
        """Entries that go up beside the shared `model/*` keys."""
        return {}

    # Server

    def weights(self, server: State, uploads: Sequence[Upload]) -> Tensor:
        """Aggregation weights [K], float64, in the order of `uploads`; they sum to one."""
        if self.weighting == "uniform":
            return torch.full((len(uploads),), 1 / len(uploads), dtype=torch.float64)
        return normalise(num_samples(uploads))

    def aggregate(self, server: State, uploads: Sequence[Upload]) -> State:
        """The next server state. Logs each participant's weight."""
        weights = self.weights(server, uploads)
        for upload, weight in zip(uploads, weights.tolist(), strict=True):
            upload.log["weight"] = weight
        return server | self.average(uploads, weights)

    def average(self, uploads: Sequence[Upload], weights: Tensor) -> State:
        """Weighted sum of the `model/*` keys that all uploads hold."""
        if isinstance(uploads, Summed):
            return uploads.mean_under(weights)
        keys = [key for key in uploads[0].state if key.startswith(MODEL)]
        flat = in_same_places([upload.state for upload in uploads])
        factors, divisor = numerators(weights, uploads)
        if flat is not None:
            return flat_sum(flat, keys, factors, divisor)
        return {key: weighted_sum(entries(uploads, key), factors, divisor=divisor) for key in keys}


def num_samples(uploads: Sequence[Upload]) -> Tensor:
    """Training samples n_k of each sender, float64 [K]."""
    return torch.tensor([upload.client.num_samples for upload in uploads], dtype=torch.float64)


def normalise(values: Tensor) -> Tensor:
    """Divide non-negative values by their sum, in float64."""
    values = values.double()
    return values / ordered_sum(values)


def stack(uploads: Sequence[Upload], key: str) -> Tensor:
    """Entry `key` of every upload as one float64 tensor [K, ...]."""
    return torch.stack([upload.state[key].double() for upload in uploads])
