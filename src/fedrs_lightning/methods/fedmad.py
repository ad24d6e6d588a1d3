"""FedMAD: weights follow the direction in which a client's modulation moved (docs/methods.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedrs_lightning.errors import TrainingError, check_choices
from fedrs_lightning.methods.base import Buffers, Weighting, normalise, num_samples, stack
from fedrs_lightning.methods.fedbn import FedBN, Norm
from fedrs_lightning.methods.requirements import require_not_negative
from fedrs_lightning.nn.modulation import Modulation, Order, Placement, Which, insert_modulation
from fedrs_lightning.nn.surgery import keys_of, network_of
from fedrs_lightning.states import dot, flatten, ordered_sum
from fedrs_lightning.types import Local, State, Upload

if TYPE_CHECKING:
    from fedrs_lightning.tasks.base import Task

Negative = Literal["clamp", "shift"]
EpsPlace = Literal["inside", "denominator"]
Reference = Literal["sum", "weighted"]
ZeroUpdate = Literal["score_zero", "fail"]
Sent = Literal["direction", "delta"]
Source = Literal["gamma_beta", "gamma", "gamma_beta_bn", "bn"]
Granularity = Literal["vector", "per_module"]
Home = Literal["private", "shared"]

DIRECTION = "fedmad/direction"
ZERO_NORM = 1e-12
"""A vector of at most this length has no direction."""


class FedMAD(FedBN):
    """Modulation-aware directional aggregation: modulation and batch norm stay on the client, and a client counts for
    more when its modulation moved the way the cohort's did.

    With m_k, m_k' the modulation parameters of client k before and after local training, as one vector:

        d_k = unit(m_k' - m_k),   r = sum_k d_k,   s_k = <d_k, unit(r)>,   a_k ~ n_k (max(s_k, 0) + eps)^power

    and the shared parameters become sum_k a_k theta_k. The source gives the rule in words only, so everything here but
    `power` and `num_layers` is a reconstruction; the numbers 1 to 15 are the rows of docs/deviations.md. With no
    modulation layer, or when nobody moved or all directions cancel, the weights are those of FedAvg (6); only
    participants enter the sums (14). A server that sees d_k learns where a client's modulation went, not its values nor
    how far.

    Args:
        power: p, how sharply weights follow alignment; 0 gives sample weights exactly (12; paper 2.0, tried 0.5 to 3).
        num_layers: modulated residual blocks; 0 is FedBN (12; paper 4, tried 1 to 16 on a ResNet-50).
        placement: where a layer sits in its block; `pre_bn` is cancelled by the batch norm (11, docs/deviations.md).
        which: batch norms that `pre_bn` takes.
        order: which blocks come first, or the names of `num_layers` blocks (11).
        eps: keeps a client that disagrees from vanishing altogether (4; ours).
        negative: `clamp` takes max(s, 0), `shift` takes (1 + s) / 2 (1).
        eps_place: `inside` the base of the power, or in the `denominator` of the cosine only (2).
        reference: plain `sum` of the directions, or `weighted` by the number of samples (3).
        zero_update: a client that did not move gets `score_zero`, or the run stops with `fail` (5).
        upload: clients send the unit `direction`, or the raw `delta` (7). The weights are the same.
        direction_of: parameters that make up m: `gamma_beta`, `gamma`, `gamma_beta_bn` (with weight and bias of batch
            norm), or `bn` alone, which needs no modulation layer (8, 13).
        granularity: one cosine over the whole `vector`, or the mean of one cosine `per_module` (9).
        skip_dead_beta: leave those beta out of m that a batch norm cancels: their updates are rounding noise.
        modulation: `private`, or `shared` for the ablation without private modules (13).
        head: last layer `shared` or `private` (15).
        initial_gamma: scale at the start (10; ours).
        initial_beta: offset at the start (10; ours).
        norms: normalisation layers that stay on the client; an empty list shares them all.
        weighting: `samples` or `uniform` in place of n_k.
        buffers: of the shared layers, as in FedAvg.
    """

    def __init__(
        self,
        power: float = 2.0,
        num_layers: int = 4,
        placement: Placement = "pre_block",
        which: Which = "all",
        order: Order | list[str] = "stage_round_robin",
        eps: float = 1e-8,
        negative: Negative = "clamp",
        eps_place: EpsPlace = "inside",
        reference: Reference = "sum",
        zero_update: ZeroUpdate = "score_zero",
        upload: Sent = "direction",
        direction_of: Source = "gamma_beta",
        granularity: Granularity = "vector",
        skip_dead_beta: bool = True,
        modulation: Home = "private",
        head: Home = "shared",
        initial_gamma: float = 1.0,
        initial_beta: float = 0.0,
        norms: Sequence[Norm] = ("batch",),
        weighting: Weighting = "samples",
        buffers: Buffers = "mean",
    ) -> None:
        super().__init__(norms=norms, weighting=weighting, buffers=buffers)
        check_choices(FedMAD.__init__, locals())
        require_not_negative(power=power, eps=eps)
        self.power, self.num_layers, self.placement, self.which, self.order = power, num_layers, placement, which, order
        self.eps, self.eps_place, self.negative = eps, eps_place, negative
        self.reference, self.zero_update, self.sent = reference, zero_update, upload
        self.direction_of, self.granularity, self.skip_dead_beta = direction_of, granularity, skip_dead_beta
        self.modulation, self.head = modulation, head
        self.initial_gamma, self.initial_beta = initial_gamma, initial_beta

    def adapt(self, task: Task) -> None:
        """Insert the modulation layers."""
        super().adapt(task)
        start = self.initial_gamma, self.initial_beta
        insert_modulation(task.model, self.num_layers, self.placement, self.which, self.order, *start)

    def private_keys(self, task: Task) -> set[str]:
        """Batch norm and modulation, and the last layer if it is to be private."""
        keys = super().private_keys(task)
        if self.modulation == "private":
            keys |= keys_of(task, Modulation)
        return keys | task.head_keys() if self.head == "private" else keys

    def on_local_start(self, local: Local) -> None:
        """Remember m_k."""
        local.scratch["fedmad/before"] = {name: flatten(group) for name, group in self._groups(local.task).items()}

    def upload(self, local: Local) -> State:
        """d_k, or the raw difference: one vector [P], or one a module."""
        before: dict[str, Tensor] = local.scratch["fedmad/before"]
        state: State = {}
        for name, group in self._groups(local.task).items():
            after = flatten(group)
            delta = after.double() - before[name].double()
            state[name] = (unit(delta) if self.sent == "direction" else delta).to(after.dtype)
        return state

    def weights(self, server: State, uploads: Sequence[Upload]) -> Tensor:
        """a_k. Writes `fedmad/score` (s_k) and `fedmad/moved` (1 or 0) to each participant's log.

        Raises:
            TrainingError: a client's modulation did not move and `zero_update` is `fail`.
        """
        names = [key for key in uploads[0].state if key.startswith(DIRECTION)]
        if not names:
            return super().weights(server, uploads)
        directions = [unit(stack(uploads, name)) for name in names]  # each [K, P_module]
        scores = self._scores(directions, uploads)
        self._log(directions, scores, uploads)
        if scores is None:
            return super().weights(server, uploads)
        base = scores.clamp(min=0) if self.negative == "clamp" else (1 + scores) / 2
        if self.eps_place == "inside":
            base = base + self.eps
        return normalise(self._sizes(uploads) * base**self.power)

    def _scores(self, directions: Sequence[Tensor], uploads: Sequence[Upload]) -> Tensor | None:
        """s_k in [-1, 1], float64 [K]: means over the modules whose reference does not vanish; None when all vanish."""
        cosines = []
        extra = self.eps if self.eps_place == "denominator" else 0.0
        emphasis = torch.ones(len(uploads), dtype=torch.float64)
        if self.reference == "weighted":
            emphasis = normalise(self._sizes(uploads))
        for direction in directions:
            reference = ordered_sum(emphasis[:, None] * direction)  # [P]
            length = dot(reference, reference).sqrt()
            if length > ZERO_NORM:
                cosines.append(dot(direction, reference) / (length + extra))  # |d_k| = 1
        return ordered_sum(torch.stack(cosines)) / len(cosines) if cosines else None

    def _log(self, directions: Sequence[Tensor], scores: Tensor | None, uploads: Sequence[Upload]) -> None:
        moved = torch.stack([direction.any(dim=1) for direction in directions]).any(0)
        for index, upload in enumerate(uploads):
            upload.log["fedmad/score"] = 0.0 if scores is None else float(scores[index])
            upload.log["fedmad/moved"] = float(moved[index])
            if self.zero_update == "fail" and not moved[index]:
                raise TrainingError(
                    f"client {upload.client.id}: its modulation did not move in local training, so it has no "
                    "direction; raise the learning rate or local_epochs, or set zero_update: score_zero"
                )

    def _sizes(self, uploads: Sequence[Upload]) -> Tensor:
        """n_k, or ones under uniform weighting, float64 [K]."""
        sizes = num_samples(uploads)
        return torch.ones_like(sizes) if self.weighting == "uniform" else sizes

    def _groups(self, task: Task) -> dict[str, list[nn.Parameter]]:
        """Parameters of m by the name of the upload entry, in the order of the network."""
        layers = self._sources(network_of(task))
        groups = {f"{DIRECTION}/{name}": self._parameters(layer) for name, layer in layers}
        groups = {name: group for name, group in groups.items() if group}
        if self.granularity == "vector" and groups:
            return {DIRECTION: [parameter for group in groups.values() for parameter in group]}
        return groups

    def _sources(self, network: nn.Module) -> list[tuple[str, nn.Module]]:
        if self.direction_of != "bn" and self.num_layers == 0:
            return []
        types = {"bn": (_BatchNorm,), "gamma_beta_bn": (Modulation, _BatchNorm)}.get(self.direction_of, (Modulation,))
        return [(name, module) for name, module in network.named_modules() if isinstance(module, types)]

    def _parameters(self, layer: nn.Module) -> list[nn.Parameter]:
        if not isinstance(layer, Modulation):
            return list(layer.parameters(recurse=False))
        if self.direction_of == "gamma" or (self.skip_dead_beta and layer.beta_is_dead):
            return [layer.gamma]
        return [layer.gamma, layer.beta]


def unit(vector: Tensor) -> Tensor:
    """The vector over its length along the last axis, or 0 where the length is at most 1e-12."""
    length = dot(vector, vector).sqrt()[..., None]
    return torch.where(length > ZERO_NORM, vector / length.clamp(min=ZERO_NORM), torch.zeros_like(vector))
