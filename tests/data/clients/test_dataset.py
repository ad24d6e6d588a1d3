"""Archives of images as one or several domains: labels, clients, statistics, manifest, and options that do not fit."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedrs_lightning.data import (
    IID,
    ByAttribute,
    Dirichlet,
    Domain,
    FederatedDataset,
    ImageArchive,
    ImageListing,
    OwnImages,
    Potsdam,
    Proportional,
)
from fedrs_lightning.errors import ConfigError, DataError


class Drawn(ImageArchive):
    """Images drawn from their number, without files."""

    name, band_names = "drawn", ("red", "green")

    def __init__(
        self,
        labels,
        classes="ab",
        seed=0,
        side=6,
        root=".",
        published=None,
        clients=None,
        splits=None,
        height=None,
        client_order=None,
        **attributes,
    ):
        self.root, self.labels, self.classes, self.seed, self.shape = (
            root,
            labels,
            classes,
            seed,
            (2, height or side, side),
        )
        self.published, self.clients, self.splits, self.attributes = published, clients, splits, attributes
        self.client_order, self.looked = client_order, []

    @property
    def class_names(self):
        return tuple(self.classes)

    def settings(self):
        return super().settings() | {"seed": self.seed, "shape": list(self.shape)}

    def listing(self):
        clients, splits = (None if own is None else np.asarray(own) for own in (self.clients, self.splits))
        ids = [f"{number}.png" for number in range(len(self.labels))]
        attributes = {name: np.asarray(values) for name, values in self.attributes.items()}
        return ImageListing(
            Path(self.root),
            ids,
            self.labels,
            splits=splits,
            clients=clients,
            client_order=self.client_order,
            attributes=attributes,
        )

    def decode_sample(self, listing, number):
        rng = np.random.default_rng([self.seed, number])
        return {"image": rng.integers(0, 256, self.shape, dtype=np.uint8)}

    def fingerprint(self, listing):
        self.looked.append(len(listing.ids))
        return "drawn"


def pixels(archive, numbers):
    return np.stack([archive.decode_sample(None, number)["image"] for number in numbers]).astype(np.float64) / 255


def opened(dataset, seed=0):
    dataset.prepare()
    federation = dataset.federation(seed)
    assert json.loads(json.dumps(federation.manifest, allow_nan=False)) == federation.manifest
    return federation


def pair(first, second, clients=2, **options):
    """Two archives as domains `one` and `two`."""
    return FederatedDataset(domains=[Domain("one", first, clients), Domain("two", second, clients)], **options)


def sizes(federation):
    return [len(client.train) for client in federation.clients]


# Domains --------------------------------------------------------------------------------------------------------------


def test_every_client_is_tested_on_its_own_domain():
    first, second = Drawn([0, 1] * 15), Drawn([1, 0] * 10, seed=1)
    federation = opened(pair(first, second, clients=3, validation_fraction=0.25, stratify=True))
    assert [client.name for client in federation.clients] == [
        f"{name} {n}" for name in ("one", "two") for n in range(3)
    ]
    assert [client.domain for client in federation.clients] == ["one"] * 3 + ["two"] * 3
    assert sizes(federation) == [6, 6, 6, 4, 4, 4]
    assert (len(federation.test), len(federation.validation)) == (6 + 4, 6 + 4)
    for client in federation.clients:
        where = {federation.sample_ids[index].partition("/")[0] for index in [*client.train, *client.test]}
        assert where == {client.domain}
    one, two = federation.clients[0].test, federation.clients[3].test
    assert np.array_equal(federation.test, np.concatenate([one, two]))
    assert federation.clients[2].test is one  # one array, so that it is predicted once
    assert (federation.protocols, federation.headline) == (("global", "personal_own"), "personal_own")
    batch = federation.source.gather(np.asarray([0, 30]))
    assert batch["label"].tolist() == [0, 1]
    assert np.array_equal(batch["image"].numpy() / 255, np.concatenate([pixels(first, [0]), pixels(second, [0])]))


def test_a_domain_may_say_whose_its_samples_are_and_another_may_not():
    owned = Drawn([0, 1] * 6, clients=["client 1", "x"] * 6, splits=["train"] * 8 + ["test"] * 4)
    domains = [Domain("one", owned), Domain("two", Drawn([0, 1] * 5, seed=1), partition=IID(2))]
    federation = opened(FederatedDataset(domains=domains))
    names = ["one client 1", "one x", "two 0", "two 1"]
    assert [(client.name, len(client.train)) for client in federation.clients] == list(
        zip(names, (4, 4, 4, 4), strict=True)
    )
    assert [len(client.test) for client in federation.clients] == [2, 2, 2, 2]
    rules = [archive["split"]["rule"] for archive in federation.manifest["archives"]]
    assert rules == ["published", "seeded"]
    partitions = [archive["partition"] for archive in federation.manifest["archives"]]
    assert partitions == ["as the archive says", {"class": "IID", "num_clients": 2}]
    group = opened(FederatedDataset(domains=domains[:1], normalise="per_client")).source.extras["group"]
    assert group.tolist() == [0, 1] * 6  # a name that begins with "client" is kept whole


def test_owners_come_in_the_order_of_the_archive():
    archive = Drawn([0] * 8, clients=["10", "9", "b", "b"] * 2, splits=["train"] * 8)
    assert [client.name for client in opened(FederatedDataset(archive)).clients] == ["10", "9", "b"]
    ordered = Drawn([0] * 8, clients=["x", "y"] * 4, splits=["train"] * 8, client_order=("y", "x"))
    assert [client.name for client in opened(FederatedDataset(ordered)).clients] == ["y", "x"]


def test_subfolders_are_domains(tmp_path):
    rng = np.random.default_rng(0)
    for place in ("2019/north", "2020/south"):
        for name in ("field", "water"):
            (tmp_path / place / name).mkdir(parents=True)
            for number in range(5):
                image = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(image).save(tmp_path / place / name / f"{number}.png")
    archive = OwnImages(classes=["field", "water"], in_channels=3)
    options = {"subfolders": ["2019/north", "2020/south"], "root": str(tmp_path), "stratify": True}
    federation = opened(FederatedDataset(archive, num_clients=2, **options))
    assert [client.name for client in federation.clients] == [
        f"{name} {n}" for name in ("2019_north", "2020_south") for n in (0, 1)
    ]
    assert sizes(federation) == [4] * 4
    assert federation.manifest["dataset"] == "2019_north+2020_south"
    named = [
        Domain(name.replace("/", "_"), OwnImages(name, classes=["field", "water"], in_channels=3), 2)
        for name in options["subfolders"]
    ]
    long = opened(FederatedDataset(domains=named, root=str(tmp_path), stratify=True))
    assert json.dumps(long.manifest) == json.dumps(federation.manifest)
    each = FederatedDataset(archive, Dirichlet(2, 5.0, min_samples=1), **options)
    assert [sum(sizes(opened(each))[place : place + 2]) for place in (0, 2)] == [8, 8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "data has neither archive nor domains; name an archive"),
        (
            {"archive": Drawn([0]), "domains": [Domain("a", Drawn([0]), 1)]},
            "archive and domains exclude each other",
        ),
        (
            {"domains": [Domain("a", Drawn([0]), 1)], "partition": IID(2)},
            "partition, subfolders and num_clients belong",
        ),
        ({"domains": [Domain("a", Drawn([0]), 1)], "num_clients": 2}, "each of domains has its own"),
        ({"domains": [Domain("a", Drawn([0]), 1)], "subfolders": ["x"]}, "each of domains has its own"),
        ({"archive": Drawn([0]), "num_clients": 2}, "num_clients is for subfolders; set partition, such as IID"),
        ({"archive": Drawn([0]), "subfolders": [], "num_clients": 1}, "subfolders must name at least one folder"),
        ({"archive": Drawn([0]), "subfolders": ["x", "x"], "num_clients": 1}, "domains need distinct names"),
        (
            {"archive": Drawn([0], root="/data"), "subfolders": ["x"], "num_clients": 1},
            "root of the archive is taken from each of them; make /data relative",
        ),
        (
            {"archive": Drawn([0]), "subfolders": ["x"], "num_clients": 1, "partition": IID(1)},
            "domain x: num_clients and partition exclude each other; leave one out",
        ),
        (
            {"domains": [Domain("a", Drawn([0]), 1), Domain("b", Potsdam(), 1)]},
            "archives of one kind, all of images with labels or all of tiles with masks",
        ),
        (
            {"domains": [Domain("b", Potsdam(), 1), Domain("a", Drawn([0]), 1)]},
            "archives of one kind, all of images with labels or all of tiles with masks",
        ),
        ({"archive": Drawn([0]), "split": "official"}, "split must be published or seeded"),
        ({"archive": Drawn([0]), "protocols": ["own"]}, "protocols must be global, personal_common, .*got 'own'"),
        ({"archive": Drawn([0]), "crop_size": 64}, "crop_size is for archives of tiles, and this one holds images"),
        ({"archive": Drawn([0]), "test_overlap": 8}, "test_overlap is for archives of tiles"),
        ({"archive": Drawn([0]), "random_crops_from": 8}, "random_crops_from is for archives of tiles"),
        ({"archive": Drawn([0]), "ground": "shared"}, "ground is for archives of tiles"),
        ({"archive": Drawn([0]), "client_size": -1}, "client_size must be equal, or at least 1, got -1"),
        ({"archive": Drawn([0]), "train_fraction": 0.0}, r"train_fraction must be in \(0, 1\]"),
        ({"archive": Drawn([0]), "image_size": 0}, "image_size must be 1 to 16384 pixels or null, got 0"),
        ({"archive": Drawn([0]), "storage": "ram"}, "storage must be pack or files"),
        ({"archive": Drawn([0]), "normalise": "published"}, "published: Drawn has no published statistics"),
    ],
)
def test_options_that_do_not_fit(arguments, message):
    with pytest.raises(ConfigError, match=message) as caught:
        FederatedDataset(**arguments)
    assert "\n" not in str(caught.value)


def test_images_that_do_not_fit_together(cache):
    with pytest.raises(ConfigError, match="domains need images with one class each in all of them, or with several"):
        pair(Drawn([0, 1] * 5), Drawn(np.eye(2, dtype=np.float32)[[0, 1] * 5])).prepare()
    with pytest.raises(
        DataError, match=r"0\.png: is 8 x 8 pixels, and an image of domain one 6 x 6; set image_size of the"
    ):
        pair(Drawn([0, 1] * 5), Drawn([0, 1] * 5, side=8)).prepare()
    with pytest.raises(DataError, match=r"0\.png: is 6 x 4 pixels, and quarter turns need squares"):
        FederatedDataset(Drawn([0, 1] * 5, height=4), IID(2)).prepare()
    with pytest.raises(
        ConfigError, match="own_test cuts a common test set of images with one class each; leave it out"
    ):
        pair(Drawn([0, 1] * 5), Drawn([0, 1] * 5), own_test=True).prepare()
    assert list(cache.iterdir()) == []  # all of it is said before anything is packed
    flat = opened(FederatedDataset(Drawn([0, 1] * 5, height=4), IID(2), augment=False))
    assert flat.source.gather(np.arange(2))["image"].shape == (2, 2, 4, 6)


# Labels ---------------------------------------------------------------------------------------------------------------


def test_union_of_classes():
    dataset = pair(Drawn([0, 1] * 10, "ab"), Drawn([0, 1] * 10, "bc"), label_space="union")
    federation = opened(dataset)
    assert dataset.class_names == ("a", "b", "c")
    assert federation.source.extras["label"].tolist() == [0, 1] * 10 + [1, 2] * 10
    assert federation.source.extras["label"].dtype == torch.int64
    train = np.concatenate([client.train for client in federation.clients])
    counts = np.bincount(federation.source.extras["label"].numpy()[train], minlength=3).tolist()
    assert (
        np.sum([client["train"]["class_counts"] for client in federation.manifest["clients"]], axis=0).tolist()
        == counts
    )
    assert [archive["classes"] for archive in federation.manifest["archives"]] == [["a", "b"], ["b", "c"]]


def test_a_mapping_merges_classes_of_images():
    mapping = {"x": ["a", "two:b"], "y": ["one:b", "c"]}
    federation = opened(pair(Drawn([0, 1] * 10, "ab"), Drawn([0, 1] * 10, "bc"), label_space=mapping))
    assert federation.source.extras["label"].tolist() == [0, 1] * 20
    assert federation.manifest["label_space"] == {"rule": mapping, "dropped": {"one": [], "two": []}}
    partial = {"x": ["a"], "y": ["b"]}
    with pytest.raises(ConfigError, match="label_space: names no class for c, which images have; add it"):
        opened(pair(Drawn([0, 1] * 10, "ab"), Drawn([0, 1] * 10, "bc"), label_space=partial))
    unused = opened(pair(Drawn([0, 1] * 10, "ab"), Drawn([0] * 20, "bc"), label_space=partial))  # none is a c
    assert unused.source.extras["label"].tolist() == [0, 1] * 10 + [1] * 20
    assert unused.manifest["label_space"]["dropped"] == {"one": [], "two": ["c"]}


def test_several_labels_in_joint_classes():
    rng = np.random.default_rng(0)
    first, second = (rng.integers(0, 2, (20, 3)).astype(np.float32) for _ in range(2))
    domains = Drawn(first, "abc"), Drawn(second, "cda", seed=1)
    union = opened(pair(*domains, label_space="union")).source.extras["label"].numpy()
    wanted = np.zeros((40, 4), np.float32)
    wanted[:20, :3], wanted[20:, [2, 3, 0]] = first, second
    assert union.dtype == np.float32
    assert np.array_equal(union, wanted)
    mapping = {"x": ["a", "c"], "y": ["two:d", "b"]}
    merged = opened(pair(*domains, label_space=mapping | {"y": ["b"]})).source.extras["label"].numpy()
    assert np.array_equal(merged[:20], np.stack([first[:, [0, 2]].max(1), first[:, 1]], axis=1))
    assert np.array_equal(merged[20:], np.stack([second[:, [0, 2]].max(1), np.zeros(20)], axis=1))  # d is nobody's
    both = opened(pair(*domains, label_space=mapping)).source.extras["label"].numpy()
    assert np.array_equal(both[20:], np.stack([second[:, [0, 2]].max(1), second[:, 1]], axis=1))


def test_domains_with_different_classes_need_a_choice():
    with pytest.raises(ConfigError, match="label_space is needed: domain one has the classes a, b, but two has b, c"):
        pair(Drawn([0], "ab"), Drawn([0], "bc"))


# Clients --------------------------------------------------------------------------------------------------------------

LABELS = np.random.default_rng(3).integers(0, 2, 60).tolist()


@pytest.mark.parametrize(
    "partition", [IID(4), Dirichlet(4, 2.0, min_samples=3), ByAttribute("place"), Proportional(4, [4, 1, 2, 2])]
)
def test_client_size_cuts_at_random_and_the_same_way_again(partition):
    archive = Drawn(LABELS, place=["p", "q", "q", "r"] * 15)
    whole = opened(FederatedDataset(archive, partition))
    smallest = min(sizes(whole))
    for size in ("equal", 2):
        options = {"partition": partition, "client_size": size}
        cut, again = (opened(FederatedDataset(archive, **options)) for _ in range(2))
        assert sizes(cut) == [smallest if size == "equal" else 2] * len(whole.clients)
        for before, after, same in zip(whole.clients, cut.clients, again.clients, strict=True):
            assert set(after.train) <= set(before.train)
            assert np.array_equal(after.train, same.train)
            assert np.all(np.diff(after.train) > 0)
        surplus = cut.manifest["archives"][0]["surplus"]
        assert surplus["num_samples"] == 48 - sum(sizes(cut))
        assert cut.manifest["client_size"] == size
    others = opened(FederatedDataset(archive, partition, client_size=2), seed=1)
    assert [client.train.tolist() for client in others.clients] != [client.train.tolist() for client in cut.clients]
    first = [client.train[:2].tolist() for client in whole.clients]
    assert [client.train.tolist() for client in cut.clients] != first  # at random, and not the first ones
    with pytest.raises(
        ConfigError, match=f"client_size is {smallest + 1}, but the smallest client can have {smallest} training"
    ):
        opened(FederatedDataset(archive, partition, client_size=smallest + 1))


def test_client_size_of_owners_and_of_domains():
    owned = Drawn(LABELS, clients=["x"] * 20 + ["y"] * 40, splits=["train"] * 60)
    assert sizes(opened(FederatedDataset(owned, client_size="equal"))) == [20, 20]
    domains = [Domain("one", Drawn(LABELS), 2), Domain("two", Drawn(LABELS[:20]), partition=IID(2))]
    federation = opened(FederatedDataset(domains=domains, client_size="equal"))
    assert sizes(federation) == [8] * 4
    assert [archive["surplus"]["num_samples"] for archive in federation.manifest["archives"]] == [32, 0]


def test_groups_of_an_attribute_stay_together():
    archive = Drawn(LABELS, place=[f"place {number % 7}" for number in range(60)])
    federation = opened(FederatedDataset(archive, Proportional(3, [1, 1, 2], by="place"), train_fraction=1.0))
    owner = {}
    for client in federation.clients:
        for index in client.train:
            assert owner.setdefault(index % 7, client.id) == client.id
    assert sum(sizes(federation)) == 60
    assert sizes(federation)[2] > max(sizes(federation)[:2])


def test_an_empty_client_is_named_even_where_all_are_cut_to_the_smallest():
    empty = Drawn(LABELS, clients=["x"] * 30 + ["y"] * 30, splits=["train"] * 30 + ["test"] * 30)
    for size in (None, "equal"):
        with pytest.raises(DataError, match=r"client 1 \(y\) has 0 training samples, fewer than min_samples=1"):
            opened(FederatedDataset(empty, client_size=size))


# Statistics -----------------------------------------------------------------------------------------------------------

GIVEN = ([0.5, 0.25], [0.5, 0.125])


def normal(federation, indices):
    return federation.transform(federation.source.gather(indices))["image"].numpy()


def test_null_takes_published_statistics_where_all_archives_have_them():
    first, other = Drawn(LABELS, published=GIVEN), ((1.0, 1.0), (2.0, 4.0))
    lacking = opened(pair(first, Drawn(LABELS, seed=1)))
    assert lacking.manifest["normalisation"]["statistics"] == "federated"
    federation = opened(pair(first, Drawn(LABELS, seed=1, published=other)))
    about = federation.manifest["normalisation"]
    assert about["statistics"] == "published"
    assert about["setup_bytes"] == federation.setup_bytes == {"up": 0, "down": 0}
    both = np.asarray([3, 63])  # one of each domain
    raw = federation.source.gather(both)["image"].numpy() / 255
    mean, std = (np.asarray([GIVEN[kind], other[kind]])[:, :, None, None] for kind in (0, 1))
    assert normal(federation, both) == pytest.approx((raw - mean) / std, abs=1e-5)


@pytest.mark.parametrize("normalise", ["federated", "per_domain", "per_client"])
def test_statistics_of_training_pixels(normalise):
    owners = ["x", "y", "y"] * 20
    archives = Drawn(LABELS, clients=owners), Drawn(LABELS[:30], seed=1, clients=owners[:30])
    domains = [Domain(name, archive) for name, archive in zip(("one", "two"), archives, strict=True)]
    federation = opened(FederatedDataset(domains=domains, normalise=normalise))
    values = np.concatenate([pixels(archives[0], range(60)), pixels(archives[1], range(30))])
    groups = {
        "federated": {"all clients together": federation.clients},
        "per_domain": {
            f"domain {name}": [c for c in federation.clients if c.domain == name] for name in ("one", "two")
        },
        "per_client": {f"client {client.name}": [client] for client in federation.clients},
    }[normalise]
    about = federation.manifest["normalisation"]
    assert list(about["of"]) == list(groups)
    for name, clients in groups.items():
        own = values[np.concatenate([client.train for client in clients])]
        mean, std = own.mean((0, 2, 3)), own.std((0, 2, 3))
        assert about["of"][name]["mean"] == pytest.approx(mean, rel=1e-12)
        assert about["of"][name]["std"] == pytest.approx(std, rel=1e-9)
        for (
            client
        ) in clients:  # its test samples too, which all clients of its domain share only where nobody owns them
            for indices in (client.train, client.test):
                expected = (values[indices] - mean[:, None, None]) / std[:, None, None]
                assert normal(federation, indices) == pytest.approx(expected, abs=1e-5)
    sent = {"up": 4 * 8 * (1 + 2 * 2), "down": 4 * 8 * 2 * 2}
    assert federation.setup_bytes == ({"up": 0, "down": 0} if normalise == "per_client" else sent)


def test_statistics_of_each_client_need_an_owner_of_every_sample(tmp_path, layouts):
    with pytest.raises(ConfigError, match="per_client needs an archive that says whose every sample is; set federated"):
        pair(Drawn(LABELS), Drawn(LABELS), normalise="per_client").prepare()
    layouts.potsdam(tmp_path, ("2_10", "2_13"), 32, 32, ("RGB",), ("full",))
    tiles = FederatedDataset(Potsdam(str(tmp_path)), IID(1), crop_size=16, normalise="per_client")
    with pytest.raises(ConfigError, match="per_client needs an archive that says whose every sample is; set federated"):
        tiles.prepare()


def test_tiles_of_one_archive_need_no_domain(tmp_path, layouts):
    layouts.potsdam(tmp_path, ("2_10", "2_13"), 64, 64, ("RGB",), ("full",))
    for normalise in ("federated", "per_domain"):
        dataset = FederatedDataset(Potsdam(str(tmp_path)), IID(2), crop_size=16, normalise=normalise)
        federation = opened(dataset)
        assert [(client.name, client.domain, len(client.train)) for client in federation.clients] == [
            ("client 0", "", 8),
            ("client 1", "", 8),
        ]
        assert all(client.test is federation.test for client in federation.clients)
        assert federation.sample_ids[0] == "train/2_10/0_0"
        assert list(federation.manifest["normalisation"]["of"]) == ["all clients together"]
        batch = federation.transform(federation.source.gather(np.arange(16)))["image"]
        assert batch.mean(dim=(0, 2, 3)).abs().max() < 1e-4


# Storage and manifest -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalise", ["published", "federated"])
def test_files_give_what_packs_give(normalise, cache):
    archives = Drawn(LABELS, published=GIVEN), Drawn(LABELS[:30], seed=1, published=GIVEN)
    files = opened(pair(*archives, normalise=normalise, storage="files"))
    assert list(cache.iterdir()) == []
    packed = opened(pair(*archives, normalise=normalise))
    order = np.random.default_rng(0).permutation(90)
    one, other = (made.source.gather(order) for made in (files, packed))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(files.transform(one)["image"], packed.transform(other)["image"])
    kept = ("clients", "test", "validation", "normalisation", "labels_sha256")
    assert all(files.manifest[name] == packed.manifest[name] for name in kept)
    assert files.manifest["archives"][0]["samples_sha256"] == [None]
    assert files.manifest["archives"][0]["source_sha256"] == "drawn"
    assert packed.manifest["archives"][0]["source_sha256"] is None


def test_files_are_looked_at_once_more_only_while_they_are_packed():
    dataset = FederatedDataset(Drawn(LABELS), IID(2))
    dataset.prepare()
    looked = dataset.archive.looked
    assert len(looked) == 2  # before and after
    dataset.federation(0)
    assert len(looked) == 2
    again = FederatedDataset(Drawn(LABELS), IID(2))
    again.federation(0)  # as on another rank
    assert len(again.archive.looked) == 1


def test_the_manifest_says_what_decided_a_number(tmp_path):
    archive = Drawn(LABELS, place=["p", "q"] * 30, root=str(tmp_path))
    dataset = FederatedDataset(
        archive, Dirichlet(3, 1.0, min_samples=2), own_test=True, image_size=4, seed=7, label="drawn"
    )
    federation = opened(dataset, seed=2)
    manifest = federation.manifest
    about = manifest["archives"][0]
    assert about["partition"] == {
        "class": "Dirichlet",
        "num_clients": 3,
        "alpha": 1.0,
        "min_samples": 2,
        "max_draws": 1000,
    }
    assert about["split"] == {
        "rule": "seeded",
        "train_fraction": 0.8,
        "validation_fraction": 0.0,
        "stratify": False,
    }
    assert about["root"] == about["folder"] == str(tmp_path.resolve())
    assert about["settings"]["bands"] == ["red", "green"]
    assert (manifest["seed"], manifest["label"], manifest["num_samples"]) == (7, "drawn", 60)
    assert (manifest["image_size"], manifest["augmentation"]) == (4, "flips and quarter turns")
    assert manifest["resize"].startswith("bilinear on float32, antialiased")
    assert manifest["own_test"] == "common test set cut by the clients' class proportions (our rule)"
    assert manifest["protocols"] == ["global", "personal_common", "personal_own", "validation"]
    assert manifest["ground"] is manifest["label_space"] is manifest["client_size"] is None
    for client, stated in zip(federation.clients, manifest["clients"], strict=True):
        counts = np.bincount(np.asarray(LABELS)[client.train], minlength=2).tolist()
        assert stated["train"]["class_counts"] == counts
        assert stated["train"]["num_samples"] == len(client.train) == sum(counts)
        assert stated["test"]["num_samples"] == len(client.test)
    assert federation.headline is None
    plain = opened(FederatedDataset(Drawn(LABELS), IID(2), augment=False)).manifest
    assert (plain["resize"], plain["augmentation"], plain["own_test"]) == (None, None, None)
