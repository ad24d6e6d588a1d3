import gc
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedrs_lightning.data import ClientLoader, ClientSplit, Domain, FederatedDataset, Federation, Potsdam, plan_batches
from fedrs_lightning.data.batches.loading import Loading
from fedrs_lightning.data.batches.prefetch import ahead
from fedrs_lightning.data.packs import residence
from fedrs_lightning.data.packs.fields import Field
from fedrs_lightning.data.packs.files import DecodedFiles
from fedrs_lightning.data.packs.pack import Pack
from fedrs_lightning.data.packs.residence import GIB
from fedrs_lightning.data.packs.source import PackedSource, Part
from fedrs_lightning.data.transforms.dihedral import dihedral
from fedrs_lightning.data.transforms.transform import Transform
from fedrs_lightning.engine.settings import FabricSettings
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.seeding import torch_stream

from ..packs.number_files import make_spec


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
    clients = tuple(
        ClientSplit(number, f"client {number}", np.arange(bounds[number], bounds[number + 1]))
        for number in range(len(sizes))
    )
    total = int(bounds[-1])
    return Federation(
        source=Numbers(total + test),
        clients=clients,
        test=np.arange(total, total + test),
        validation=np.empty(0, np.int64),
        transform=Transform([[0.0, 0.0]], [[1.0, 1.0]], augment=augment),
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
        (
            {"clients": (ClientSplit(1, "b", np.asarray([0])), ClientSplit(0, "a", np.asarray([1])))},
            "distinct and ascending",
        ),
        (
            {"clients": (ClientSplit(0, "a", np.asarray([0])), ClientSplit(1, "b", np.asarray([0])))},
            "client 0 .* and in client 1",
        ),
        (
            {"clients": (ClientSplit(0, "a", np.asarray([0]), np.asarray([0])),)},
            "own test set of client 0 and in client 0",
        ),
    ],
)
def test_a_federation_refuses_leaking_splits(change, message):
    good = federation()
    with pytest.raises(DataError, match=message):
        Federation(**{name: getattr(good, name) for name in Federation.__dataclass_fields__} | change)


# Residence ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def packed(tmp_path, cache):
    """Opens the same pack anew, with a federation of two clients and a test set."""
    spec = make_spec(tmp_path / "source")

    def build(files=False):
        samples = DecodedFiles(spec) if files else Pack(spec.pack(cache))
        return Federation(
            source=PackedSource([Part(samples)], {"label": torch.arange(150) % 3}),
            clients=(ClientSplit(0, "a", np.arange(50)), ClientSplit(1, "b", np.arange(50, 110))),
            test=np.arange(110, 150),
            validation=np.empty(0, np.int64),
            transform=Transform([[0.0, 0.0]], [[1.0, 1.0]], stored={"image": ("a", "b")}),
            manifest={},
            sample_ids=spec.ids,
        )

    return build


def everything(made, loading=None):
    """All batches of two epochs and of the test set, and the loader."""
    loader = ClientLoader(made, 16, None, 0, "cpu", loading=loading)
    batches = [batch for epoch in range(2) for client in (0, 1) for batch in loader.epoch(client, 1, epoch)]
    return batches + [batch for _, batch in loader.ordered(made.test, 16)], loader


def assert_same(some, others):
    assert len(some) == len(others) == 14 + 3
    for one, other in zip(some, others, strict=True):
        assert list(one) == list(other)
        for name, value in one.items():
            assert torch.equal(
                value.view(torch.int16) if value.dtype == torch.uint16 else value,
                other[name].view(torch.int16) if value.dtype == torch.uint16 else other[name],
            )


@pytest.mark.parametrize(
    "loading",
    [
        Loading("map", 1.0),
        Loading("map", 1.0, prefetch=2),
        Loading("ram"),
        Loading("device", prefetch=1),
        Loading("map", prefetch=3),
    ],
    ids=str,
)
def test_batches_do_not_depend_on_where_and_when_they_are_loaded(packed, loading):
    expected, _ = everything(packed())
    found, loader = everything(packed(), loading)
    assert_same(expected, found)
    assert loader.note is None
    assert all(array.mapped == (loading.residence == "map") for array in loader.federation.source.shelf.arrays)


def test_files_are_loaded_ahead_too(packed):
    expected, _ = everything(packed())
    found, loader = everything(packed(files=True), Loading("ram", prefetch=2))
    assert_same(expected, found)
    assert loader.note == "fabric.residence=ram: the samples come from no pack, so they stay where they are"


def test_what_is_too_large_stays_mapped_and_says_so(packed):
    loader = ClientLoader(packed(), 16, None, 0, "cpu", loading=Loading("ram", 5e-6 * GIB))
    assert loader.note == (
        "fabric.residence=ram: the packs hold 0.00 GiB, more than fabric.residence_budget=5e-06; they stay mapped, "
        "which changes no result"
    )
    assert all(array.mapped for array in loader.federation.source.shelf.arrays)
    assert FabricSettings(residence="device", residence_budget=2.5, prefetch=1).loading == Loading(
        "device", 2.5 * GIB, 1
    )
    assert FabricSettings().loading == Loading()
    for options, message in (
        ({"residence_budget": 0.0}, "residence_budget=0.0 must be above 0"),
        ({"prefetch": -1}, "fabric.prefetch=-1 must be"),
    ):
        with pytest.raises(ConfigError, match=message):
            FabricSettings(**options)


def test_a_second_loader_leaves_the_budget_of_the_first(packed):
    """As the one that counts a run's cost, on the same packs."""
    made = packed()
    ClientLoader(made, 16, None, 0, "cpu", loading=Loading("map", 64 * GIB))
    second = ClientLoader(made, 4, 0, 0, "cpu")
    assert made.source.shelf.budget == 64 * GIB
    assert (second.note, second.prefetch) == (None, 0)


@pytest.mark.parametrize(("free", "total", "room"), [(80, 80, 60), (70, 80, 50), (20, 80, 0), (5, 80, 0), (0, 0, 0)])
def test_packs_leave_a_quarter_of_a_device_to_the_model(free, total, room):
    assert residence.room_beside_the_model(free * GIB, total * GIB) == room * GIB


def mapped_file_pages():
    """Resident bytes of mapped files of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile"))


def test_mapped_pages_stay_within_the_budget(tmp_path):
    rows, row, budget = 4000, 40_000, 30e6
    with (tmp_path / "large.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (rows, row)})
        for number in range(rows):
            file.write(bytes([number % 251]) * row)
    array = residence.MappedArray(tmp_path / "large.npy")
    shelf = residence.Shelf([array])
    before, most = mapped_file_pages(), {}
    for allowed in (budget, 1e12):
        shelf.settle("map", allowed, torch.device("cpu"))
        shelf.release()
        most[allowed] = 0
        for part in torch.randperm(rows, generator=torch.Generator().manual_seed(0)).split(50):
            out = shelf.empty(Field((row,), "uint8"), 50, False)
            shelf.select(array, part, out)
            assert torch.equal(out[:, -1], (part % 251).to(torch.uint8))
            most[allowed] = max(most[allowed], mapped_file_pages() - before)
    assert most[budget] < 1.2 * budget
    assert most[1e12] > 0.9 * rows * row
    assert shelf.settle("ram", 1e12, torch.device("cpu")) is None
    assert mapped_file_pages() - before < 0.1 * rows * row


def test_crops_of_several_packs_move_together(tmp_path, layouts, cache):
    layouts.potsdam(tmp_path, ("2_10", "2_11", "2_13"))
    rgb, irrg = (Potsdam(str(tmp_path), modality=name, labels_train="full") for name in ("rgb", "irrg"))
    made = FederatedDataset(domains=[Domain("a", rgb, 1), Domain("b", irrg, 1)], crop_size=32, ground="shared")
    made.prepare()
    mapped, moved = made.federation(0), made.federation(0)
    assert residence.settle(moved.source, "device", 1e9, torch.device("cpu")) is None
    assert not any(array.mapped for array in moved.source.shelf.arrays)
    for indices in (np.asarray([0, len(mapped.source) - 1, 3]), mapped.test[:5]):
        one, other = mapped.source.gather(indices), moved.source.gather(indices)
        assert all(torch.equal(one[name], other[name]) for name in ("image", "mask", "domain"))


# Prefetch -------------------------------------------------------------------------------------------------------------


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_items_come_in_order_and_what_fails_is_raised_after_those_before(depth):
    def make():
        yield from range(5)
        raise DataError("file 5 is broken")

    got = []
    with pytest.raises(DataError, match="file 5 is broken"):
        got.extend(ahead(make, depth))
    assert list(ahead(lambda: iter(range(7)), depth)) == list(range(7))
    assert list(ahead(lambda: iter(()), depth)) == []
    assert threads() == []


def test_a_thread_works_ahead_and_not_further():
    made = []

    def make():
        for number in range(10):
            made.append(number)
            yield number

    items = ahead(make, 2)
    assert next(items) == 0
    deadline = time.monotonic() + 5
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert made == [0, 1, 2, 3]  # one given, two waiting, one in hand
    items.close()
    assert threads() == []


def test_whoever_stops_early_leaves_no_thread_behind(packed):
    loader = ClientLoader(packed(), 4, None, 0, "cpu", loading=Loading(prefetch=2))
    closed = []
    original = loader._copies

    def watched(parts):
        try:
            yield from original(parts)
        finally:
            closed.append(True)

    loader._copies = watched
    batches = loader.epoch(0, 1, 0)
    next(batches)
    assert len(threads()) == 1
    del batches
    gc.collect()
    assert threads() == []
    for _ in loader.ordered(loader.federation.test, 4):
        break
    gc.collect()
    assert (threads(), closed) == ([], [True, True])
