import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser

from fedrs_lightning.data import (
    ClientLoader,
    Domain,
    FederatedDataset,
    LoveDA,
    OwnRasters,
    Potsdam,
    Proportional,
    Vaihingen,
)
from fedrs_lightning.data.clients.domain import CropRule
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.synth.aerial.sample import AerialSample
from fedrs_lightning.synth.sample import write_sample

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "data"
TRAIN, TEST = ("2_10", "2_11", "2_12", "3_10"), ("2_13", "2_14")


@pytest.fixture(scope="module")
def data(tmp_path_factory, layouts):
    """Potsdam (4 + 2 tiles of 96), Vaihingen (3 + 1 areas) and LoveDA (2 images each of 64). Read only."""
    root = tmp_path_factory.mktemp("data")
    layouts.potsdam(root / "Potsdam", TRAIN + TEST)
    layouts.vaihingen(root / "Vaihingen", ("1", "3", "5", "2"), ((61, 83), (40, 57), (72, 52)))
    layouts.loveda(root / "LoveDA")
    return root


@pytest.fixture(autouse=True)
def packed_once(data, monkeypatch):
    """One cache for all tests, since the same crops serve many of them."""
    monkeypatch.setenv("FEDRS_CACHE", str(data / "cache"))


def potsdam(clients: int | Proportional = 2, modality="rgb"):
    return domain(f"potsdam_{modality}", Potsdam("Potsdam", modality), clients)


def vaihingen(clients: int | Proportional = 2, modality="irrg"):
    return domain(f"vaihingen_{modality}", Vaihingen("Vaihingen", modality), clients)


def domain(name, archive, clients):
    return Domain(name, archive, clients) if isinstance(clients, int) else Domain(name, archive, partition=clients)


def made(data, domains, seed=0, **settings):
    options = {"crop_size": 32, "client_size": "equal"} | settings
    dataset = FederatedDataset(domains=domains, root=str(data), **options)
    dataset.prepare()
    return dataset, dataset.federation(seed)


def test_equal_clients_and_the_surplus(data):
    dataset, federation = made(data, [potsdam(), vaihingen()])
    packs = [part.pack for part in federation.source.parts]
    size = min(len(packs[0]) // 2, len(packs[2]) // 2)
    assert [len(client.train) for client in federation.clients] == [size] * 4
    assert [client.domain for client in federation.clients] == ["potsdam_rgb"] * 2 + ["vaihingen_irrg"] * 2
    for number, about in enumerate(federation.manifest["archives"]):
        assert about["surplus"]["num_samples"] == len(packs[2 * number]) - 2 * size
        trained = {
            federation.sample_ids[index]
            for client in federation.clients[2 * number : 2 * number + 2]
            for index in client.train
        }
        assert trained.isdisjoint(about["surplus"]["ids"])
        assert len(trained | set(about["surplus"]["ids"])) == len(packs[2 * number])
    assert (federation.protocols, federation.headline) == (("global", "personal_own"), "personal_own")
    assert federation.clients[0].test is federation.clients[1].test
    assert np.array_equal(federation.test, np.concatenate([federation.clients[0].test, federation.clients[2].test]))
    assert (dataset.num_classes, dataset.in_channels) == (5, 3)


def test_the_same_seed_gives_the_same_clients_and_another_one_others(data):
    _, first = made(data, [potsdam(), vaihingen()])
    _, again = made(data, [potsdam(), vaihingen()])
    _, other = made(data, [potsdam(), vaihingen()], seed=1)
    pinned = FederatedDataset(
        domains=[potsdam(), vaihingen()], root=str(data), crop_size=32, client_size="equal", seed=0
    )
    fixed = pinned.federation(1)
    assert json.dumps(first.manifest) == json.dumps(again.manifest)
    assert not np.array_equal(first.clients[0].train, other.clients[0].train)
    assert np.array_equal(first.clients[0].train, fixed.clients[0].train)  # its own seed overrides the run's


def test_every_test_pixel_counts_once(data):
    _, federation = made(data, [potsdam(), vaihingen()], test_overlap=8)
    loader = ClientLoader(federation, 4, None, 0, "cpu")
    counts = np.zeros(256, int)
    for _, batch in loader.ordered(federation.test, 5):
        counts += np.bincount(batch["mask"].numpy().ravel(), minlength=256)
    wanted = np.zeros(256, int)
    for archive in Potsdam(str(data / "Potsdam")), Vaihingen(str(data / "Vaihingen")):
        for tile in archive.listing().test:
            with tile.open() as opened:
                wanted += np.bincount(opened.ids.rows(0, tile.size[0]).ravel(), minlength=256)
    assert np.array_equal(counts[:5], wanted[:5])
    assert federation.manifest["test"]["class_pixels"] == wanted[:5].tolist()


def test_shared_and_disjoint_ground(data):
    """The same tiles in two modalities: either each tile is one domain's, or both see all."""
    pair = [potsdam(), potsdam(modality="irrg")]
    _, apart = made(data, pair)
    tiles = [set(about["tiles_train"]) for about in apart.manifest["archives"]]
    assert tiles[0].isdisjoint(tiles[1])
    assert tiles[0] | tiles[1] == set(TRAIN)
    assert [len(own) for own in tiles] == [2, 2]
    seen = [
        {
            apart.sample_ids[index].split("/")[2]
            for client in apart.clients
            if client.domain == name
            for index in client.train
        }
        for name in ("potsdam_rgb", "potsdam_irrg")
    ]
    assert seen[0] <= tiles[0]
    assert seen[1] <= tiles[1]
    assert [about["tiles_test"] for about in apart.manifest["archives"]] == [list(TEST)] * 2
    _, shared = made(data, pair, ground="shared")
    assert [set(about["tiles_train"]) for about in shared.manifest["archives"]] == [set(TRAIN)] * 2
    assert len(shared.clients[0].train) == 2 * len(apart.clients[0].train)
    _, other = made(data, [potsdam(), vaihingen()])
    assert [one.manifest["ground"] for one in (apart, shared, other)] == ["disjoint", "shared", None]
    three = [
        potsdam(1),
        potsdam(1, "irrg"),
        Domain("third", Potsdam("Potsdam", skip_tiles=["2_11", "2_12", "3_10"]), 1),
    ]
    _, federation = made(data, three)
    assert "2_10" in federation.manifest["archives"][2]["tiles_train"]
    lonely = [Domain(str(number), Potsdam("Potsdam", skip_tiles=["2_11", "2_12", "3_10"]), 1) for number in range(2)]
    with pytest.raises(
        ConfigError, match="ground: disjoint needs a tile for each of 2 domains of one terrain, got 1; set shared"
    ):
        made(data, lonely)


def whole(clients):
    return Proportional(clients, by="tile")


def test_whole_tiles_go_to_clients(data):
    _, federation = made(data, [potsdam(whole(2)), vaihingen(whole(3))])
    for name in ("potsdam_rgb", "vaihingen_irrg"):
        owners: dict[str, set[int]] = {}
        for client in federation.clients:
            if client.domain == name:
                for index in client.train:
                    owners.setdefault(federation.sample_ids[index].split("/")[2], set()).add(client.id)
        assert all(len(clients) == 1 for clients in owners.values())
    assert len({len(client.train) for client in federation.clients}) == 1
    for size in (None, "equal"):
        with pytest.raises(ConfigError, match=r"client 3 \(vaihingen_irrg 3\) has 0 training samples"):
            made(data, [vaihingen(whole(4))], client_size=size)


def test_unequal_clients(data):
    proportions = [8.0, 4.0, 1.0]
    _, federation = made(data, [potsdam(Proportional(3, proportions)), vaihingen(2)], client_size=None)
    sizes = [len(client.train) for client in federation.clients]
    total = len(federation.source.parts[0].pack)
    assert sizes[:3] == np.diff(np.rint(np.cumsum([0, *proportions]) / 13 * total)).astype(int).tolist()
    assert sum(sizes[3:]) == len(federation.source.parts[2].pack)
    assert [about["surplus"]["num_samples"] for about in federation.manifest["archives"]] == [0, 0]
    _, small = made(data, [potsdam(), vaihingen()], client_size=3)
    assert [len(client.train) for client in small.clients] == [3] * 4
    with pytest.raises(ConfigError, match="client_size is 999, but the smallest client can have"):
        made(data, [potsdam(), vaihingen()], client_size=999)


def test_union_of_label_spaces_says_which_classes_a_sample_can_have(data):
    dataset, federation = made(
        data, [Domain("loveda", LoveDA("LoveDA", "both"), 1), potsdam(1, "irrg")], label_space="union"
    )
    assert dataset.class_names[:3] == ("background", "building", "road")
    assert dataset.num_classes == 11
    loader = ClientLoader(federation, 64, 0, 0, "cpu")
    loveda, aerial = next(loader.epoch(0, 1, 0)), next(loader.epoch(1, 1, 0))
    assert [dataset.class_names[number] for number in torch.nonzero(aerial["classes"][0])[:, 0]] == [
        "building",
        "impervious surfaces",
        "low vegetation",
        "tree",
        "car",
    ]
    assert loveda["classes"][0].tolist() == [True] * 7 + [False] * 4
    for batch in (loveda, aerial):
        known = set(torch.nonzero(batch["classes"][0])[:, 0].tolist()) | {255}
        assert set(batch["mask"].unique().tolist()) == known
    mixed = next(loader.ordered(federation.test[[0, -1]], 2))[1]
    assert mixed["classes"].sum(1).tolist() == [7, 5]
    assert sum(federation.manifest["test"]["class_pixels"]) == int(
        (federation.source.gather(federation.test)["mask"] != 255).sum()
    )


def test_a_mapping_merges_classes_and_ignores_the_rest(data):
    mapping = {"building": ["building"], "plants": ["loveda:forest", "potsdam_irrg:tree", "low vegetation"]}
    dataset, federation = made(
        data, [Domain("loveda", LoveDA("LoveDA", "rural"), 1), potsdam(1, "irrg")], label_space=mapping
    )
    assert dataset.class_names == ("building", "plants")
    assert federation.manifest["label_space"]["dropped"]["potsdam_irrg"] == ["impervious surfaces", "car"]
    part = federation.source.parts[2]
    wanted = np.asarray([255, 0, 1, 1, 255] + [255] * 251, np.uint8)[part.pack.mapped["mask"].array]
    indices = np.arange(federation.source.offsets[2], federation.source.offsets[3])
    assert np.array_equal(federation.source.gather(indices)["mask"], wanted)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (None, "label_space is needed: domain loveda has the classes background, building"),
        ("joint", "label_space must be union"),
        ({"a": ["castle"]}, "no class 'castle' in any domain; known are loveda: background"),
        ({"a": ["mars:tree"]}, "names domain 'mars', but the domains are loveda, potsdam_rgb"),
        ({"a": ["building"], "b": ["loveda:building"]}, "class 'building' of loveda is in two joint classes"),
        ({"a": []}, "class 'a' takes in no class"),
        ({"a": ["forest"]}, "takes in no class of domain potsdam_rgb"),
    ],
)
def test_label_spaces_are_checked(choice, message):
    with pytest.raises(ConfigError, match=message):
        FederatedDataset(domains=[Domain("loveda", LoveDA("x", "rural"), 1), potsdam()], label_space=choice)


def test_statistics_of_all_and_of_each_domain(data):
    for normalise in ("federated", "per_domain"):
        _, federation = made(data, [potsdam(), vaihingen()], normalise=normalise)
        about = federation.manifest["normalisation"]
        assert federation.setup_bytes == {
            "up": len(federation.clients) * 8 * 7,
            "down": len(federation.clients) * 8 * 6,
        }
        for number, name in enumerate(("potsdam_rgb", "vaihingen_irrg")):
            values = []
            for client in federation.clients:
                if normalise == "federated" or client.domain == name:
                    for index in client.train:  # pixels beyond the edge of a tile do not count
                        place = 0 if client.domain == "potsdam_rgb" else 2
                        pack, local = federation.source.parts[place].pack, index - federation.source.offsets[place]
                        height = min(32, pack.crops.heights[pack.crops.tile[local]])
                        image = pack.mapped["image"].array[local, :, :height]
                        values.append(image.reshape(3, -1).astype(np.float64) / 255)
            pixels = np.concatenate(values, axis=1)
            found = about["of"]["all clients together" if normalise == "federated" else f"domain {name}"]
            assert found["mean"] == pytest.approx(pixels.mean(axis=1), rel=1e-9)
            assert found["std"] == pytest.approx(pixels.std(axis=1), rel=1e-9)
            crop = federation.source.offsets[2 * number]  # whole images, also of a crop that is filled up
            stored = federation.source.gather(np.asarray([crop]))
            normal = federation.transform(dict(stored))["image"][0].double().numpy()
            mean, std = (np.asarray(found[key])[:, None, None] for key in ("mean", "std"))
            assert normal == pytest.approx((stored["image"][0].numpy() / 255 - mean) / std, abs=1e-5)
    _, federation = made(data, [potsdam(), vaihingen()])
    given = federation.manifest["normalisation"]
    assert given["statistics"] == "published"  # what null takes where all archives have them
    assert given["of"]["potsdam_rgb"]["mean"] == pytest.approx([0.485, 0.456, 0.406])
    assert federation.setup_bytes == {"up": 0, "down": 0}


def test_random_crops_are_taken_from_windows(data):
    domains = [domain(area, LoveDA("LoveDA", area), whole(1)) for area in ("rural", "urban")]
    _, federation = made(data, domains, random_crops_from=64, crop_size=24)
    assert [len(client.train) for client in federation.clients] == [2, 2]  # images
    loader = ClientLoader(federation, 4, None, 0, "cpu")
    first, again, later = (next(loader.epoch(0, 1, epoch)) for epoch in (0, 0, 1))
    assert first["image"].shape == (2, 3, 24, 24)
    assert torch.equal(first["image"], again["image"])
    assert not torch.equal(first["mask"], later["mask"])
    assert next(loader.epoch(0, 1, 0, augment=False))["mask"].shape == (2, 24, 24)
    assert next(loader.ordered(federation.test, 3))[1]["image"].shape == (3, 3, 24, 24)


def test_own_rasters_as_domains(tmp_path, layouts):
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        for part in ("train", "test"):
            layouts.tiff(tmp_path / name / part / "images/a.tif", rng.integers(0, 9000, (4, 50, 60)).astype(np.uint16))
            layouts.tiff(tmp_path / name / part / "labels/a.tif", layouts.ids(rng, 50, 60, 3)[None])
    options = {"classes": {"a": 1, "b": 2}, "in_channels": 4, "pixel_type": "uint16", "ignored": [0]}
    options |= {"test_images": "test/images", "test_labels": "test/labels"}
    folders = [Domain(name, OwnRasters(name, **options), 2) for name in ("north", "south")]
    dataset, federation = made(tmp_path, folders, crop_size=20)
    assert federation.manifest["normalisation"]["statistics"] == "federated"  # own data have no published ones
    batch = next(ClientLoader(federation, 4, None, 0, "cpu").epoch(3, 1, 0))
    assert batch["image"].shape == (4, 4, 20, 20)
    assert abs(float(batch["image"].mean())) < 0.3
    assert dataset.in_channels == 4
    short = FederatedDataset(
        OwnRasters(**options),
        subfolders=["north", "south"],
        num_clients=2,
        root=str(tmp_path),
        client_size="equal",
        crop_size=20,
    )
    assert json.dumps(short.federation(0).manifest) == json.dumps(federation.manifest)  # the same, and the same packs
    with pytest.raises(ConfigError, match="normalise: published: north has no published statistics"):
        FederatedDataset(domains=folders, normalise="published")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"domains": []}, "domains need distinct names"),
        ({"domains": [potsdam(), potsdam()]}, "domains need distinct names"),
        (
            {"domains": [potsdam(), Domain("four", Potsdam("x", "rgbir"), 1)]},
            "domains need the same number of bands, got potsdam_rgb: 3, four: 4",
        ),
        ({"test_overlap": 512}, r"test_overlap must be in \[0, crop_size\)"),
        ({"random_crops_from": 256}, "random_crops_from must be crop_size=512 to 16384"),
        ({"crop_size": -5}, "crop_size must be 1 to 16384 pixels, got -5"),
        ({"client_size": 0}, "client_size must be equal, or at least 1, got 0"),
        ({"client_size": "half"}, "client_size must be equal, or at least 1, got half"),
        ({"domains": [Domain("a", Potsdam())]}, "a: nothing says whose the tiles are; set num_clients or partition"),
        ({"domains": [Domain("a/b", Potsdam(), 1)]}, "distinct names without '/'"),
        ({"domains": [Domain("", Potsdam(), 1)]}, "distinct names"),
        ({"split": "seeded"}, "split is for archives of images, and this one holds tiles"),
        ({"stratify": True}, "stratify is for archives of images"),
        ({"train_fraction": 0.5}, "train_fraction is for archives of images"),
        ({"validation_fraction": 0.1}, "validation_fraction is for archives of images"),
        ({"own_test": True}, "own_test is for archives of images"),
        ({"image_size": 32}, "image_size is for archives of images"),
        ({"storage": "files"}, "storage is for archives of images"),
        ({"ground": "mine"}, "ground must be disjoint or shared"),
        ({"normalise": "none"}, "normalise must be published, federated, per_domain or per_client"),
    ],
)
def test_settings_are_checked(arguments, message):
    with pytest.raises(ConfigError, match=message):
        FederatedDataset(**{"domains": [potsdam()]} | arguments)


def test_missing_test_tiles_and_packs(data, tmp_path):
    with pytest.raises(DataError, match=r"domain v: .*Vaihingen has no test tile; add one, or set split: by_position"):
        made(data, [Domain("v", Vaihingen("Vaihingen", skip_tiles=["2"]), 1)])
    options = {"root": str(data), "crop_size": 32, "cache_dir": str(tmp_path)}
    with pytest.raises(DataError, match=r"not packed yet, or the files changed; call prepare\(\) first"):
        FederatedDataset(domains=[potsdam()], **options).federation(0)


@cache  # parsing takes longer than packing
def shipped(path, root):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(FederatedDataset, "data", sub_configs=True)
    return parser.instantiate(parser.parse_args(["--data", str(path), "--data.root", str(root)])).data


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_build(path, data):
    dataset = shipped(path, data)
    assert dataset.num_classes == len(dataset.class_names) > 1
    assert all(Path(domain.archive.root).is_relative_to(data) for domain in dataset.domains)


def test_shipped_federations_on_small_data(data):
    """Each federation of ten clients of Potsdam, Vaihingen and LoveDA, of equal clients where it says so."""
    seen = 0
    for path in sorted(CONFIGS.glob("*.yaml")):
        dataset = shipped(path, data)
        if not dataset.tiled or sum(domain.partition.num_clients for domain in dataset.domains) != 10:
            continue
        dataset.crops = CropRule(16, 0, 16)
        for domain in dataset.domains:
            domain.partition.by = None  # the samples have fewer tiles than clients
        dataset.prepare()
        federation = dataset.federation(0)
        assert len(federation.clients) == 10, path
        assert federation.manifest["label"], path
        sizes = [len(client.train) for client in federation.clients]
        assert (max(sizes) == min(sizes)) == (dataset.rule.client_size == "equal"), path
        json.dumps(federation.manifest, allow_nan=False)
        seen += 1
    assert seen >= 10


def test_synthetic_samples_say_so(tmp_path):
    for number, name in enumerate(("potsdam", "vaihingen")):
        write_sample(tmp_path / name, AerialSample(name, side=160, spectral_shift=1.0, domain=number))
    dataset = shipped(CONFIGS / "synthetic_aerial.yaml", tmp_path)
    dataset.prepare()
    federation = dataset.federation(0)
    assert federation.manifest["synthetic"]["parameters"]["spectral_shift"] == 1.0
    assert len(federation.clients) == 4
    assert [about["unknown_pixels"] for about in federation.manifest["archives"]] == [{}, {}]


def test_the_real_crops(data_root):
    """One tile a domain, split by position: no pixel in both parts, and every pixel of the last quarter counts once."""
    dataset, federation = made(
        data_root,
        [
            Domain("potsdam_rgb", Potsdam("potsdam", split="by_position"), 1),
            Domain("vaihingen_irrg", Vaihingen("vaihingen", split="by_position"), 1),
        ],
        crop_size=128,
        normalise="federated",
    )
    assert federation.manifest["synthetic"] is None
    assert [len(client.train) for client in federation.clients] == [12, 12]
    shares = np.asarray(federation.manifest["test"]["class_pixels"]) / sum(federation.manifest["test"]["class_pixels"])
    assert shares == pytest.approx([0.307, 0.256, 0.257, 0.146, 0.034], abs=0.005)
    batch = next(ClientLoader(federation, 12, None, 0, "cpu").epoch(1, 1, 0))
    assert batch["image"].shape == (12, 3, 128, 128)
    assert (batch["mask"] != 255).float().mean() > 0.8
    rural = [Domain("rural", LoveDA("loveda", "rural", split="by_position"), 2)]
    _, federation = made(data_root, rural, crop_size=128)
    assert [len(client.train) for client in federation.clients] == [48, 48]
    assert sum(federation.manifest["test"]["class_pixels"]) == 2 * 256 * 1024
    assert dataset.class_names[4] == "car"


def test_crops_much_larger_than_all_tiles_are_refused(data):
    with pytest.raises(ConfigError, match=r"crop_size is 10000, but the largest tile has \d+ pixels a side; lower it"):
        FederatedDataset(domains=[potsdam()], root=str(data), crop_size=10_000, seed=0).prepare()
