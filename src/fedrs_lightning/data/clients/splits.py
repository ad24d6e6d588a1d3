"""Random shares of samples: for training, validation and test data, and own test data of clients."""

from __future__ import annotations

import numpy as np

from fedrs_lightning.data.clients.partition import cut


def divide(
    indices: np.ndarray, strata: np.ndarray, fraction: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A random share of `indices` and the rest, both sorted, drawn within each stratum.

    `strata` are of every sample of the data set, int [N]; `fraction` is rounded to the nearest sample of each stratum.

    Examples:
        >>> classes = np.array([0, 0, 0, 0, 1, 1])
        >>> test, train = divide(np.arange(6), classes, 0.5, np.random.default_rng(0))
        >>> np.bincount(classes[test]), np.bincount(classes[train])
        (array([2, 1]), array([2, 1]))
    """
    first, second = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for stratum in np.unique(strata):
        group = indices[strata[indices] == stratum]
        shuffled, size = rng.permutation(group), round(fraction * len(group))
        first.append(shuffled[:size])
        second.append(shuffled[size:])
    return np.sort(np.concatenate(first)), np.sort(np.concatenate(second))


def cut_by_class_shares(
    labels: np.ndarray, trains: list[np.ndarray], test: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray | None]:
    """Cut a common test set into own test sets with each client's class proportions.

    Within each class, the shuffled test samples are cut in proportion to the clients' training samples of that class.
    Samples of a class that nobody trains on go to nobody. A client that gets no sample has None.
    """
    parts: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in trains]
    for label in np.unique(labels):
        counts = np.asarray([np.count_nonzero(labels[train] == label) for train in trains], dtype=np.float64)
        shuffled = rng.permutation(test[labels[test] == label])
        if counts.sum() > 0:
            for part, piece in zip(parts, cut(shuffled, counts), strict=True):
                part.append(piece)
    merged = [np.sort(np.concatenate(part)) for part in parts]
    return [own if len(own) else None for own in merged]
