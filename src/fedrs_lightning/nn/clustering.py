"""Cluster a few hundred points: seeded k-means, and FINCH, which finds the number of clusters itself."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedrs_lightning.states import dot, ordered_sum

Distance = Literal["cosine", "euclidean"]


def kmeans(
    points: Tensor, num_clusters: int, generator: torch.Generator, restarts: int = 64, iterations: int = 100
) -> Tensor:
    """Lloyd's algorithm from several k-means++ starts, all at once; the start with the smallest inertia wins.

    Args:
        points: [N, P].
        num_clusters: wanted number; with fewer distinct points there are fewer clusters.
        generator: of the starts, on the CPU.
        restarts: number of starts.
        iterations: at most so many.

    Returns:
        int64 [N], clusters numbered by their first member.

    Examples:
        >>> kmeans(torch.tensor([[0.0], [9.0], [0.1], [9.1]]), 2, torch.Generator().manual_seed(0))
        tensor([0, 1, 0, 1])
    """
    points = points.double().cpu()
    centres = _starts(points, min(num_clusters, len(points)), generator, restarts)  # [R, k, P]
    labels = _squared_distances(centres, points).argmin(1)  # [R, N]
    for _ in range(iterations):
        members = torch.nn.functional.one_hot(labels, centres.shape[1]).double()[..., None]  # [R, N, k, 1]
        sizes = members.sum(1)  # [R, k, 1]
        total = torch.zeros_like(centres)
        for number, point in enumerate(points):
            total += members[:, number] * point
        centres = torch.where(sizes > 0, total / sizes.clamp(min=1), centres)
        moved = _squared_distances(centres, points).argmin(1)
        if torch.equal(moved, labels):
            break
        labels = moved
    inertia = ordered_sum(_squared_distances(centres, points).amin(1), 1)
    return renumber(labels[inertia.argmin()])


def _starts(points: Tensor, count: int, generator: torch.Generator, restarts: int) -> Tensor:
    """k-means++ (Arthur and Vassilvitskii, 2007): a point is the next centre with odds like its squared distance."""
    draws = torch.rand(count, restarts, generator=generator, dtype=torch.float64)
    chosen = points[(draws[0] * len(points)).long()][:, None]  # [R, 1, P]
    for number in range(1, count):
        mass = _squared_distances(chosen, points).amin(1).cumsum(1)  # [R, N]
        index = torch.searchsorted(mass, draws[number, :, None] * mass[:, -1:], right=True).clamp(max=len(points) - 1)
        chosen = torch.cat([chosen, points[index]], dim=1)
    return chosen


def _squared_distances(centres: Tensor, points: Tensor) -> Tensor:
    """[..., P] and [N, P] -> [..., N]."""
    return torch.stack([ordered_sum((centres - point).square(), -1) for point in points], dim=-1)


def finch(points: Tensor, distance: Distance = "cosine") -> list[Tensor]:
    """Partitions by first neighbours, from fine to coarse (Sarfraz et al., 2019, arXiv:1902.11266; docs/methods.md).

    Every point is linked to its nearest other point; connected points are a cluster; the means of the clusters' points
    are linked again. It ends when a step lowers the number of clusters by one, and a step that does not lower it, or
    leaves a single cluster, is discarded. Ties go to the lower index.

    Args:
        points: [N, P].
        distance: `cosine`, or `euclidean`.

    Returns:
        One int64 [N] a partition, clusters numbered by their first member; the last one is the coarsest.

    Examples:
        >>> finch(torch.tensor([[0.0], [1.0], [50.0], [51.0], [60.0], [61.0]]), "euclidean")[-1]
        tensor([0, 0, 1, 1, 2, 2])
    """
    if len(points) == 1:
        return [torch.zeros(1, dtype=torch.int64)]
    points = points.double().cpu()
    partitions = [_linked(points, distance)]
    while len(partitions) == 1 or int(partitions[-2].max() - partitions[-1].max()) > 1:
        labels = partitions[-1]
        if int(labels.max()) == 0:
            break
        coarser = _linked(cluster_centres(points, labels), distance)[labels]
        if int(coarser.max()) == 0 or int(coarser.max()) >= int(labels.max()):
            break
        partitions.append(renumber(coarser))
    return partitions


def _linked(points: Tensor, distance: Distance) -> Tensor:
    """Connected components of the graph that links each point to its first neighbour."""
    if distance == "cosine":
        points = points / dot(points, points).sqrt().clamp(min=1e-12)[:, None]  # then |a - b|^2 = 2 (1 - cos(a, b))
    neighbour = _squared_distances(points, points).fill_diagonal_(torch.inf).argmin(1)
    labels = torch.arange(len(points))
    while True:
        least = torch.minimum(labels, labels[neighbour])
        least = least.scatter_reduce(0, neighbour, least, "amin")
        if torch.equal(least, labels):
            return renumber(labels)
        labels = least


def cluster_centres(points: Tensor, labels: Tensor) -> Tensor:
    """Plain means of the clusters' points, [N, P] and int64 [N] -> [J, P]."""
    clusters = [points[labels == number] for number in range(int(labels.max()) + 1)]
    return torch.stack([ordered_sum(members) / len(members) for members in clusters])


def nearest_cluster(points: Tensor, reference: Tensor, labels: Tensor) -> Tensor:
    """Cluster whose centre is nearest to each point, int64 [M]; centres are plain means of the reference points.

    Args:
        points: float64 [M, P].
        reference: float64 [N, P], points whose clusters are known.
        labels: int64 [N], their clusters.
    """
    return _squared_distances(cluster_centres(reference, labels), points).argmin(0)


def zscore(points: Tensor, reference: Tensor) -> Tensor:
    """Points less the reference points' mean, over their population deviation, entry by entry.

    An entry in which the reference points do not differ tells nothing and becomes 0.

    Args:
        points: float64 [M, P].
        reference: float64 [N, P].

    Examples:
        >>> points = torch.tensor([[1.0, 5.0], [3.0, 5.0]], dtype=torch.float64)
        >>> zscore(points, points)
        tensor([[-1.,  0.],
                [ 1.,  0.]], dtype=torch.float64)
    """
    mean = ordered_sum(reference) / len(reference)
    deviation = (ordered_sum((reference - mean).square()) / len(reference)).sqrt()
    return torch.where(deviation > 1e-12, (points - mean) / deviation.clamp(min=1e-12), 0.0)


def renumber(labels: Tensor) -> Tensor:
    """The same partition with clusters numbered 0, 1, ... by their first member.

    Examples:
        >>> renumber(torch.tensor([7, 2, 7, 5]))
        tensor([0, 1, 0, 2])
    """
    _, compact = labels.unique(return_inverse=True)
    places = torch.arange(len(labels)).expand(int(compact.max()) + 1, -1)
    first = torch.where(compact == torch.arange(len(places))[:, None], places, len(labels)).amin(1)
    return first.argsort().argsort()[compact]
