import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrs_lightning.data import IID, ByAttribute, Dirichlet, Proportional, Shards
from fedrs_lightning.data.clients.partition import (
    attribute_partition,
    cut,
    dirichlet_partition,
    iid_partition,
    proportional_partition,
    shard_partition,
)
from fedrs_lightning.errors import ConfigError

label_arrays = st.lists(st.integers(0, 6), min_size=1, max_size=150).map(np.asarray)


def assert_partition(shares, total):
    assert all(share.dtype == np.int64 and np.all(np.diff(share) > 0) for share in shares)
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(total))


def deal(kind, labels, num_clients, alpha, seed):
    rng = np.random.default_rng(seed)
    if kind == "iid":
        return iid_partition(len(labels), num_clients, rng)
    if kind == "dirichlet":
        return dirichlet_partition(labels, num_clients, alpha, rng, min_samples=0)
    return shard_partition(labels, num_clients, 1 + seed % 2, rng)


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(["iid", "dirichlet", "shards"]),
    labels=label_arrays,
    num_clients=st.integers(1, 20),
    alpha=st.floats(0.01, 100),
    seed=st.integers(0, 2**32),
)
def test_is_a_seeded_partition_that_ignores_global_generators(kind, labels, num_clients, alpha, seed):
    if num_clients * (1 + seed % 2 if kind == "shards" else 1) > len(labels):
        with pytest.raises(ConfigError, match="num_clients"):
            deal(kind, labels, num_clients, alpha, seed)
        return
    first = deal(kind, labels, num_clients, alpha, seed)
    assert len(first) == num_clients
    assert_partition(first, len(labels))
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    random.random(), np.random.random(), torch.rand(1)
    again = deal(kind, labels, num_clients, alpha, seed)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    random.setstate(states[0])
    torch.set_rng_state(states[2])


@given(values=st.lists(st.sampled_from(["a", "b", "10", "9", "x y"]), min_size=1, max_size=40))
def test_one_client_per_attribute_value(values):
    shares = attribute_partition(np.asarray(values))
    assert_partition(list(shares.values()), len(values))
    assert all(values[index] == name for name, share in shares.items() for index in share)


def test_numeric_attributes_are_ordered_as_numbers():
    assert list(attribute_partition(np.asarray([10, 9, 100, 9]))) == ["9", "10", "100"]
    assert list(attribute_partition(np.asarray(["b", "10", "9"]))) == ["10", "9", "b"]


@given(
    proportions=st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda p: sum(p) > 1e-6),
    total=st.integers(0, 200),
)
def test_cut_rounds_each_bound_to_the_nearest_sample(proportions, total):
    weights = np.asarray(proportions)
    pieces = cut(np.arange(total), weights)
    assert np.array_equal(np.concatenate(pieces), np.arange(total))
    exact = np.cumsum(weights) / weights.sum() * total
    assert np.all(np.abs(np.cumsum([len(piece) for piece in pieces]) - exact) <= 0.5 + 1e-6)


@pytest.mark.parametrize("alpha", [0.3, 2.0])
def test_dirichlet_shares_have_the_moments_of_the_distribution(alpha):
    """A client's share of a class is Beta(alpha, (K - 1) alpha): mean 1/K, variance (K - 1) / (K^2 (K alpha + 1))."""
    clients, classes, size = 5, 40, 500
    labels = np.repeat(np.arange(classes), size)
    shares = []
    for seed in range(25):
        for client in dirichlet_partition(labels, clients, alpha, np.random.default_rng(seed)):
            shares.append(np.bincount(labels[client], minlength=classes) / size)
    shares = np.asarray(shares)
    draws = shares.size
    variance = (clients - 1) / (clients**2 * (clients * alpha + 1))
    assert shares.mean() == pytest.approx(1 / clients, abs=1e-12)  # nothing is lost
    assert shares.var() == pytest.approx(variance, rel=6 / draws**0.5)
    # Shares of one class on two clients: covariance -variance / (K - 1).
    table = shares.reshape(25, clients, classes) - 1 / clients
    assert np.mean(table[:, 0] * table[:, 1]) == pytest.approx(-variance / (clients - 1), rel=0.35)


def test_dirichlet_redraws_until_everybody_has_enough():
    labels = np.repeat(np.arange(10), 30)
    plain = dirichlet_partition(labels, 10, 0.3, np.random.default_rng(0), min_samples=0)
    assert min(map(len, plain)) < 12  # otherwise the next line shows nothing
    smallest = [
        min(map(len, dirichlet_partition(labels, 10, 0.3, np.random.default_rng(seed), min_samples=12)))
        for seed in range(40)
    ]
    assert min(smallest) == 12


def test_dirichlet_says_what_to_change_when_it_cannot():
    labels = np.repeat(np.arange(4), 10)
    with pytest.raises(
        ConfigError,
        match=r"none of 3 draws.*alpha=0\.05.*best smallest client.*raise alpha or max_draws.*lower min_samples",
    ):
        dirichlet_partition(labels, 8, 0.05, np.random.default_rng(0), min_samples=5, max_draws=3)
    with pytest.raises(ConfigError, match="need 48 samples, but there are 40; lower min_samples or num_clients"):
        dirichlet_partition(labels, 8, 1.0, np.random.default_rng(0), min_samples=6)
    with pytest.raises(ConfigError, match="alpha must be > 0"):
        dirichlet_partition(labels, 2, 0.0, np.random.default_rng(0))


def test_shards_limit_the_classes_of_a_client():
    labels = np.repeat(np.arange(10), 60)[np.random.default_rng(1).permutation(600)]
    shares = shard_partition(labels, 10, 2, np.random.default_rng(0))
    assert {len(share) for share in shares} == {60}
    assert max(len(np.unique(labels[share])) for share in shares) <= 4  # a shard touches at most two classes
    others = shard_partition(labels, 10, 2, np.random.default_rng(1))
    seen = [tuple(np.unique(labels[share])) for share in shares]
    assert seen != [tuple(np.unique(labels[share])) for share in others]  # shards are dealt at random, not in order
    with pytest.raises(ConfigError, match="exceed the 600 samples"):
        shard_partition(labels, 301, 2, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="shards_per_client must be at least 1"):
        shard_partition(labels, 3, 0, np.random.default_rng(0))


def test_classes_name_their_clients_and_pass_their_arguments_on():
    labels, rng = np.repeat(np.arange(3), 40), np.random.default_rng
    assert list(IID(3).split(labels, {}, rng(0))) == ["client 0", "client 1", "client 2"]
    wanted = dirichlet_partition(labels, 4, 0.5, rng(7), min_samples=11)
    dealt = Dirichlet(4, 0.5, min_samples=11).split(labels, {}, rng(7))
    assert all(np.array_equal(a, b) for a, b in zip(dealt.values(), wanted, strict=True))
    assert len(Shards(5, 3).split(labels, {}, rng(0))) == 5
    assert list(ByAttribute("country").split(labels, {"country": np.asarray(["at"] * 60 + ["fi"] * 60)}, rng(0))) == [
        "at",
        "fi",
    ]
    with pytest.raises(ConfigError, match="no attribute 'season'; they have country"):
        ByAttribute("season").split(labels, {"country": labels}, rng(0))
    with pytest.raises(ConfigError, match="num_clients must be at least 1"):
        IID(0).split(labels, {}, rng(0))


# Proportional ---------------------------------------------------------------------------------------------------------

group_arrays = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=60).map(np.asarray)
proportion_lists = st.lists(st.floats(0.1, 9), min_size=1, max_size=6)


@given(groups=group_arrays, proportions=proportion_lists, seed=st.integers(0, 2**32))
def test_whole_groups_go_to_whoever_has_fewest_for_its_proportion(groups, proportions, seed):
    shares = proportional_partition(len(groups), proportions, groups, np.random.default_rng(seed))
    assert_partition([np.sort(share) for share in shares], len(groups))
    owners = {name: number for number, share in enumerate(shares) for name in groups[share]}
    assert sum(len(np.unique(groups[share])) for share in shares) == len(owners)  # a group has one owner
    for share in shares:  # a group's samples lie together, so that cutting short takes whole groups first
        runs = np.flatnonzero(groups[share][1:] != groups[share][:-1])
        assert len(runs) == max(0, len(np.unique(groups[share])) - 1)


def test_groups_are_given_one_after_the_other():
    """Plain search: groups in the order of a permutation of their first appearance."""
    groups, proportions = np.asarray(list("ccbbbaaaaddde")), [2.0, 1.0]
    order = np.random.default_rng(4).permutation(np.asarray(["c", "b", "a", "d", "e"], dtype=object))
    wanted, sizes = [[], []], [0, 0]
    for name in order:
        poorest = 0 if (sizes[0] + 1) / 2 <= (sizes[1] + 1) / 1 else 1
        wanted[poorest] += np.flatnonzero(groups == name).tolist()
        sizes[poorest] = len(wanted[poorest])
    found = proportional_partition(len(groups), proportions, groups, np.random.default_rng(4))
    assert [share.tolist() for share in found] == wanted


@given(total=st.integers(0, 300), proportions=proportion_lists, seed=st.integers(0, 2**32))
def test_single_samples_are_cut_from_one_permutation(total, proportions, seed):
    shares = proportional_partition(total, proportions, None, np.random.default_rng(seed))
    assert np.array_equal(np.concatenate(shares), np.random.default_rng(seed).permutation(total))
    bounds = np.cumsum(proportions)[:-1] / np.sum(proportions) * total
    assert np.all(np.abs(np.cumsum([len(share) for share in shares])[:-1] - bounds) <= 0.5 + 1e-6)


def test_proportional_names_clients_and_refuses_bad_proportions():
    labels = np.zeros(12, np.int64)
    equal = Proportional(3).split(labels, {}, np.random.default_rng(0))
    assert {name: len(share) for name, share in equal.items()} == {"client 0": 4, "client 1": 4, "client 2": 4}
    tiles = np.repeat(["x", "y"], 6)
    whole = Proportional(2, by="tile").split(labels, {"tile": tiles}, np.random.default_rng(0))
    assert sorted(tiles[share[0]] for share in whole.values()) == ["x", "y"]
    assert Proportional.ordered
    assert not any(kind.ordered for kind in (IID, Dirichlet, Shards, ByAttribute))
    with pytest.raises(ConfigError, match="Proportional: samples have no attribute 'tile'; they have month"):
        Proportional(2, by="tile").split(labels, {"month": labels}, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="num_clients must be at least 1, got 0"):
        Proportional(0)
    for proportions in ([1.0], [1.0, 0.0], [1.0, -1.0]):
        with pytest.raises(ConfigError, match="one positive, finite number a client"):
            Proportional(2, proportions)
