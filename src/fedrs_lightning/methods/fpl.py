"""FPL: cluster prototypes and unbiased prototypes (Huang et al., CVPR 2023, "Rethinking federated learning with domain
shift: a prototype view"; docs/methods.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedrs_lightning.errors import ConfigError, check_choices
from fedrs_lightning.methods.base import Buffers, FedAvg, Weighting, stack
from fedrs_lightning.methods.requirements import (
    num_classes,
    require_at_least_one,
    require_not_negative,
    require_positive,
)
from fedrs_lightning.nn.clustering import cluster_centres, finch
from fedrs_lightning.nn.precision import full_precision
from fedrs_lightning.nn.projection import embedding_form
from fedrs_lightning.nn.prototypes import ClassMeans, class_labels, has_entry, members, pixel_form, stratified, unit
from fedrs_lightning.seeding import torch_stream, uniform
from fedrs_lightning.states import select
from fedrs_lightning.types import Batch, Client, Local, Output, State, Upload

if TYPE_CHECKING:
    from fedrs_lightning.tasks.base import Task

Reduction = Literal["mean", "sum"]

PROTOTYPES, CLASSES, HELD = "fpl/prototypes", "fpl/classes", "fpl/held"
MEANS, UNBIASED, VALID, DRAWS = "fpl/means", "fpl/unbiased", "fpl/valid", "fpl/draws"


class FPL(FedAvg):
    """Embeddings are drawn to the clusters of their class's prototypes, and to the middle of these clusters.

    A client sends the mean embedding of each of its classes, as in FedProto. For each class c the server clusters them
    by FINCH with cosine distance and keeps the means of the clusters, the cluster prototypes of c; U_c is their plain
    mean, so that a domain with many clients counts no more than one with few. With f the embedding (length D) and y the
    class of a sample:

        L_CP = -log(sum over p of class y of e^(cos(f, p) / temperature) / sum over all p of the same)
        L_UP = 1 / D |f - U_y|^2
        L    = CE + 1 / B * sum over samples with prototypes of (contrastive_weight L_CP + unbiased_weight L_UP)

    FINCH takes the coarsest partition that has more than one cluster, or the first if that has one already: two
    prototypes are one cluster, a single one is its own. Classes that nobody has have no entry, and their samples add 0.

    Segmentation is not in the source and ours: pixels of the embedding map at its own resolution take the place of
    samples; of each batch at most `num_pixels` labelled pixels, drawn from all classes in turns, enter both terms, and
    B is their number.

    Args:
        temperature: tau (paper and its code: 0.02, where 0.01 gave NaN; a later code of the same group, MarsFL, takes
            0.2).
        contrastive_weight: of L_CP (paper: 1); 0 switches it off.
        unbiased_weight: of L_UP (paper: 1); 0 switches it off.
        unbiased_reduction: `mean` over the D entries, as in the authors' code, or `sum`, as in the paper: D times as
            much.
        num_pixels: pixels of a batch that enter the terms. Segmentation needs it, and no source gives a value (ours:
            4096); it does nothing in classification.
        keep_missing: a class that no participant has keeps its cluster prototypes (ours); false forgets them.
        weighting: of the models, as in FedAvg (paper: samples).
        buffers: as in FedAvg.
    """

    streams = True

    def __init__(
        self,
        temperature: float = 0.02,
        contrastive_weight: float = 1.0,
        unbiased_weight: float = 1.0,
        unbiased_reduction: Reduction = "mean",
        num_pixels: int | None = None,
        keep_missing: bool = True,
        weighting: Weighting = "samples",
        buffers: Buffers = "mean",
    ) -> None:
        super().__init__(weighting, buffers)
        check_choices(FPL.__init__, locals())
        require_positive(temperature=temperature)
        off = "0 switches the term off"
        require_not_negative(off, contrastive_weight=contrastive_weight, unbiased_weight=unbiased_weight)
        require_at_least_one(num_pixels=num_pixels)
        self.temperature = temperature
        self.contrastive_weight, self.unbiased_weight = contrastive_weight, unbiased_weight
        self.unbiased_reduction, self.num_pixels, self.keep_missing = unbiased_reduction, num_pixels, keep_missing

    # Structure

    def check(self, task: Task) -> None:
        """Refuse a task without one class a sample, and segmentation where `num_pixels` is not set."""
        num_classes(task, "FPL")
        if self.num_pixels is None and task.label_kind == "pixel_classes":
            remedy = "set method.init_args.num_pixels, such as 4096"
            raise ConfigError(f"FPL: num_pixels has no default for segmentation; {remedy}")

    def init_server(self, task: Task, clients: Sequence[Client]) -> State:
        """No cluster prototypes: J = 0."""
        dimension, dtype = embedding_form(task.model_state(), task.head_keys())
        return {PROTOTYPES: torch.zeros(0, dimension, dtype=dtype), CLASSES: torch.zeros(0, dtype=torch.int64)}

    # Server to client

    def download(self, server: State, client_id: int) -> State:
        """The model and the cluster prototypes."""
        return super().download(server, client_id) | select(server, (PROTOTYPES, CLASSES))

    # Client

    def on_local_start(self, local: Local) -> None:
        """Derive U_c from the cluster prototypes; no samples counted."""
        classes = num_classes(local.task, "FPL")
        prototypes = local.received[PROTOTYPES]
        of_class = members(local.received[CLASSES], classes).T.to(prototypes.dtype)  # [C, J]
        count = of_class.sum(1)
        local.scratch[UNBIASED] = of_class @ prototypes / count.clamp(min=1)[:, None]
        local.scratch[VALID] = count > 0
        local.scratch[MEANS] = ClassMeans(classes, local.client.num_samples)
        # a stream of its own: draws from the current one would move the network's own random layers
        local.scratch[DRAWS] = torch_stream("fpl", "pixels", torch.initial_seed())

    def loss(self, local: Local, batch: Batch, output: Output) -> dict[str, Tensor]:
        """The task's loss and the weighted terms `contrastive` and `unbiased`, from one forward pass of the batch."""
        embedding, labels = pixel_form(output.embedding, class_labels(batch))
        local.scratch[MEANS].add(embedding, labels, len(batch["image"]))
        valid = local.scratch[VALID]
        labels = torch.where((labels >= 0) & (labels < len(valid)), labels, -1)
        if output.embedding.dim() > 2:
            features, labels = self._rows(local, embedding, labels)
        else:
            features, labels = embedding[0, ..., 0].T, labels.flatten()
        count = (labels >= 0).sum().clamp(min=1)
        with full_precision(features):
            contrastive = self.contrastive(features, labels, local.received[PROTOTYPES], local.received[CLASSES])
        unbiased = self.unbiased(features, labels, local.scratch[UNBIASED], valid)
        return super().loss(local, batch, output) | {
            "contrastive": self.contrastive_weight * contrastive.sum() / count,
            "unbiased": self.unbiased_weight * unbiased.sum() / count,
        }

    def contrastive(self, features: Tensor, labels: Tensor, prototypes: Tensor, classes: Tensor) -> Tensor:
        """L_CP of each sample, [N]; 0 without a prototype of its class.

        Args:
            features: [N, D].
            labels: int64 [N]; negative where there is none.
            prototypes: [J, D].
            classes: int64 [J], the prototypes' classes.
        """
        if not len(classes):
            return features.sum(1) * 0.0
        # [N, J], up to +-50: only the logarithms are summed
        near = unit(features) @ unit(prototypes).T / self.temperature
        own = labels[:, None] == classes
        pull = near.where(own, torch.finfo(near.dtype).min).logsumexp(1)
        return torch.where(own.any(1), near.logsumexp(1) - pull, 0.0)

    def unbiased(self, features: Tensor, labels: Tensor, unbiased: Tensor, valid: Tensor) -> Tensor:
        """L_UP of each sample, [N]; 0 without a prototype of its class.

        Args:
            features: [N, D].
            labels: int64 [N]; negative where there is none.
            unbiased: U, [C, D].
            valid: bool [C], classes that have one.
        """
        known = has_entry(labels, valid)
        apart = torch.where(known[:, None], features - unbiased[labels.clamp(min=0)], 0.0).square()
        return apart.sum(1) if self.unbiased_reduction == "sum" else apart.mean(1)

    def upload(self, local: Local) -> State:
        """Mean embeddings [C, D] and which classes the client has."""
        means, counts = local.scratch[MEANS].means()
        return {PROTOTYPES: means, HELD: counts > 0}

    def _rows(self, local: Local, embedding: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """At most `num_pixels` pixels of the batch, [N, D], and their labels [N]."""
        assert self.num_pixels is not None
        flat = labels.flatten()
        draws = uniform(len(flat), local.scratch[DRAWS], flat.device)
        chosen = stratified(flat, self.num_pixels, draws)
        return embedding.permute(0, 2, 3, 1).flatten(0, 2).index_select(0, chosen), flat[chosen]

    # Server

    def aggregate(self, server: State, uploads: Sequence[Upload]) -> State:
        """The averaged model and the cluster prototypes, in the order of classes."""
        state = super().aggregate(server, uploads)
        means, held = stack(uploads, PROTOTYPES), stack(uploads, HELD).bool()  # [K, C, D], [K, C]
        rows: list[Tensor] = []
        counts: list[int] = []
        for number, owners in enumerate(held.T):
            if bool(owners.any()):
                rows.append(cluster_means(means[owners, number]))
            elif self.keep_missing:
                rows.append(server[PROTOTYPES][server[CLASSES] == number].double())
            else:
                rows.append(means[:0, number])
            counts.append(len(rows[-1]))
        state[PROTOTYPES] = torch.cat(rows).to(server[PROTOTYPES].dtype)
        state[CLASSES] = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        return state


def cluster_means(points: Tensor) -> Tensor:
    """Plain means of the FINCH clusters of prototypes, float64 [K, D] -> [J, D], see `FPL`."""
    return cluster_centres(points, finch(points, "cosine")[-1])
