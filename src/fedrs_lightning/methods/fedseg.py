"""FedSeg: federated segmentation with classes that some clients lack (Miao et al., CVPR 2023, "FedSeg:
class-heterogeneous federated learning for semantic segmentation"; docs/methods.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrs_lightning.errors import ConfigError, check_choices
from fedrs_lightning.methods.base import Buffers, FedAvg, Weighting
from fedrs_lightning.methods.requirements import (
    num_classes,
    require_at_least_one,
    require_not_negative,
    require_positive,
)
from fedrs_lightning.nn.frozen import frozen_output, received_model
from fedrs_lightning.nn.interpolation import bilinear
from fedrs_lightning.nn.precision import full_precision, in_at_least_float32
from fedrs_lightning.nn.prototypes import members, rank_in_class, resize_labels, unit
from fedrs_lightning.nn.surgery import like, network_of
from fedrs_lightning.seeding import torch_stream, uniform
from fedrs_lightning.types import Batch, Local, Output

if TYPE_CHECKING:
    from fedrs_lightning.tasks.base import Task

PresentSet = Literal["batch", "client"]

CHILD = "fedseg"
"""Name of the projection head in the network: `model/fedseg.*`."""

FROZEN, MEMORY, OWNED, DRAWS = "fedseg/frozen", "fedseg/memory", "fedseg/owned", "fedseg/draws"


class FedSeg(FedAvg):
    """Background may be any class that is missing, and pixels are drawn to what the global model knows of their class.

    *Modified cross-entropy.* With q the softmax over all classes and Y the classes present, a pixel of class y in Y
    adds -log q_y, and a pixel of the background -log sum over c not in Y of q_c: it is one of the classes that nobody
    labelled here.

    *Pixel contrast.* A projection head (1x1 convolution, batch norm, ReLU, 1x1 convolution, unit length) on the
    decoder's output embeds pixels. Before local training the received model, in evaluation mode, stores for each image
    m and class c the direction of the mean embedding, M_c. For a pixel a of class c, at the embedding's resolution:

        L_con(a) = mean over m in M_c of -log(e^(<a,m>/tau) / (e^(<a,m>/tau) + sum over n not in M_c of e^(<a,n>/tau)))

    averaged over at most max_anchors / (classes in the batch) random pixels of each class. A second such term takes as
    labels what the received model predicts with confidence, also where there is a label:

        L = L_ce + weight * L_con + weight * L_con,pseudo,    the last two from round `contrast_from_round` on

    Nothing travels but the model, head included, and nothing is kept: the stored vectors are made anew in every round.

    Two label values must not be confused. `ignore_index` of the task marks pixels without information (no data, a class
    left out): they are never supervised, neither by a label nor by a prediction. `background_index` marks FedSeg's
    background. Without one the first term is the task's own loss. The authors' data have the background alone, as 255;
    for that, set `background_index` to the task's `ignore_index`, and those pixels still count in no score.

    Args:
        weight: lambda of both contrasts (authors' code 1, for Pascal VOC 0.1); 0 switches them off.
        temperature: tau (authors' code 0.07).
        background_index: label of the background; null has none (ours: in remote sensing 255 means no data). A class
            may be named too: its pixels then say no more than "one of the classes that are missing here".
        present_set: Y are the classes of the `batch`, as in the authors' code, or of the whole `client`, as in the
            paper.
        max_anchors: pixels of a batch that enter a contrast (authors' code 4096); null takes all.
        threshold: probability from which a prediction of the received model is a label (authors' code 0.8).
        embedding_dim: D (authors' code 256).
        contrast_from_round: first round with contrasts (authors' code: the second).
        weighting: as in FedAvg (paper: samples).
        buffers: as in FedAvg (authors' code: mean).
    """

    needs_labels = "pixel_classes"

    def __init__(
        self,
        weight: float = 1.0,
        temperature: float = 0.07,
        background_index: int | None = None,
        present_set: PresentSet = "batch",
        max_anchors: int | None = 4096,
        threshold: float = 0.8,
        embedding_dim: int = 256,
        contrast_from_round: int = 2,
        weighting: Weighting = "samples",
        buffers: Buffers = "mean",
    ) -> None:
        super().__init__(weighting, buffers)
        check_choices(FedSeg.__init__, locals())
        require_not_negative("0 switches the contrasts off", weight=weight)
        require_positive(temperature=temperature)
        if not 0 < threshold <= 1:
            raise ConfigError(f"threshold: {threshold} is not in (0, 1]")
        require_at_least_one(max_anchors=max_anchors, contrast_from_round=contrast_from_round)
        require_at_least_one(embedding_dim=embedding_dim)
        self.weight, self.temperature = weight, temperature
        self.background_index, self.present_set = background_index, present_set
        self.max_anchors, self.threshold, self.embedding_dim = max_anchors, threshold, embedding_dim
        self.contrast_from_round = contrast_from_round

    # Structure

    def check(self, task: Task) -> None:
        """Refuse a background that no pixel can have: it is neither a class nor the task's `ignore_index`."""
        if task.label_kind != "pixel_classes" or self.background_index is None:
            return
        index, count, ignored = self.background_index, num_classes(task, "FedSeg"), task.ignore_index
        if not 0 <= index < count and index != ignored:
            raise ConfigError(
                f"FedSeg: background_index: {index} is no label; name one of the classes 0 to {count - 1}, null for "
                f"none, or the task's ignore_index {ignored}, as in the authors' data"
            )

    def adapt(self, task: Task) -> None:
        """Add the projection head as `task.model.fedseg`; refuse another task than segmentation, and with a background
        another loss than cross-entropy.
        """
        network = network_of(task)
        channels = getattr(network, "embedding_channels", None)
        if channels is None or task.label_kind != "pixel_classes":
            raise ConfigError(f"FedSeg is defined for segmentation only; {type(task).__name__} is none: take another")
        if self.background_index is not None and getattr(task, "loss", "ce") != "ce":
            raise ConfigError("FedSeg: background_index replaces the cross-entropy; task.init_args.loss must be ce")
        network.add_module(CHILD, projection_head(int(channels), self.embedding_dim).to(**like(network)))

    # Client

    def on_local_start(self, local: Local) -> None:
        """Set out the received model, and store what it sees in the client's images."""
        local.scratch[FROZEN] = received_model(local)
        # a stream of its own: draws from the current one would move the network's own random layers
        local.scratch[DRAWS] = torch_stream("fedseg", "anchors", torch.initial_seed())
        contrasts = local.round >= self.contrast_from_round
        device = next(local.task.parameters()).device
        owned = torch.zeros(local.task.num_classes, dtype=torch.bool, device=device)
        vectors, held = [torch.zeros(0, self.embedding_dim, device=device)], [owned[:0]]
        numbers = torch.arange(len(owned), device=device)
        classes = [numbers[:0]]
        if contrasts or self._needs_owned:
            local.task.eval()
            for batch in local.batches(False):
                owned |= present(self._classes(local, batch["mask"])[0], len(owned))
                if contrasts:
                    means, there = self._remember(local, batch)
                    vectors.append(means.flatten(0, 1))
                    held.append(there.flatten())
                    classes.append(numbers.repeat_interleave(there.shape[1]))
            local.task.train()
        local.scratch[OWNED] = owned
        places = torch.cat(held).nonzero()[:, 0]  # once for all batches: it waits for the device
        local.scratch[MEMORY] = torch.cat(vectors)[places], torch.cat(classes)[places]

    def loss(self, local: Local, batch: Batch, output: Output) -> dict[str, Tensor]:
        """The cross-entropy and the weighted terms `contrast` and `pseudo`, from one forward pass of the network."""
        embedding = embed(local.task, output.embedding)
        size, count = embedding.shape[-2:], local.task.num_classes
        labels, silent = self._classes(local, resize_labels(batch["mask"], size))
        vectors, classes = local.scratch[MEMORY]
        predicted = self._predict(local, batch, size) if len(classes) else torch.full_like(labels, -1)
        terms, limits = {}, (count, self.temperature, self.max_anchors)
        for name, given in (("contrast", labels), ("pseudo", torch.where(silent, -1, predicted))):
            draws = uniform(given.numel(), local.scratch[DRAWS], given.device)
            terms[name] = self.weight * pixel_contrast(embedding, given, vectors, classes, *limits, draws)
        return self._cross_entropy(local, batch, output) | terms

    @property
    def _needs_owned(self) -> bool:
        return self.background_index is not None and self.present_set == "client"

    def _cross_entropy(self, local: Local, batch: Batch, output: Output) -> dict[str, Tensor]:
        if self.background_index is None:
            return super().loss(local, batch, output)
        labels, _ = self._classes(local, batch["mask"])
        owned = local.scratch[OWNED] if self.present_set == "client" else present(labels, local.task.num_classes)
        return {"task": background_cross_entropy(output.logits, labels, batch["mask"] == self.background_index, owned)}

    def _classes(self, local: Local, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Classes with -1 for pixels without one, and which pixels nothing may supervise."""
        background = torch.zeros_like(mask, dtype=torch.bool)
        if self.background_index is not None:
            background = mask == self.background_index
        known = (mask >= 0) & (mask < local.task.num_classes) & ~background
        return torch.where(known, mask, -1), ~known & ~background

    @torch.no_grad()
    def _remember(self, local: Local, batch: Batch) -> tuple[Tensor, Tensor]:
        """Stored vectors of a batch [C, B, D] and which there are [C, B]; the network is the received one."""
        with local.fabric.autocast():
            output = local.task(batch["image"])
            embedding = embed(local.task, output.embedding)
        mask = resize_labels(batch["mask"], embedding.shape[-2:])
        labels, silent = self._classes(local, mask)
        predicted = confident(output.logits, mask.shape[-2:], self.threshold)
        return class_memory(embedding, torch.where((labels < 0) & ~silent, predicted, labels), local.task.num_classes)

    def _predict(self, local: Local, batch: Batch, size: Sequence[int]) -> Tensor:
        """Confident predictions of the received model."""
        output = frozen_output(network_of(local.task), local.scratch[FROZEN], batch["image"])
        return confident(output.logits, size, self.threshold)


def projection_head(channels: int, dimension: int) -> nn.Sequential:
    """1x1 convolution, batch norm, ReLU, 1x1 convolution: [B, channels, h, w] -> [B, dimension, h, w]."""
    return nn.Sequential(
        nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, dimension, 1)
    )


def embed(task: Task, embedding: Tensor) -> Tensor:
    """The decoder's output through the projection head, of unit length and at least single precision, [B, D, h, w]."""
    projected: Tensor = network_of(task).get_submodule(CHILD)(embedding)
    return unit(in_at_least_float32(projected), dim=1)


def present(labels: Tensor, num_classes: int) -> Tensor:
    """Which classes occur, bool [C], from labels of any shape; negative ones are none."""
    return members(labels.flatten(), num_classes).any(0)


def confident(logits: Tensor, size: Sequence[int], threshold: float) -> Tensor:
    """Classes of a probability of at least `threshold`, -1 elsewhere: logits [B, C, H, W] -> int64 [B, h, w]."""
    full = bilinear(in_at_least_float32(logits), size)
    probability, label = full.softmax(1).max(1)
    return torch.where(probability >= threshold, label, -1)


def background_cross_entropy(logits: Tensor, labels: Tensor, background: Tensor, owned: Tensor) -> Tensor:
    """Mean of -log(q_y + 1e-7) over the pixels of a class, and of -log(sum of the q of the classes not owned + 1e-7)
    over the background; 0 without a pixel of either. Where all classes are owned the background does not count.

    Args:
        logits: [B, C, H, W].
        labels: int64 [B, H, W]; negative for pixels without a class.
        background: bool [B, H, W].
        owned: Y, bool [C].
    """
    rows = in_at_least_float32(logits.permute(0, 2, 3, 1).flatten(0, 2))  # [N, C]
    flat, behind = labels.flatten(), background.flatten() & ~owned.all()
    entries = torch.where(behind[:, None], ~owned, members(flat, len(owned)))
    counted = behind | (flat >= 0)
    total = torch.where(counted, -((rows.softmax(1) * entries).sum(1) + 1e-7).log(), 0.0).sum()
    return total / counted.sum().clamp(min=1)


def class_memory(embedding: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Direction of the mean embedding of each class in each image.

    Args:
        embedding: [B, D, h, w].
        labels: int64 [B, h, w]; negative for pixels without a class.
        num_classes: C.

    Returns:
        Vectors [C, B, D] of unit length, and bool [C, B], true where the class occurs in the image.
    """
    inside = members(labels.flatten(1), num_classes)  # [B, N, C]
    sums = embedding.flatten(2) @ inside.to(embedding.dtype)  # [B, D, C]: a mean has the direction of the sum
    return unit(sums.permute(2, 0, 1)), inside.any(1).T


def pixel_contrast(
    embedding: Tensor,
    labels: Tensor,
    vectors: Tensor,
    classes: Tensor,
    num_classes: int,
    temperature: float,
    max_anchors: int | None,
    draws: Tensor,
) -> Tensor:
    """Mean contrast of pixels with the stored vectors, see `FedSeg`; 0 without a pixel or without a vector.

    Args:
        embedding: [B, D, h, w] of unit length.
        labels: int64 [B, h, w]; negative for pixels without a class. Classes without a vector do not count.
        vectors: [M, D] of unit length.
        classes: int64 [M].
        num_classes: C.
        temperature: tau.
        max_anchors: pixels at most, the same number for each class; None takes all.
        draws: [B h w] random numbers that choose them.
    """
    if not len(classes):
        return embedding.sum() * 0.0
    with full_precision(embedding):
        stored = present(classes, num_classes)
        flat = labels.flatten()
        flat = torch.where((flat >= 0) & stored[flat.clamp(min=0)], flat, -1)
        chosen, counted = anchors(flat, num_classes, max_anchors, draws)
        rows = embedding.permute(0, 2, 3, 1).flatten(0, 2).index_select(0, chosen)  # [A, D]
        near = rows @ vectors.to(rows.dtype).T / temperature  # [A, M]
        own = flat[chosen][:, None] == classes
        others = near.masked_fill(own, torch.finfo(near.dtype).min).logsumexp(1, keepdim=True)
        each = (F.softplus(others - near) * own).sum(1) / own.sum(1).clamp(min=1)
        return (each * counted).sum() / counted.sum().clamp(min=1)


def anchors(labels: Tensor, num_classes: int, limit: int | None, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Draw at most limit / (classes that occur) pixels of each class.

    Args:
        labels: int64 [N]; negative for pixels without a class.
        num_classes: C.
        limit: of all classes together; None takes every pixel.
        draws: [N] random numbers.

    Returns:
        Places int64 [min(limit, N)], and bool, which of them count.
    """
    if limit is None:
        return torch.arange(len(labels), device=labels.device), labels >= 0
    quota = limit // present(labels, num_classes).sum().clamp(min=1)
    order, rank = rank_in_class(labels, draws)
    first = rank.argsort(stable=True)[:limit]
    return order[first], (rank[first] < quota) & (labels[order[first]] >= 0)
