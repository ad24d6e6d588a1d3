"""Who trains and is tested on which samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedrs_lightning.data.archives.archive import ImageListing, TileArchive
from fedrs_lightning.data.clients.domain import DomainSamples, single_labels
from fedrs_lightning.data.clients.federation import ClientSplit
from fedrs_lightning.data.clients.partition import attribute_partition
from fedrs_lightning.data.clients.splits import cut_by_class_shares
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.seeding import numpy_stream

Ground = Literal["disjoint", "shared"]
Shares = dict[str, np.ndarray]


@dataclass(frozen=True)
class AssignmentRule:
    """How samples go to clients; see `FederatedDataset`."""

    client_size: Literal["equal"] | int | None
    own_test: bool
    min_samples: int
    ground: Ground


@dataclass(frozen=True)
class Assignment:
    """Clients with their samples; sample numbers run through the domains in order.

    Attributes:
        clients: ids ascending.
        validation: held out of training, int64, sorted.
        test: common test set, int64, sorted.
        tests: of each domain.
        surplus: of each domain, training samples that no client has.
        ground: of each domain, the training tiles that it may use; None for images.
        terrains: domains that show the same terrain, where there are at least two.
    """

    clients: tuple[ClientSplit, ...]
    validation: np.ndarray
    test: np.ndarray
    tests: list[np.ndarray]
    surplus: list[np.ndarray]
    ground: list[list[str] | None]
    terrains: list[list[int]]


def assign(samples: Sequence[DomainSamples], rule: AssignmentRule, alone: bool, seed: int) -> Assignment:
    """Give every client its samples, without decoding one.

    Args:
        samples: of each domain.
        rule: how.
        alone: the one archive is no domain: its clients share its test set, unless they have test data of their own.
        seed: of all draws.

    Raises:
        ConfigError: the partition cannot split the samples.
        DataError: a client gets too few, or an image has no client; names it.
    """
    terrains, ground = _terrains(samples), _ground(samples, rule, seed)
    able = []
    for own, tiles in zip(samples, ground, strict=True):  # training samples on the domain's own ground
        kept = slice(None) if tiles is None else np.isin(own.attributes["tile"][own.train].astype(str), tiles)
        able.append(own.train[kept])
    shares = [_shares(own, train, alone, seed) for own, train in zip(samples, able, strict=True)]
    shares = _cut_short(shares, samples, rule, seed)
    starts = np.cumsum([0, *(own.count for own in samples)])
    clients: list[ClientSplit] = []
    tests: list[np.ndarray] = []
    surplus: list[np.ndarray] = []
    for own, named, train, start in zip(samples, shares, able, starts, strict=False):
        trains = [np.sort(share) for share in named.values()]
        tests.append(own.test + start)
        surplus.append(np.setdiff1d(train, np.concatenate(trains)) + start)
        of_clients = _own_tests(own, list(named), trains, rule, alone, seed)
        for name, mine, test in zip(named, trains, of_clients, strict=True):
            full = name if alone else name_in(own, name)
            if len(mine) < (needed := max(1, rule.min_samples)):
                place = f"{own.listing.folder}: client {len(clients)} ({full})"
                remedy = "give it more, leave it out, or change split or partition (fewer clients, larger alpha)"
                text = f"{place} has {len(mine)} training samples, fewer than min_samples={needed}; {remedy}"
                raise DataError(text) if own.owners is not None else ConfigError(text)
            if test is not None:  # a test set that clients share is one array, so that it is predicted once
                test = tests[-1] if test is own.test else test + start
            clients.append(ClientSplit(len(clients), full, mine + start, test, "" if alone else own.domain.name))
    validation = np.concatenate([own.validation + start for own, start in zip(samples, starts, strict=False)])
    common = tests[0] if len(tests) == 1 else np.concatenate(tests)
    return Assignment(tuple(clients), validation, common, tests, surplus, ground, terrains)


def name_in(samples: DomainSamples, client: str) -> str:
    """Name of a domain's client in the federation."""
    return f"{samples.domain.name} {client if samples.owners is not None else client.removeprefix('client ')}"


def _terrains(samples: Sequence[DomainSamples]) -> list[list[int]]:
    grouped: dict[str, list[int]] = {}
    for number, own in enumerate(samples):
        if isinstance(own.domain.archive, TileArchive):
            grouped.setdefault(own.domain.archive.ground, []).append(number)
    return [members for members in grouped.values() if len(members) > 1]


def _ground(samples: Sequence[DomainSamples], rule: AssignmentRule, seed: int) -> list[list[str] | None]:
    tiles: list[list[str] | None] = [None] * len(samples)
    for number, own in enumerate(samples):
        if own.labels is None:
            tiles[number] = list(dict.fromkeys(own.attributes["tile"][own.train].tolist()))
    for members in _terrains(samples) if rule.ground == "disjoint" else []:
        rng = numpy_stream(seed, "domains", "ground", samples[members[0]].domain.name)
        weights = [getattr(samples[number].domain.partition, "num_clients", 1) for number in members]
        given = _share_ground([tiles[number] or [] for number in members], weights, rng)
        for number, mine in zip(members, given, strict=True):
            tiles[number] = mine
    return tiles


def _share_ground(tiles: Sequence[Sequence[str]], weights: Sequence[int], rng: np.random.Generator) -> list[list[str]]:
    """Give each tile of a terrain to one of the archives that show it, in proportion to the weights.

    Where shares are equal, a tile goes to the archive with fewest.
    """
    known = sorted({tile for own in tiles for tile in own})
    result: list[list[str]] = [[] for _ in tiles]
    for tile in (known[number] for number in rng.permutation(len(known))):
        able = [((len(result[n]) + 1) / weights[n], len(own), n) for n, own in enumerate(tiles) if tile in own]
        result[min(able)[-1]].append(tile)
    if not all(result):
        needed = f"a tile for each of {len(tiles)} domains of one terrain"
        raise ConfigError(f"ground: disjoint needs {needed}, got {len(known)}; set shared")
    return [sorted(own) for own in result]


def _shares(samples: DomainSamples, train: np.ndarray, alone: bool, seed: int) -> Shares:
    """Client name to its training samples."""
    partition, owners = samples.domain.partition, samples.owners
    if owners is not None:
        assert isinstance(samples.listing, ImageListing)
        nobody = train[owners[train] == ""]
        if len(nobody):
            raise DataError(f"{samples.where(nobody[0])}: a training image without client; name one")
        order = samples.listing.client_order or tuple(attribute_partition(owners[owners != ""]))
        return {name: train[owners[train] == name] for name in order}
    assert partition is not None
    labels = np.zeros(samples.count, np.int64) if samples.labels is None else single_labels(samples.labels)
    attributes = {name: values[train] for name, values in samples.attributes.items()}
    # The words name a random stream: others would split the data of every finished run anew.
    words = (samples.domain.archive.name, "partition") if alone else ("domains", "deal", samples.domain.name)
    found = partition.split(labels[train], attributes, numpy_stream(seed, *words))
    return {name: train[share] for name, share in found.items()}


def _cut_short(shares: list[Shares], samples: Sequence[DomainSamples], rule: AssignmentRule, seed: int) -> list[Shares]:
    if rule.client_size is None:
        return shares
    largest = min(len(share) for named in shares for share in named.values())
    if largest == 0:
        return shares  # a client has nothing, which is said by its name
    size = largest if rule.client_size == "equal" else int(rule.client_size)
    if size > largest:
        text = f"but the smallest client can have {largest} training samples only; lower it"
        raise ConfigError(f"client_size is {size}, {text}")
    result = []
    for named, own in zip(shares, samples, strict=True):
        ordered = own.domain.partition is not None and own.domain.partition.ordered
        rng = numpy_stream(seed, "client size", own.domain.name)
        result.append({name: (share if ordered else rng.permutation(share))[:size] for name, share in named.items()})
    return result


def _own_tests(
    samples: DomainSamples, names: Sequence[str], trains: list[np.ndarray], rule: AssignmentRule, alone: bool, seed: int
) -> list[np.ndarray | None]:
    """Own test data of each client."""
    owners = samples.owners
    if rule.own_test:
        assert samples.labels is not None
        rng = numpy_stream(seed, samples.domain.archive.name, "own_test")
        return cut_by_class_shares(samples.labels, trains, samples.test, rng)
    if owners is not None:
        tests = [samples.test[owners[samples.test] == name] for name in names]
        return [test if len(test) else None for test in tests]
    return [None if alone and samples.labels is not None else samples.test for _ in names]
