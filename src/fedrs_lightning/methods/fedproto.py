"""FedProto: clients agree on class prototypes (Tan et al., 2022, arXiv:2105.00243; docs/methods.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedrs_lightning.errors import ConfigError, check_choices
from fedrs_lightning.methods.base import Buffers, FedAvg, Weighting, stack
from fedrs_lightning.methods.requirements import num_classes, require_not_negative
from fedrs_lightning.nn.precision import full_precision
from fedrs_lightning.nn.projection import embedding_form
from fedrs_lightning.nn.prototypes import (
    ClassMeans,
    class_labels,
    class_statistics,
    has_entry,
    merged_means,
    pixel_form,
)
from fedrs_lightning.states import select
from fedrs_lightning.types import Batch, Client, Local, Output, State, Upload

if TYPE_CHECKING:
    from fedrs_lightning.tasks.base import Task

ProtoWeighting = Literal["clients", "samples"]
Regulariser = Literal["samples", "prototypes"]

PROTOTYPES, VALID, COUNTS = "fedproto/prototypes", "fedproto/valid", "fedproto/counts"
MEANS = "fedproto/means"


class FedProto(FedAvg):
    """Embeddings are pulled to the mean embedding of their class over all clients.

    With f_i the embedding (input of the last layer, length D) and y_i the class of sample i, and P_c the server's
    prototypes:

        L = CE + weight / (B D) * sum_i |f_i - P_{y_i}|^2
        p_kc = mean of the f_i of class c on client k, over its last local epoch, while the network moves
        P_c <- mean of p_kc over the participants that own class c

    A sample whose class has no prototype adds 0 and counts in the mean; so does every sample of the first round.
    Prototypes are constants: no gradient reaches them. Predictions come from the classifier.

    Segmentation is not in the source and ours: pixels of the embedding map at its own resolution take the place of
    samples, with labels by nearest neighbour; pixels without a label do not count, and the mean is over the pixels
    whose class has a prototype.

    Args:
        weight: lambda. Null takes 1, the authors' value for MNIST and FEMNIST (0.1 for CIFAR-10; a later comparison,
            MarsFL, takes 2); for segmentation no source gives a value and one must be set. 0 leaves federated
            averaging.
        average_model: clients share one averaged model, as in the comparisons of FPL and its successors (default);
            false keeps models private, so that prototypes alone travel, as in the authors' code.
        proto_weighting: P_c is the mean over `clients`, as in the authors' code, or weighted by their `samples` of the
            class, as in the paper. Under `clients` a client says only which classes it has, not how many samples of
            each.
        regulariser: `samples`, distances of single samples, as in the authors' code, or `prototypes`, the sum over the
            classes of a batch of the mean squared difference of the batch's class mean, as the paper words it
            (rebuilt).
        keep_missing: a class that no participant has keeps its prototype (ours); false forgets it, as the authors' code
            does.
        weighting: of the models, as in FedAvg.
        buffers: as in FedAvg.
    """

    streams = True

    def __init__(
        self,
        weight: float | None = None,
        average_model: bool = True,
        proto_weighting: ProtoWeighting = "clients",
        regulariser: Regulariser = "samples",
        keep_missing: bool = True,
        weighting: Weighting = "samples",
        buffers: Buffers = "mean",
    ) -> None:
        super().__init__(weighting, buffers)
        check_choices(FedProto.__init__, locals())
        require_not_negative("0 switches the term off", weight=weight)
        self.weight, self.average_model, self.proto_weighting = weight, average_model, proto_weighting
        self.regulariser, self.keep_missing = regulariser, keep_missing

    # Structure

    def check(self, task: Task) -> None:
        """Refuse a task without one class a sample, and segmentation where `weight` is not set."""
        num_classes(task, "FedProto")
        if self.weight is None and task.label_kind == "pixel_classes":
            raise ConfigError("FedProto: weight has no default for segmentation; set method.init_args.weight")

    def private_keys(self, task: Task) -> set[str]:
        """All of them where models are not averaged."""
        return super().private_keys(task) if self.average_model else set(task.model_state())

    def init_server(self, task: Task, clients: Sequence[Client]) -> State:
        """No prototypes."""
        classes = num_classes(task, "FedProto")
        dimension, dtype = embedding_form(task.model_state(), task.head_keys())
        return {PROTOTYPES: torch.zeros(classes, dimension, dtype=dtype), VALID: torch.zeros(classes, dtype=torch.bool)}

    # Server to client

    def download(self, server: State, client_id: int) -> State:
        """The model and the prototypes."""
        return super().download(server, client_id) | select(server, (PROTOTYPES, VALID))

    # Client

    def on_local_start(self, local: Local) -> None:
        """No samples counted."""
        local.scratch[MEANS] = ClassMeans(len(local.received[VALID]), local.client.num_samples)

    def loss(self, local: Local, batch: Batch, output: Output) -> dict[str, Tensor]:
        """The task's loss and the weighted term `prototype`, from the one forward pass of the batch."""
        embedding, labels = pixel_form(output.embedding, class_labels(batch))
        local.scratch[MEANS].add(embedding, labels, len(batch["image"]))
        prototypes, valid = local.received[PROTOTYPES], local.received[VALID]
        if self.regulariser == "prototypes":
            term = self._to_means(embedding, labels, prototypes, valid)
        else:
            term = self._to_samples(embedding, labels, prototypes, valid, of_all=output.embedding.dim() == 2)
        return super().loss(local, batch, output) | {"prototype": (1.0 if self.weight is None else self.weight) * term}

    def upload(self, local: Local) -> State:
        """p_kc [C, D] and the number of samples behind each, or just 1 and 0 where nobody needs the number."""
        means, counts = local.scratch[MEANS].means()
        return {PROTOTYPES: means, COUNTS: counts if self.proto_weighting == "samples" else counts.clamp(max=1)}

    def _to_samples(self, embedding: Tensor, labels: Tensor, prototypes: Tensor, valid: Tensor, of_all: bool) -> Tensor:
        """Mean squared difference of embeddings [B, D, h, w] and their prototypes, of all or of those that have one."""
        known = has_entry(labels, valid)
        target = prototypes[labels.clamp(0, len(valid) - 1)].permute(0, 3, 1, 2)
        apart = torch.where(known[:, None], embedding - target, 0.0).square()
        return apart.sum() / ((known.numel() if of_all else known.sum().clamp(min=1)) * embedding.shape[1])

    def _to_means(self, embedding: Tensor, labels: Tensor, prototypes: Tensor, valid: Tensor) -> Tensor:
        """Sum over classes of the mean squared difference of the batch's class mean and the prototype."""
        with full_precision(embedding):
            sums, counts = class_statistics(embedding, labels, len(valid), normalise=False)
        means = sums / counts.clamp(min=1)[:, None]
        apart = torch.where((valid & (counts > 0))[:, None], means - prototypes, 0.0)
        return apart.square().mean(1).sum().to(embedding.dtype)

    # Server

    def aggregate(self, server: State, uploads: Sequence[Upload]) -> State:
        """The averaged model and the new prototypes."""
        state = super().aggregate(server, uploads)
        means, shares = stack(uploads, PROTOTYPES), stack(uploads, COUNTS)  # [K, C, D], [K, C]
        state[PROTOTYPES], seen = merged_means(means, shares, server[PROTOTYPES])
        state[VALID] = seen | server[VALID] if self.keep_missing else seen
        return state
