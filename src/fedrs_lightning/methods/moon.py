"""MOON: model-contrastive learning (Li et al., 2021, arXiv:2103.16257; docs/methods.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrs_lightning.errors import ConfigError, check_choices
from fedrs_lightning.methods.base import Buffers, FedAvg, Weighting
from fedrs_lightning.methods.requirements import require_at_least_one, require_not_negative, require_positive
from fedrs_lightning.nn.frozen import frozen_output, received_model
from fedrs_lightning.nn.precision import in_at_least_float32
from fedrs_lightning.nn.projection import insert_projection, last_linear
from fedrs_lightning.nn.surgery import MODEL, network_of
from fedrs_lightning.states import under
from fedrs_lightning.types import Batch, Local, Output

if TYPE_CHECKING:
    from fedrs_lightning.tasks.base import Task

FirstRound = Literal["skip", "use_global"]

PREVIOUS = "moon/previous"


class MOON(FedAvg):
    """Federated averaging whose clients keep features near the global model's and away from their own earlier ones.

    The classifier reads a projection head (two linear layers with a ReLU between), which is a part of the model and
    travels. With z the projection of a batch's images in the model under training, z_glob in the received model w and
    z_r in the client's models after its last rounds, the newest first,

        L_k = task loss + mu * mean over the batch of l
        l   = -log( exp(cos(z, z_glob) / tau) / (exp(cos(z, z_glob) / tau) + sum over r of exp(cos(z, z_r) / tau)) )

    The received and the earlier models are frozen and in evaluation mode. They cost a pass each, without gradient; the
    model under training runs once. A client keeps its last models, also over rounds without it. In its first round
    there is none: l is then 0 (`skip`, as in the released code, whose pool is empty in its first round), or w takes the
    place (`use_global`). Released code also files the untrained models of clients that have not taken part; here a
    client has no earlier model before its first round. The contrast needs no labels, so it is the same for multi-label
    tasks.

    On a segmentation task there is no image-level projection: with `projection: false` z is the decoder's output
    averaged over space, which is ours.

    Args:
        mu: weight of the contrast (released code: 1; its authors try 0.001 to 10, 5 on CIFAR-10).
        temperature: tau > 0 (released code: 0.5).
        projection: insert the head. Without it z is the embedding, as in several re-implementations: another method.
        out_dim: length of z with a head (released code: 256).
        buffer: how many earlier models a client keeps (released code: 1).
        first_round: see above.
        weighting: as in FedAvg.
        buffers: as in FedAvg.
    """

    def __init__(
        self,
        mu: float = 1.0,
        temperature: float = 0.5,
        projection: bool = True,
        out_dim: int = 256,
        buffer: int = 1,
        first_round: FirstRound = "skip",
        weighting: Weighting = "samples",
        buffers: Buffers = "mean",
    ) -> None:
        super().__init__(weighting, buffers)
        check_choices(MOON.__init__, locals())
        require_not_negative("0 switches the contrast off", mu=mu)
        require_positive(temperature=temperature)
        require_at_least_one(out_dim=out_dim, buffer=buffer)
        self.mu, self.temperature, self.projection, self.out_dim = mu, temperature, projection, out_dim
        self.buffer, self.first_round = buffer, first_round

    def adapt(self, task: Task) -> None:
        """Insert the projection head; refuse a network whose last layer is not a linear classifier."""
        if not self.projection:
            return
        network = network_of(task)
        found = last_linear(network, task.head_keys())
        if found is None:
            raise ConfigError(f"MOON: {type(task).__name__} has no linear last layer; set projection: false")
        insert_projection(network, found[0], self.out_dim)

    def on_local_start(self, local: Local) -> None:
        """Set out the frozen models: the received one, then the client's earlier ones."""
        received = received_model(local)
        earlier = [under(local.memory, f"{PREVIOUS}/{number}/{MODEL}") for number in range(self.buffer)]
        earlier = [state for state in earlier if state]
        if not earlier and self.first_round == "use_global":
            earlier = [received]
        local.scratch["moon/frozen"] = [received, *earlier]

    def loss(self, local: Local, batch: Batch, output: Output) -> dict[str, Tensor]:
        """The task's loss and the weighted contrast."""
        z = _feature(output)
        network = network_of(local.task)
        frozen = [_feature(frozen_output(network, state, batch["image"])) for state in local.scratch["moon/frozen"]]
        near = torch.stack([F.cosine_similarity(z, other, dim=-1) for other in frozen], 1)  # [B, 1 + earlier models]
        target = torch.zeros(len(z), dtype=torch.int64, device=z.device)
        contrast = F.cross_entropy(near / self.temperature, target)
        return super().loss(local, batch, output) | {"contrast": self.mu * contrast}

    def on_local_end(self, local: Local) -> None:
        """File the trained model as the newest of the earlier ones."""
        for number in range(self.buffer - 1, 0, -1):
            newer = under(local.memory, f"{PREVIOUS}/{number - 1}/")
            local.memory |= {f"{PREVIOUS}/{number}/{key}": value for key, value in newer.items()}
        trained = local.task.model_state()
        local.memory |= {f"{PREVIOUS}/0/{key}": value.detach().clone() for key, value in trained.items()}


def _feature(output: Output) -> Tensor:
    """z [B, D]: the embedding, averaged over space where it is a map."""
    embedding = in_at_least_float32(output.embedding)
    return embedding.flatten(2).mean(-1) if embedding.ndim > 2 else embedding
