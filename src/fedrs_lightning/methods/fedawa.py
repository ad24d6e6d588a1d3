"""FedAWA: aggregation weights are learnt on the server (Shi et al., 2025, arXiv:2503.15842; docs/methods.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedrs_lightning.errors import ConfigError, check_choices
from fedrs_lightning.flat import side_by_side
from fedrs_lightning.methods.base import Buffers, FedAvg
from fedrs_lightning.methods.per_client import client_ids, client_samples, rows_of
from fedrs_lightning.methods.requirements import require_at_least_one, require_not_negative, require_positive
from fedrs_lightning.states import dot, entries, ordered_sum
from fedrs_lightning.types import Client, State, Upload

if TYPE_CHECKING:
    from fedrs_lightning.tasks.base import Task

ServerOptimizer = Literal["adam", "sgd"]
Distance = Literal["cos", "euc"]
Regulariser = Literal["per_client", "aggregate"]
UseWeights = Literal["before_last_step", "after_last_step"]
Init = Literal["fractions", "log_fractions", "uniform"]

IDS, LOGITS = "fedawa/clients", "fedawa/logits"
ROWS = 262_144
"""Elements of all rows of a piece together, in float64: they stay in cache."""

ZERO = 1e-14
"""A squared distance below this share of the largest squared update is rounding: it is 0, and has no gradient."""


@dataclass(frozen=True)
class Geometry:
    """All that the server's objective needs to know of the uploads: inner products, in float64.

    Attributes:
        updates: G_ij = <tau_i, tau_j>, [K, K], with tau_k = theta_k - w.
        along: <w, tau_k>, [K].
        square: |w|^2, a scalar.
        size: number of trainable parameters P.
    """

    updates: Tensor
    along: Tensor
    square: Tensor
    size: int


class FedAWA(FedAvg):
    """Federated averaging with weights that the server adapts to where the clients went. Clients train as in FedAvg.

    The server keeps one logit T_k a client. With tau_k = theta_k - w over all trainable tensors as one vector, it takes
    `server_steps` steps of an optimiser, which is new in every round, on the logits of the participants:

        lambda = softmax(T),   tau = sum_k lambda_k tau_k
        J(T)   = sum_k lambda_k |tau_k - tau| + sum_k lambda_k d(w, theta_k)            regulariser: per_client
        J(T)   = sum_k lambda_k |tau_k - tau| + d(w, w + tau)                           regulariser: aggregate
        w     <- gamma sum_k lambda_k theta_k

    with d one minus the cosine, or the mean squared difference. The first term is **added**, as in the corrected
    release (50244a6); the first release (a344534), and forks of it, subtract it, which rewards weights on clients far
    from the mean. The paper has d of the aggregate, the released code that of the clients.

    J depends on the uploads through their inner products alone, so one pass over the parameters builds a (K + 1) x (K +
    1) matrix in float64 and a step costs O(K^2). With G_ij = <tau_i, tau_j>:

        |tau_k - tau|^2 = G_kk - 2 (G lambda)_k + lambda' G lambda,   |theta_k|^2 = |w|^2 + 2 <w, tau_k> + G_kk

    Where an update lies at the mean its distance has no derivative; 0 is taken. With one participant there is nothing
    to weigh, and its logit stays. Logits belong to client ids, while the released code indexes them by position among
    the participants. Buffers are averaged with the same weights. `fedawa/logit` is logged beside the weight.

    Softmax of fractions in [0, 1] is nearly uniform whatever the sizes, and with these steps the weights move by about
    a thousandth a round: that is the method as released. `log_fractions` starts at the sample weights instead.

    Args:
        optimizer: `adam` or `sgd`, of the server (released: adam).
        lr: its step size, at least 0; null takes the released 0.001 for adam and 0.01 for sgd.
        server_steps: I (released: 1).
        betas: of adam (released: 0.5 and 0.999).
        momentum: of sgd (released: 0.9).
        weight_decay: of the server's optimiser; null takes the released 0 for adam and 5e-4 for sgd.
        gamma: factor on the aggregate (released: 1).
        distance: `cos` or `euc` (released: cos).
        regulariser: see above (default: released).
        use_weights: lambda `before_last_step`, so that with one step this round's step counts in the next round
            (released), or `after_last_step`.
        init: logits at the start: n_k / n (`fractions`, released; the released sizes are numbers of batches), log(n_k /
            n) (`log_fractions`, the weights of FedAvg) or 0 (`uniform`).
        buffers: as in FedAvg.
    """

    def __init__(
        self,
        optimizer: ServerOptimizer = "adam",
        lr: float | None = None,
        server_steps: int = 1,
        betas: tuple[float, float] = (0.5, 0.999),
        momentum: float = 0.9,
        weight_decay: float | None = None,
        gamma: float = 1.0,
        distance: Distance = "cos",
        regulariser: Regulariser = "per_client",
        use_weights: UseWeights = "before_last_step",
        init: Init = "fractions",
        buffers: Buffers = "mean",
    ) -> None:
        super().__init__(buffers=buffers)
        check_choices(FedAWA.__init__, locals())
        require_not_negative(lr=lr, weight_decay=weight_decay, momentum=momentum)
        require_positive(gamma=gamma)
        require_at_least_one("lr: 0 keeps the weights as they start", server_steps=server_steps)
        if momentum >= 1:
            raise ConfigError(f"momentum: {momentum} is not below 1")
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ConfigError(f"betas: {list(betas)} are not two numbers in [0, 1)")
        self.optimizer, self.lr, self.server_steps = optimizer, lr, server_steps
        self.betas, self.momentum = (betas[0], betas[1]), momentum
        self.weight_decay, self.gamma, self.distance, self.regulariser = weight_decay, gamma, distance, regulariser
        self.use_weights, self.init = use_weights, init

    def init_server(self, task: Task, clients: Sequence[Client]) -> State:
        """One logit a client."""
        samples = client_samples(clients)
        fractions = samples / samples.sum()
        starts = {"fractions": fractions, "log_fractions": fractions.log(), "uniform": torch.zeros_like(fractions)}
        return {IDS: client_ids(clients), LOGITS: starts[self.init]}

    def weights(self, server: State, uploads: Sequence[Upload]) -> Tensor:
        """lambda of the participants, float64 [K]."""
        return self._solve(server, uploads)[0]

    def aggregate(self, server: State, uploads: Sequence[Upload]) -> State:
        """gamma times the weighted mean, and the next logits of the participants."""
        weights, logits = self._solve(server, uploads)
        for upload, weight, logit in zip(uploads, weights.tolist(), logits.tolist(), strict=True):
            upload.log |= {"weight": weight, "fedawa/logit": logit}
        logits = server[LOGITS].index_copy(0, rows_of(server[IDS], uploads), logits)
        return server | self.average(uploads, self.gamma * weights) | {LOGITS: logits}

    def objective(self, logits: Tensor, geometry: Geometry) -> Tensor:
        """J of the logits [K], float64."""
        share = logits.softmax(0)
        pulled = dot(geometry.updates, share)  # (G lambda)_k
        mean = dot(share, pulled)  # |tau|^2
        diagonal = geometry.updates.diagonal()
        spread = dot(share, _root(diagonal - 2 * pulled + mean, ZERO * diagonal.max()))
        if self.regulariser == "aggregate":
            return spread + self._apart(dot(share, geometry.along), mean, geometry)
        return spread + dot(share, self._apart(geometry.along, diagonal, geometry))

    def _apart(self, along: Tensor, square: Tensor, geometry: Geometry) -> Tensor:
        """d(w, w + v) from <w, v> and |v|^2."""
        if self.distance == "euc":
            return square / geometry.size
        lengths = (geometry.square * (geometry.square + 2 * along + square)).clamp(min=0)
        return 1 - (geometry.square + along) / lengths.sqrt().clamp(min=torch.finfo(torch.float64).tiny ** 0.5)

    def _solve(self, server: State, uploads: Sequence[Upload]) -> tuple[Tensor, Tensor]:
        """Weights for this round and the participants' next logits."""
        logits = server[LOGITS][rows_of(server[IDS], uploads)].clone()
        if len(uploads) == 1:
            return torch.ones(1, dtype=torch.float64), logits
        geometry = measure(server, uploads, sorted(uploads[0].parameters))
        used = logits.softmax(0)
        logits.requires_grad_(True)
        optimizer = self._server_optimizer(logits)
        for _ in range(self.server_steps):
            used = logits.detach().softmax(0)
            optimizer.zero_grad(set_to_none=True)
            self.objective(logits, geometry).backward()
            optimizer.step()
        logits = logits.detach()
        return (used if self.use_weights == "before_last_step" else logits.softmax(0)), logits

    def _server_optimizer(self, logits: Tensor) -> torch.optim.Optimizer:
        if self.optimizer == "adam":
            lr = 1e-3 if self.lr is None else self.lr
            return torch.optim.Adam([logits], lr=lr, betas=self.betas, weight_decay=self.weight_decay or 0.0)
        lr = 1e-2 if self.lr is None else self.lr
        decay = 5e-4 if self.weight_decay is None else self.weight_decay
        return torch.optim.SGD([logits], lr=lr, momentum=self.momentum, weight_decay=decay)


def measure(server: State, uploads: Sequence[Upload], keys: Sequence[str]) -> Geometry:
    """Inner products of w and all tau_k over these entries, in one pass and in float64.

    A matrix product would be three times as fast, but its last bits would depend on the processor.

    Args:
        server: with w.
        uploads: with theta_k.
        keys: `model/*` entries that count, in the order in which they are added.
    """
    count = len(uploads) + 1
    width = ROWS // count
    rows, products = torch.empty(2, count, width, dtype=torch.float64)
    total, size = torch.zeros(count, count, dtype=torch.float64), 0
    for key in keys:
        vectors, length = side_by_side([server[key], *entries(uploads, key)]), server[key].numel()
        size += length
        for start in range(0, length, width):
            stop = min(start + width, length)
            part = rows[:, : stop - start]  # w, then tau_k
            for row, vector in zip(part, vectors, strict=True):
                row.copy_(vector[start:stop])
            part[1:] -= part[:1]
            for number, row in enumerate(part):
                total[number, number:] += _sums(torch.mul(part[number:], row, out=products[number:, : stop - start]))
    total = total.triu(1).T + total
    return Geometry(total[1:, 1:], total[0, 1:], total[0, 0], size)


def _sums(rows: Tensor) -> Tensor:
    """Sums of rows [M, N], which are overwritten: the last half is added to the first until 64 columns are left."""
    length = rows.shape[1]
    while length > 64:
        half = length // 2
        rows[:, :half] += rows[:, length - half : length]
        length -= half
    return ordered_sum(rows[:, :length], 1)


def _root(squares: Tensor, smallest: Tensor) -> Tensor:
    """Square root with value and gradient 0 up to `smallest`."""
    positive = squares > smallest
    return torch.where(positive, squares, 1.0).sqrt() * positive
