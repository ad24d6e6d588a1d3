"""Class prototypes of samples and pixels: sums, counts, means, anchors, cross-entropy of cosines (docs/methods.md).

Everything is a product of matrices over all classes and pixels, which is fast, and gives the same bits on every run on
a GPU too, where scattered additions do not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrs_lightning.nn.precision import full_precision, in_at_least_float32, pointwise, product
from fedrs_lightning.states import dot, ordered_sum
from fedrs_lightning.types import Batch

EPS = 1e-12
"""Smallest length that `unit` divides by, so that a zero vector stays zero."""


def unit(vectors: Tensor, dim: int = -1) -> Tensor:
    """Vectors over their length along `dim`; zero vectors stay zero.

    Examples:
        >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    return F.normalize(vectors, dim=dim, eps=EPS)


def class_labels(batch: Batch) -> Tensor:
    """The one class of every sample or pixel: `mask`, or `label`, int64."""
    return batch["mask"] if "mask" in batch else batch["label"]


def members(labels: Tensor, num_classes: int) -> Tensor:
    """Whether each label is each class: int64 [...] -> bool [..., C]."""
    return labels[..., None] == torch.arange(num_classes, device=labels.device)


def has_entry(labels: Tensor, valid: Tensor) -> Tensor:
    """Whether each label is a class with an entry: int64 [...] and bool [C] -> bool [...]."""
    return (labels >= 0) & (labels < len(valid)) & valid[labels.clamp(0, len(valid) - 1)]


def resize_labels(labels: Tensor, size: Sequence[int]) -> Tensor:
    """Nearest labels, so that every value, the ignored one included, survives as it is.

    Args:
        labels: int64 [B, H, W].
        size: wanted (h, w).

    Examples:
        >>> resize_labels(torch.tensor([[[0, 0, 255, 255], [1, 1, 2, 2]]]), (1, 2))
        tensor([[[  0, 255]]])
    """
    height, width = labels.shape[-2:]
    if (height, width) == tuple(size):
        return labels
    rows = torch.arange(size[0], device=labels.device) * height // size[0]
    columns = torch.arange(size[1], device=labels.device) * width // size[1]
    return labels[:, rows[:, None], columns]


def class_statistics(
    embedding: Tensor, labels: Tensor, num_classes: int, normalise: bool = True
) -> tuple[Tensor, Tensor]:
    """Sum of the embeddings of each class's pixels, and their number. Pixels with a label outside 0..C-1 do not count.

    Sums run in the embedding's precision within an image and in float64 over images.

    Args:
        embedding: [B, D, h, w].
        labels: int64 [B, h, w].
        num_classes: C.
        normalise: scale each pixel's embedding to unit length first.

    Returns:
        Sums float64 [C, D] and counts int64 [C].
    """
    pixels, flat = embedding.flatten(2), labels.flatten(1)  # [B, D, N], [B, N]
    inside = members(flat, num_classes)  # [B, N, C]
    share = inside.to(pixels.dtype)
    if normalise:
        share = share / torch.linalg.vector_norm(pixels, dim=1).clamp(min=EPS)[..., None]
    return product(pixels, share).double().sum(0).T, inside.sum((0, 1))


def update_anchors(sums: Tensor, counts: Tensor, anchors: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Direction of each class's mean embedding over all clients; a class without a pixel keeps its anchor.

    P_c = Norm(sum_k S_kc / sum_k N_kc). As sums are added, a client counts by its pixels.

    Args:
        sums: [K, C, D] of all clients.
        counts: int64 [K, C].
        anchors: [C, D] so far.
        valid: bool [C], classes that have an anchor so far.

    Returns:
        Anchors in the dtype of `anchors`, and the new `valid`.
    """
    total, pixels = ordered_sum(sums.double()), counts.sum(0)
    seen = pixels > 0
    mean = total / pixels.clamp(min=1)[:, None]
    direction = mean / dot(mean, mean).sqrt().clamp(min=EPS)[:, None]
    return torch.where(seen[:, None], direction.to(anchors.dtype), anchors), valid | seen


def cosines(embedding: Tensor, prototypes: Tensor) -> Tensor:
    """Inner products of every pixel's embedding, scaled to unit length, with prototypes of unit length.

    The products are scaled instead of the embeddings: that spares a copy of them and another of their gradient.

    Args:
        embedding: [B, D, h, w].
        prototypes: [M, D].

    Returns:
        [B, M, h, w].
    """
    length = torch.linalg.vector_norm(embedding, dim=1, keepdim=True).clamp(min=EPS)  # [B, 1, h, w]
    return pointwise(embedding, prototypes) / length


def supervised_labels(labels: Tensor, valid: Tensor) -> Tensor:
    """Flat labels with -1 for pixels that are ignored or whose class has no anchor: [B, h, w] -> int64 [B h w]."""
    return torch.where(has_entry(labels, valid), labels, -1).flatten()


def cosine_cross_entropy(cosine: Tensor, labels: Tensor, valid: Tensor, temperature: float) -> Tensor:
    """Mean cross-entropy of cosines over the temperature, among the classes that have an anchor; 0 without a pixel.

    Args:
        cosine: [B, C, h, w], see `cosines`.
        labels: int64 [B h w], see `supervised_labels`.
        valid: bool [C]; other classes take no part in the softmax.
        temperature: tau > 0.
    """
    rows = cosine.flatten(2).transpose(1, 2).flatten(0, 1)  # [B h w, C]
    # finite, so that there is no nan where no class is valid
    logits = torch.where(valid, rows / temperature, torch.finfo(rows.dtype).min)
    total = F.cross_entropy(logits, labels, ignore_index=-1, reduction="sum")
    return total / (labels >= 0).sum().clamp(min=1)


def pixel_form(embedding: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Embedding and labels of samples or pixels in one form, labels at the embedding's resolution.

    Args:
        embedding: [B, D, h, w], or [B, D], which becomes one image of B x 1 pixels.
        labels: int64 [B, H, W], or [B].

    Returns:
        Embedding [B, D, h, w] in at least single precision and labels [B, h, w].
    """
    embedding = in_at_least_float32(embedding)
    if embedding.dim() == 2:
        return embedding.T[None, :, :, None], labels[None, :, None]
    return embedding, resize_labels(labels, embedding.shape[-2:])


class ClassMeans:
    """Mean embedding of each class over a client's last complete pass through its data, without gradient.

    Args:
        num_classes: C.
        num_samples: of a pass; the first batch after so many begins anew.
        normalise: scale each embedding to unit length first.

    Attributes:
        sums: of the embeddings of each class, float64 [C, D].
        counts: int64 [C].
    """

    sums: Tensor
    counts: Tensor

    def __init__(self, num_classes: int, num_samples: int, normalise: bool = False) -> None:
        self.num_classes, self.num_samples, self.normalise = num_classes, num_samples, normalise
        self._seen = 0

    @torch.no_grad()
    def add(self, embedding: Tensor, labels: Tensor, samples: int) -> None:
        """Count a batch.

        Args:
            embedding: [B, D, h, w], see `pixel_form`.
            labels: int64 [B, h, w]; those outside 0..C-1 do not count.
            samples: images of the batch.
        """
        with full_precision(embedding):
            sums, counts = class_statistics(embedding, labels, self.num_classes, self.normalise)
        if self._seen % self.num_samples:
            sums, counts = sums + self.sums, counts + self.counts
        self.sums, self.counts, self._dtype = sums, counts, embedding.dtype
        self._seen += samples

    def means(self) -> tuple[Tensor, Tensor]:
        """Means [C, D] in the embedding's dtype, 0 for a class without a member, and counts int64 [C]."""
        return (self.sums / self.counts.clamp(min=1)[:, None]).to(self._dtype), self.counts


def merged_means(means: Tensor, counts: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
    """Means over all clients weighted by counts, in the order of the clients; a class without one keeps `previous`.

    Args:
        means: float64 [K, C, D] of all clients.
        counts: float64 [K, C].
        previous: [C, D].

    Returns:
        Means in the dtype of `previous`, and bool [C], classes with a count.
    """
    total = counts.sum(0)
    mean = ordered_sum(counts[..., None] * means) / total.clamp(min=1)[:, None]
    return torch.where((total > 0)[:, None], mean.to(previous.dtype), previous), total > 0


def rank_in_class(labels: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Put the members of every class into a random order.

    Args:
        labels: int64 [N]; negative for those that belong to no class.
        draws: [N], distinct random numbers that decide the order.

    Returns:
        A permutation [N] of the members, sorted by class, and the rank (from 0) of each in its class, N for no class.
    """
    order = draws.argsort()
    order = order[labels[order].argsort(stable=True)]
    ordered = labels[order]
    rank = torch.arange(len(labels), device=labels.device) - torch.searchsorted(ordered, ordered)
    return order, torch.where(ordered >= 0, rank, len(labels))


def stratified(labels: Tensor, limit: int, draws: Tensor) -> Tensor:
    """Draw members of all classes in turns: one of each class, then a second of each, until `limit` or the end.

    Args:
        labels: int64 [N]; negative for those that belong to no class, which come last.
        limit: at most so many.
        draws: [N] random numbers.

    Returns:
        Places int64 [min(limit, N)]; their number does not depend on the labels, so that nothing waits for a GPU.

    Examples:
        >>> stratified(torch.tensor([0, 0, 0, 1]), 2, torch.tensor([0.3, 0.1, 0.2, 0.9]))  # one of each class first
        tensor([1, 3])
    """
    order, rank = rank_in_class(labels, draws)
    return order[rank.argsort(stable=True)[:limit]]
