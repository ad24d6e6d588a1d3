from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedrs_lightning.data import ClientLoader, ClientSplit, Federation, plan_batches
from fedrs_lightning.data.transform import ImageTransform, dihedral
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.seeding import torch_stream


class Numbers:
    """Samples whose pixels tell their index."""

    def __init__(self, count):
        self.image = torch.arange(count * 32, dtype=torch.int32).reshape(count, 2, 4, 4)
        self.label = torch.arange(count)

    def __len__(self):
        return len(self.label)

    def gather(self, indices, *, pin_memory=False):
        wanted = torch.as_tensor(indices)
        return {"image": self.image[wanted], "label": self.label[wanted]}


def federation(sizes=(13, 1, 30), test=7, augment=True):
    bounds = np.cumsum([0, *sizes])
    clients = tuple(ClientSplit(number, f"client {number}", np.arange(bounds[number], bounds[number + 1])) for number in range(len(sizes)))
    total = int(bounds[-1])
    return Federation(
        source=Numbers(total + test),
        clients=clients,
        test=np.arange(total, total + test),
        validation=np.empty(0, np.int64),
        transform=ImageTransform([0.0, 0.0], [1.0, 1.0], augment=augment),
        manifest={},
        sample_ids=[f"tile{number}" for number in range(total + test)],
    )


def loader(batch_size=8, min_last_batch=None, seed=0, **options):
    return ClientLoader(federation(**options), batch_size, min_last_batch, seed, "cpu")


@given(num_samples=st.integers(0, 3000), batch_size=st.integers(1, 600), rule=st.one_of(st.none(), st.integers(0, 200)))
def test_batches_use_every_sample_and_none_is_too_small(num_samples, batch_size, rule):
    sizes = plan_batches(num_samples, batch_size, rule)
    smallest = max(4, batch_size // 4) if rule is None else rule
    assert sum(sizes) == num_samples
    assert all(size > 0 for size in sizes)
    assert len(sizes) in {num_samples // batch_size, -(-num_samples // batch_size)}
    if len(sizes) > 1:
        assert min(sizes) >= min(smallest, batch_size)
    if smallest == 0:
        assert len(sizes) == -(-num_samples // batch_size)
        assert max(sizes, default=0) <= batch_size


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ((33, 16, None), [17, 16]),
        ((35, 16, None), [18, 17]),
        ((36, 16, None), [16, 16, 4]),
        ((33, 16, 0), [16, 16, 1]),
        ((1, 16, None), [1]),
        ((0, 16, None), []),
        ((600, 512, None), [600]),
        ((640, 512, None), [512, 128]),
    ],
)
def test_batch_sizes_by_hand(arguments, sizes):
    assert plan_batches(*arguments) == sizes


@pytest.mark.parametrize("arguments", [(10, 0, None), (10, 4, -1)])
def test_refuses_impossible_batches(arguments):
    with pytest.raises(ConfigError, match=r"batch_size|min_last_batch"):
        plan_batches(*arguments)


def test_an_epoch_holds_each_sample_once_in_an_order_of_its_own():
    load = loader()
    orders = []
    for round_, epoch in [(1, 0), (1, 1), (2, 0)]:
        batches = list(load.epoch(2, round_, epoch))
        assert [len(batch["label"]) for batch in batches] == load.batch_sizes(2) == plan_batches(30, 8)
        orders.append(torch.cat([batch["label"] for batch in batches]).tolist())
        assert sorted(orders[-1]) == list(range(14, 44))
    assert len({tuple(order) for order in orders}) == 3
    assert load.num_steps(2, 5) == 5 * len(load.batch_sizes(2))


def by_sample(batches):
    return {int(label): image for batch in batches for label, image in zip(batch["label"], batch["image"], strict=True)}


def test_what_a_sample_looks_like_depends_on_nothing_but_seed_round_client_epoch():
    reference = by_sample(loader(batch_size=8).epoch(2, 3, 1))
    other = loader(batch_size=5, min_last_batch=0)
    list(other.epoch(0, 3, 1))  # another client first
    torch.rand(7)
    again = by_sample(other.epoch(2, 3, 1))
    assert reference.keys() == again.keys()
    assert all(torch.equal(reference[number], again[number]) for number in reference)
    for changed in (loader(seed=1).epoch(2, 3, 1), loader().epoch(2, 4, 1), loader().epoch(2, 3, 0)):
        assert any(not torch.equal(reference[number], image) for number, image in by_sample(changed).items())


def test_draws_belong_to_samples_and_order_does_not_depend_on_augmentation():
    load = loader()
    plain, augmented = list(load.epoch(2, 1, 0, augment=False)), list(load.epoch(2, 1, 0))
    assert [batch["label"].tolist() for batch in plain] == [batch["label"].tolist() for batch in augmented]
    draws = load.transform.draw(30, torch_stream(0, "augment", 1, 2, 0))
    for before, after in zip(plain, augmented, strict=True):
        assert torch.equal(dihedral(before["image"], draws[before["label"] - 14]), after["image"])
    assert Counter(map(tuple, draws.tolist())).most_common(1)[0][1] < 10


def test_evaluation_batches_are_shared_out_by_number():
    load = loader(test=23)
    indices = load.federation.test
    alone = dict(load.ordered(indices, 4))
    assert sorted(alone) == list(range(6))
    assert torch.cat([alone[number]["label"] for number in range(6)]).tolist() == indices.tolist()
    shared = [dict(load.ordered(indices, 4, first, 4)) for first in range(4)]
    assert sorted(number for part in shared for number in part) == list(range(6))
    assert all(torch.equal(batch["image"], alone[number]["image"]) for part in shared for number, batch in part.items())
    assert list(load.ordered(indices[:0], 4)) == []


def test_channels_last():
    made = federation()
    batch = next(ClientLoader(made, 8, None, 0, "cpu", channels_last=True).epoch(2, 1, 0))
    plain = next(ClientLoader(made, 8, None, 0, "cpu").epoch(2, 1, 0))
    assert torch.equal(batch["image"], plain["image"])
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert plain["image"].is_contiguous()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": np.arange(40, 51)}, "sample tile40 is in client 2 \\(train\\) and in the common test set"),
        ({"validation": np.asarray([2])}, "sample tile2 is in client 0"),
        ({"test": np.asarray([44, 99])}, "names sample 99, but there are 51"),
        ({"test": np.asarray([44, 44])}, "names a sample twice"),
        ({"clients": (ClientSplit(1, "b", np.asarray([0])), ClientSplit(0, "a", np.asarray([1])))}, "distinct and ascending"),
        ({"clients": (ClientSplit(0, "a", np.asarray([0])), ClientSplit(1, "b", np.asarray([0])))}, "client 0 .* and in client 1"),
        ({"clients": (ClientSplit(0, "a", np.asarray([0]), np.asarray([0])),)}, "own test set of client 0 and in client 0"),
    ],
)
def test_a_federation_refuses_leaking_splits(change, message):
    good = federation()
    with pytest.raises(DataError, match=message):
        Federation(**{name: getattr(good, name) for name in Federation.__dataclass_fields__} | change)
