"""k-means and FINCH against scikit-learn, a plain loop, and their own rules."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from fedrs_lightning.nn.clustering import finch, kmeans, nearest_cluster, renumber, zscore


def blobs(seed, centres, each=5, spread=0.1, dim=6):
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(centres, dim)) * 3
    truth = np.arange(centres * each) % centres
    return torch.from_numpy(middle[truth] + spread * rng.normal(size=(len(truth), dim))), torch.from_numpy(truth)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("centres", [1, 2, 3, 5])
def test_both_find_well_separated_groups(centres):
    points, truth = blobs(1, centres)
    assert torch.equal(kmeans(points, centres, generator()), truth)
    points, truth = blobs(1, centres, each=3)  # among three points, first neighbours link all
    assert torch.equal(finch(points, "euclidean")[0], truth)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 500), count=st.integers(2, 5))
def test_kmeans_is_as_good_as_scikit_learn(seed, count):
    points = torch.from_numpy(np.random.default_rng(seed).normal(size=(20, 4)))
    labels = kmeans(points, count, generator())
    inertia = sum(float((points[labels == c] - points[labels == c].mean(0)).square().sum()) for c in labels.unique())
    assert inertia <= KMeans(count, n_init=10, random_state=0).fit(points.numpy()).inertia_ * 1.1
    nearest = nearest_cluster(points, points, labels)
    assert torch.equal(nearest, labels)  # Lloyd's algorithm has come to rest


def test_kmeans_is_deterministic_and_copes_with_few_or_equal_points():
    points, _ = blobs(2, 4, spread=2.0)
    assert torch.equal(kmeans(points, 3, generator(7)), kmeans(points, 3, generator(7)))
    assert kmeans(torch.zeros(4, 3), 2, generator()).tolist() == [0] * 4
    assert kmeans(torch.ones(1, 3), 2, generator()).tolist() == [0]
    assert sorted(kmeans(torch.tensor([[0.0], [1.0]]), 5, generator()).tolist()) == [0, 1]


def plain_first_step(points, distance):
    """FINCH's first partition by a loop: link first neighbours, then collect what is connected."""
    count = len(points)
    if distance == "cosine":
        points = points / np.linalg.norm(points, axis=1, keepdims=True)
        apart = 1 - points @ points.T
    else:
        apart = ((points[:, None] - points) ** 2).sum(-1)
    np.fill_diagonal(apart, np.inf)
    labels = list(range(count))
    for i, j in enumerate(apart.argmin(1)):
        labels = [labels[j] if label == labels[i] else label for label in labels]
    return labels


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(2, 25), distance=st.sampled_from(["cosine", "euclidean"]))
def test_finch_links_first_neighbours(seed, count, distance):
    points = np.random.default_rng(seed).normal(size=(count, 3))
    partitions = finch(torch.from_numpy(points), distance)
    assert torch.equal(partitions[0], renumber(torch.tensor(plain_first_step(points, distance))))
    sizes = [int(partition.max()) + 1 for partition in partitions]
    assert sizes == sorted(set(sizes), reverse=True)
    assert sizes[-1] > 1 or len(sizes) == 1
    for finer, coarser in pairwise(partitions):
        assert all(len(coarser[finer == c].unique()) == 1 for c in finer.unique())  # clusters are only ever merged


def test_finch_of_one_or_two_points():
    assert [partition.tolist() for partition in finch(torch.ones(1, 3))] == [[0]]
    assert [partition.tolist() for partition in finch(torch.eye(2))] == [[0, 0]]


def test_zscore_uses_the_reference_and_drops_what_does_not_vary():
    points = torch.tensor([[1.0, 5.0], [3.0, 5.0], [9.0, 7.0]], dtype=torch.float64)
    assert zscore(points, points[:2]).tolist() == [[-1.0, 0.0], [1.0, 0.0], [7.0, 0.0]]


def test_clusters_are_numbered_by_their_first_member():
    assert renumber(torch.tensor([7, 2, 7, 0, 2])).tolist() == [0, 1, 0, 2, 1]
