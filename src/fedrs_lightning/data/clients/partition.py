"""Partitions of training samples over clients: pure functions, and thin classes that a config can name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf

import numpy as np
from numpy.random import Generator

from fedrs_lightning.errors import ConfigError

LARGEST = 1e12  # concentration: beyond it, draws overflow
Arrays = Mapping[str, np.ndarray]


def iid_partition(num_samples: int, num_clients: int, rng: Generator) -> list[np.ndarray]:
    """Split samples at random into shares whose sizes differ by at most one.

    Returns:
        One sorted index array a client; together they hold each of 0..N-1 exactly once.

    Examples:
        >>> sorted(np.concatenate(iid_partition(5, 2, np.random.default_rng(0))).tolist())
        [0, 1, 2, 3, 4]
    """
    _check_sizes(num_samples, num_clients)
    return [np.sort(share) for share in np.array_split(rng.permutation(num_samples), num_clients)]


def dirichlet_partition(
    labels: np.ndarray, num_clients: int, alpha: float, rng: Generator, min_samples: int = 1, max_draws: int = 1000
) -> list[np.ndarray]:
    """Split each class by proportions drawn from Dir(alpha), so that clients' class mixtures differ.

    For each class, p ~ Dir(alpha 1_K) is drawn and the class's shuffled samples are cut at the cumulative proportions.
    The whole draw is repeated until every client holds `min_samples`; nothing is ever dropped or given twice. Arguments
    as for `Dirichlet`.

    Returns:
        One sorted index array a client; together they hold each of 0..N-1 exactly once.

    Raises:
        ConfigError: impossible sizes, or none of `max_draws` draws gave every client `min_samples`.
    """
    _check_sizes(len(labels), num_clients)
    _check_dirichlet(alpha, min_samples, max_draws)
    if min_samples * num_clients > len(labels):
        needed = f"{num_clients} clients with min_samples={min_samples} need {min_samples * num_clients} samples"
        raise ConfigError(f"Dirichlet: {needed}, but there are {len(labels)}; lower min_samples or num_clients")
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    largest = 0
    for _ in range(max_draws):
        shares: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
        for indices in members:
            proportions = rng.dirichlet(np.full(num_clients, alpha))
            for share, part in zip(shares, cut(rng.permutation(indices), proportions), strict=True):
                share.append(part)
        clients = [np.sort(np.concatenate(share)) for share in shares]
        smallest = min(len(client) for client in clients)
        if smallest >= min_samples:
            return clients
        largest = max(largest, smallest)
    text = f"none of {max_draws} draws with alpha={alpha} gave {num_clients} clients min_samples={min_samples} each"
    remedy = "raise alpha or max_draws, or lower min_samples or num_clients"
    raise ConfigError(f"Dirichlet: {text} (best smallest client: {largest}); {remedy}")


def shard_partition(labels: np.ndarray, num_clients: int, shards_per_client: int, rng: Generator) -> list[np.ndarray]:
    """Sort by class, cut into equal shards, give `shards_per_client` of them to each client (McMahan et al., 2017).

    Samples within a class are shuffled first; shard sizes differ by at most one.

    Returns:
        One sorted index array a client; together they hold each of 0..N-1 exactly once.
    """
    _check_sizes(len(labels), num_clients)
    _check_shards(shards_per_client)
    num_shards = num_clients * shards_per_client
    if num_shards > len(labels):
        wanted = f"{num_clients} clients x {shards_per_client} shards"
        raise ConfigError(f"Shards: {wanted} exceed the {len(labels)} samples; lower shards_per_client or num_clients")
    shuffled = rng.permutation(len(labels))
    shards = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], num_shards)
    given = rng.permutation(num_shards).reshape(num_clients, shards_per_client)
    return [np.sort(np.concatenate([shards[number] for number in row])) for row in given]


def proportional_partition(
    num_samples: int, proportions: Sequence[float], groups: np.ndarray | None, rng: Generator
) -> list[np.ndarray]:
    """Random shares in proportion, each in the order in which it may be cut short from the end.

    Where samples have `groups` [N], those stay together, and a client's samples lie group by group, so that cutting
    short takes whole groups first.

    Returns:
        One index array a client; together they hold each of 0..N-1 exactly once.
    """
    if groups is None:
        return cut(rng.permutation(num_samples), np.asarray(proportions, dtype=np.float64))
    shares: list[list[np.ndarray]] = [[] for _ in proportions]
    sizes = [0] * len(proportions)
    names, first = np.unique(groups, return_index=True)
    for place in rng.permutation(np.argsort(first)):
        members = np.flatnonzero(groups == names[place])
        poorest = min(range(len(sizes)), key=lambda client: ((sizes[client] + 1) / proportions[client], client))
        shares[poorest].append(members)
        sizes[poorest] += len(members)
    return [np.concatenate([np.empty(0, np.int64), *share]) for share in shares]


def attribute_partition(values: np.ndarray) -> dict[str, np.ndarray]:
    """Sorted indices of each value of an attribute, in order of the values (as numbers where all are numbers).

    Examples:
        >>> attribute_partition(np.array(["south", "north", "south"]))
        {'north': array([1]), 'south': array([0, 2])}
    """
    text = np.asarray([str(value) for value in values])
    distinct = sorted(set(text.tolist()))
    with suppress(ValueError):
        if np.isfinite(text.astype(np.float64)).all():
            distinct.sort(key=float)
    return {value: np.flatnonzero(text == value) for value in distinct}


def cut(indices: np.ndarray, proportions: np.ndarray) -> list[np.ndarray]:
    """Cut `indices` at the cumulative proportions: one piece a proportion, nothing lost.

    Examples:
        >>> cut(np.arange(10), np.array([0.5, 0.3, 0.2]))
        [array([0, 1, 2, 3, 4]), array([5, 6, 7]), array([8, 9])]
    """
    bounds = np.rint(np.cumsum(proportions / proportions.sum())[:-1] * len(indices)).astype(np.int64)
    return np.split(indices, bounds)


class Partition(ABC):
    """Rule that splits training samples over clients."""

    ordered = False
    """Whether shares come in the order in which they may be cut short from the end."""

    @abstractmethod
    def split(self, labels: np.ndarray, attributes: Arrays, rng: Generator) -> Arrays:
        """Split the samples.

        Args:
            labels: class of each sample, int [N]; all 0 for crops with masks.
            attributes: other facts of each sample, name to [N].
            rng: source of all draws.

        Returns:
            Client name to int64 indices into `labels`, in the order of client ids.
        """


class IID(Partition):
    """Every client gets an equal random share.

    Args:
        num_clients: number of clients.
    """

    def __init__(self, num_clients: int) -> None:
        _check_clients(num_clients)
        self.num_clients = num_clients

    def split(self, labels: np.ndarray, attributes: Arrays, rng: Generator) -> Arrays:
        """See `iid_partition`."""
        return _named(iid_partition(len(labels), self.num_clients, rng))


class Dirichlet(Partition):
    """Label skew: each class is split by proportions drawn from a Dirichlet distribution.

    Args:
        num_clients: number of clients.
        alpha: concentration, > 0; small values give clients few classes.
        min_samples: smallest number of training samples of a client; the split is drawn again until all have it.
        max_draws: draws to try before giving up.
    """

    def __init__(self, num_clients: int, alpha: float, min_samples: int = 10, max_draws: int = 1000) -> None:
        _check_clients(num_clients)
        _check_dirichlet(alpha, min_samples, max_draws)
        self.num_clients, self.alpha, self.min_samples, self.max_draws = num_clients, alpha, min_samples, max_draws

    def split(self, labels: np.ndarray, attributes: Arrays, rng: Generator) -> Arrays:
        """See `dirichlet_partition`."""
        return _named(dirichlet_partition(labels, self.num_clients, self.alpha, rng, self.min_samples, self.max_draws))


class Shards(Partition):
    """Label skew: samples sorted by class are cut into equal shards, and each client gets a few of them.

    Args:
        num_clients: number of clients.
        shards_per_client: shards of each client; about the number of classes that it sees.
    """

    def __init__(self, num_clients: int, shards_per_client: int = 2) -> None:
        _check_clients(num_clients)
        _check_shards(shards_per_client)
        self.num_clients, self.shards_per_client = num_clients, shards_per_client

    def split(self, labels: np.ndarray, attributes: Arrays, rng: Generator) -> Arrays:
        """See `shard_partition`."""
        return _named(shard_partition(labels, self.num_clients, self.shards_per_client, rng))


class ByAttribute(Partition):
    """One client for each value of a sample attribute, such as its domain or country.

    Args:
        attribute: name of the attribute.
    """

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute

    def split(self, labels: np.ndarray, attributes: Arrays, rng: Generator) -> Arrays:
        """See `attribute_partition`."""
        return attribute_partition(_attribute(self, self.attribute, attributes))


class Proportional(Partition):
    """Random shares, equal or in given proportions, of single samples or of whole groups.

    Args:
        num_clients: number of clients.
        proportions: relative size of each client; null makes them equal.
        by: attribute whose groups stay together, such as `tile`: each goes to the client that has fewest samples for
            its proportion; null splits single samples.
    """

    ordered = True

    def __init__(self, num_clients: int, proportions: list[float] | None = None, by: str | None = None) -> None:
        _check_clients(num_clients)
        fits = proportions is None or (len(proportions) == num_clients and all(0 < each < inf for each in proportions))
        if not fits:
            raise ConfigError(f"proportions needs one positive, finite number a client, got {proportions}")
        self.num_clients, self.proportions, self.by = num_clients, proportions, by

    def split(self, labels: np.ndarray, attributes: Arrays, rng: Generator) -> Arrays:
        """See `proportional_partition`."""
        _check_sizes(len(labels), self.num_clients)
        groups = None if self.by is None else _attribute(self, self.by, attributes)
        return _named(proportional_partition(len(labels), self.proportions or [1.0] * self.num_clients, groups, rng))


def _attribute(partition: Partition, name: str, attributes: Mapping[str, np.ndarray]) -> np.ndarray:
    if name not in attributes:
        known = ", ".join(sorted(attributes)) or "none"
        raise ConfigError(f"{type(partition).__name__}: samples have no attribute '{name}'; they have {known}")
    return attributes[name]


def _named(shares: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"client {number}": share.astype(np.int64) for number, share in enumerate(shares)}


def _check_sizes(num_samples: int, num_clients: int) -> None:
    _check_clients(num_clients)
    if num_clients > num_samples:
        raise ConfigError(f"{num_clients} clients but only {num_samples} training samples; lower num_clients")


def _check_clients(num_clients: int) -> None:
    if num_clients < 1:
        raise ConfigError(f"num_clients must be at least 1, got {num_clients}")


def _check_shards(shards_per_client: int) -> None:
    if shards_per_client < 1:
        raise ConfigError(f"Shards: shards_per_client must be at least 1, got {shards_per_client}")


def _check_dirichlet(alpha: float, min_samples: int, max_draws: int) -> None:
    if not 0 < alpha <= LARGEST:
        raise ConfigError(f"Dirichlet: alpha must be > 0 and at most {LARGEST:g}, got {alpha}")
    if min_samples < 0 or max_draws < 1:
        got = f"got {min_samples} and {max_draws}"
        raise ConfigError(f"Dirichlet: min_samples must be at least 0 and max_draws at least 1, {got}")
