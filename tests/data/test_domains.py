import json
from pathlib import Path

import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser

from fedrs_lightning.data import (
    ClientLoader,
    Domain,
    Domains,
    FederatedDataset,
    FolderDomains,
    FolderSegmentation,
    LoveDA,
    Potsdam,
    Vaihingen,
)
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.synth.aerial.sample import AerialSample
from fedrs_lightning.synth.sample import write_sample

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "data"
TRAIN, TEST = ("2_10", "2_11", "2_12", "3_10"), ("2_13", "2_14")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Potsdam (4 + 2 tiles of 96), Vaihingen (3 + 1 areas) and LoveDA (2 images each of 64). Read only."""
    import importlib.util

    place = importlib.util.spec_from_file_location("layout_writers", Path(__file__).with_name("conftest.py"))
    writers = importlib.util.module_from_spec(place)
    place.loader.exec_module(writers)
    root = tmp_path_factory.mktemp("data")
    writers.write_potsdam(root / "Potsdam", TRAIN + TEST)
    writers.write_vaihingen(root / "Vaihingen", ("1", "3", "5", "2"), ((61, 83), (40, 57), (72, 52)))
    writers.write_loveda(root / "LoveDA")
    return root


def potsdam(clients=2, modality="rgb", **settings):
    return Domain(f"potsdam_{modality}", Potsdam("Potsdam", modality), clients, **settings)


def vaihingen(clients=2, modality="irrg", **settings):
    return Domain(f"vaihingen_{modality}", Vaihingen("Vaihingen", modality), clients, **settings)


def made(data, domains, seed=0, **settings):
    dataset = Domains(domains, str(data), **{"crop_size": 32} | settings)
    dataset.prepare()
    return dataset, dataset.federation(seed)


def test_equal_clients_and_the_surplus(data):
    dataset, federation = made(data, [potsdam(), vaihingen()])
    packs = [part.pack for part in federation.source.parts]
    size = min(len(packs[0]) // 2, len(packs[2]) // 2)
    assert [len(client.train) for client in federation.clients] == [size] * 4
    assert [client.domain for client in federation.clients] == ["potsdam_rgb"] * 2 + ["vaihingen_irrg"] * 2
    for number, about in enumerate(federation.manifest["domains"]):
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


def test_the_same_seed_gives_the_same_deal_and_another_one_another(data):
    _, first = made(data, [potsdam(), vaihingen()])
    _, again = made(data, [potsdam(), vaihingen()])
    _, other = made(data, [potsdam(), vaihingen()], seed=1)
    fixed = Domains([potsdam(), vaihingen()], str(data), crop_size=32, seed=0).federation(1)
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
    for domain in federation.source.parts[1], federation.source.parts[3]:
        survey = (Potsdam(str(data / "Potsdam")) if domain.domain == 0 else Vaihingen(str(data / "Vaihingen"))).survey()
        for tile in survey.test:
            with tile.open() as opened:
                wanted += np.bincount(opened.ids.rows(0, tile.size[0]).ravel(), minlength=256)
    assert np.array_equal(counts[:5], wanted[:5])
    assert federation.manifest["test"]["class_pixels"] == wanted[:5].tolist()


def test_shared_and_disjoint_ground(data):
    """The same tiles in two modalities: either each tile is one domain's, or both see all."""
    pair = [potsdam(), potsdam(modality="irrg")]
    _, apart = made(data, pair)
    tiles = [set(about["tiles_train"]) for about in apart.manifest["domains"]]
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
    assert [about["tiles_test"] for about in apart.manifest["domains"]] == [list(TEST)] * 2
    _, shared = made(data, pair, ground="shared")
    assert [set(about["tiles_train"]) for about in shared.manifest["domains"]] == [set(TRAIN)] * 2
    assert len(shared.clients[0].train) == 2 * len(apart.clients[0].train)
    assert (apart.manifest["deal"]["ground"], shared.manifest["deal"]["ground"]) == ("disjoint", "shared")
    three = [
        potsdam(1),
        potsdam(1, "irrg"),
        Domain("third", Potsdam("Potsdam", skip_tiles=["2_11", "2_12", "3_10"]), 1),
    ]
    _, federation = made(data, three)
    assert "2_10" in federation.manifest["domains"][2]["tiles_train"]
    lonely = [Domain(str(number), Potsdam("Potsdam", skip_tiles=["2_11", "2_12", "3_10"]), 1) for number in range(2)]
    with pytest.raises(
        ConfigError, match="ground: disjoint needs a tile for each of 2 domains of one terrain, got 1; set shared"
    ):
        made(data, lonely)


def test_whole_tiles_go_to_clients(data):
    _, federation = made(data, [potsdam(), vaihingen(3)], by="tile")
    for name in ("potsdam_rgb", "vaihingen_irrg"):
        owners: dict[str, set[int]] = {}
        for client in federation.clients:
            if client.domain == name:
                for index in client.train:
                    owners.setdefault(federation.sample_ids[index].split("/")[2], set()).add(client.id)
        assert all(len(clients) == 1 for clients in owners.values())
    assert len({len(client.train) for client in federation.clients}) == 1
    with pytest.raises(ConfigError, match=r"client 3 \(vaihingen_irrg 3\) gets no training crop"):
        made(data, [vaihingen(4)], by="tile", equal=False)


def test_unequal_clients(data):
    proportions = [8.0, 4.0, 1.0]
    _, federation = made(data, [potsdam(3, proportions=proportions), vaihingen(2)], equal=False)
    sizes = [len(client.train) for client in federation.clients]
    total = len(federation.source.parts[0].pack)
    assert sizes[:3] == np.diff(np.rint(np.cumsum([0, *proportions]) / 13 * total)).astype(int).tolist()
    assert sum(sizes[3:]) == len(federation.source.parts[2].pack)
    assert [about["surplus"]["num_samples"] for about in federation.manifest["domains"]] == [0, 0]
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
    wanted = np.asarray([255, 0, 1, 1, 255] + [255] * 251, np.uint8)[part.pack.masks]
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
        Domains([Domain("loveda", LoveDA("x", "rural"), 1), potsdam()], label_space=choice)


def test_statistics_of_all_and_of_each_domain(data):
    for normalise in ("train", "per_domain"):
        _, federation = made(data, [potsdam(), vaihingen()], normalise=normalise)
        about = federation.manifest["normalisation"]
        assert federation.setup_bytes == {
            "up": len(federation.clients) * 8 * 7,
            "down": len(federation.clients) * 8 * 6,
        }
        for number, name in enumerate(("potsdam_rgb", "vaihingen_irrg")):
            values = []
            for client in federation.clients:
                if normalise == "train" or client.domain == name:
                    for index in client.train:  # pixels beyond the edge of a tile do not count
                        part = federation.source.parts[0 if client.domain == "potsdam_rgb" else 2]
                        local = index - federation.source.offsets[0 if client.domain == "potsdam_rgb" else 2]
                        tile = part.pack.index.tile[local]
                        height = min(32, part.pack.index.heights[tile])
                        values.append(part.pack.images[local, :, :height].reshape(3, -1).astype(np.float64) / 255)
            pixels = np.concatenate(values, axis=1)
            assert about["mean"][number] == pytest.approx(pixels.mean(axis=1), rel=1e-9)
            assert about["std"][number] == pytest.approx(pixels.std(axis=1), rel=1e-9)
    _, federation = made(data, [potsdam(), vaihingen()])
    assert federation.manifest["normalisation"]["mean"][0] == pytest.approx([0.485, 0.456, 0.406])


def test_random_crops_are_taken_from_windows(data):
    domains = [Domain("rural", LoveDA("LoveDA", "rural"), 1), Domain("urban", LoveDA("LoveDA", "urban"), 1)]
    _, federation = made(data, domains, random_crops_from=64, crop_size=24, by="tile")
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
    folders = [
        Domain(
            name,
            FolderSegmentation(
                name, {"a": 1, "b": 2}, 4, None, "uint16", [0], test_images="test/images", test_labels="test/labels"
            ),
            num_clients=2,
        )
        for name in ("north", "south")
    ]
    dataset, federation = made(tmp_path, folders, normalise="train", crop_size=20)
    batch = next(ClientLoader(federation, 4, None, 0, "cpu").epoch(3, 1, 0))
    assert batch["image"].shape == (4, 4, 20, 20)
    assert abs(float(batch["image"].mean())) < 0.3
    assert dataset.in_channels == 4
    short = FolderDomains(str(tmp_path), ["north", "south"], 2, {"a": 1, "b": 2}, 4, None, "uint16", [0], crop_size=20)
    assert json.dumps(short.federation(0).manifest) == json.dumps(federation.manifest)  # the same, and the same packs
    with pytest.raises(ConfigError, match="subfolders must name at least one folder"):
        FolderDomains(str(tmp_path), [], 2, {"a": 1}, 4)
    with pytest.raises(ConfigError, match="no published statistics for domain north"):
        Domains(folders, str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"domains": []}, "domains need distinct names"),
        ({"domains": [potsdam(), potsdam()]}, "domains need distinct names"),
        ({"domains": [potsdam(0)]}, "num_clients must be at least 1"),
        ({"domains": [potsdam(2, proportions=[1.0, 2.0])]}, "proportions needs equal: false"),
        ({"domains": [potsdam(2, proportions=[1.0])], "equal": False}, "one positive number a client"),
        (
            {"domains": [potsdam(), Domain("four", Potsdam("x", "rgbir"), 1)]},
            "domains need the same in_channels, got potsdam_rgb: 3, four: 4",
        ),
        ({"test_overlap": 512}, r"test_overlap must be in \[0, crop_size\)"),
        ({"random_crops_from": 256}, "random_crops_from must be at least crop_size=512"),
        ({"client_size": 4, "equal": False}, "client_size must be at least 1 and needs equal"),
        ({"by": "pixel"}, "by must be crop or tile"),
        ({"ground": "mine"}, "ground must be disjoint or shared"),
        ({"normalise": "none"}, "normalise must be published, train or per_domain"),
    ],
)
def test_settings_are_checked(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Domains(**{"domains": [potsdam()]} | arguments)


def test_missing_test_tiles_and_packs(data, tmp_path):
    dataset = Domains([Domain("v", Vaihingen("Vaihingen", skip_tiles=["2"]), 1)], str(data), crop_size=32)
    with pytest.raises(DataError, match=r"domain v: .*Vaihingen has no test tile; add one, or set split: by_position"):
        dataset.prepare()
    with pytest.raises(DataError, match=r"not packed yet, or files changed; call prepare\(\) first"):
        Domains([potsdam()], str(data), crop_size=32, cache_dir=str(tmp_path)).federation(0)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_build(path):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FederatedDataset, "data", required=True)
    dataset = parser.instantiate(parser.parse_args(["--data", str(path), "--data.init_args.root", "elsewhere"])).data
    assert dataset.num_classes == len(dataset.class_names) > 1
    if isinstance(dataset, Domains):
        assert all(Path(domain.dataset.root).parts[0] == "elsewhere" for domain in dataset.domains)


def test_shipped_federations_on_small_data(data):
    """Each federation of ten clients of Potsdam, Vaihingen and LoveDA is dealt, by equal sizes where it says so."""
    seen = 0
    for path in sorted(CONFIGS.glob("*.yaml")):
        parser = ArgumentParser(exit_on_error=False)
        parser.add_subclass_arguments(FederatedDataset, "data", required=True)
        arguments = ["--data", str(path), "--data.init_args.root", str(data)]
        shipped = parser.instantiate(parser.parse_args(arguments)).data
        if type(shipped) is not Domains or sum(domain.num_clients for domain in shipped.domains) != 10:
            continue
        small = ["--data.init_args.crop_size", "16", "--data.init_args.by", "crop"]
        dataset = parser.instantiate(parser.parse_args([*arguments, *small])).data
        dataset.prepare()
        federation = dataset.federation(0)
        assert len(federation.clients) == 10, path
        assert federation.manifest["label"], path
        sizes = [len(client.train) for client in federation.clients]
        assert (max(sizes) == min(sizes)) == dataset.equal, path
        json.dumps(federation.manifest, allow_nan=False)
        seen += 1
    assert seen >= 10


def test_synthetic_samples_say_so(tmp_path):
    for number, name in enumerate(("potsdam", "vaihingen")):
        write_sample(tmp_path / name, AerialSample(name, side=160, spectral_shift=1.0, domain=number))
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FederatedDataset, "data", required=True)
    config = str(CONFIGS / "synthetic_aerial.yaml")
    dataset = parser.instantiate(parser.parse_args(["--data", config, "--data.init_args.root", str(tmp_path)])).data
    dataset.prepare()
    federation = dataset.federation(0)
    assert federation.manifest["synthetic"]["parameters"]["spectral_shift"] == 1.0
    assert len(federation.clients) == 4
    assert [about["unknown_pixels"] for about in federation.manifest["domains"]] == [{}, {}]


def test_the_real_crops(data_root):
    """One tile a domain, split by position: no pixel in both parts, and every pixel of the last quarter counts once."""
    dataset, federation = made(
        data_root,
        [
            Domain("potsdam_rgb", Potsdam("potsdam", split="by_position"), 1),
            Domain("vaihingen_irrg", Vaihingen("vaihingen", split="by_position"), 1),
        ],
        crop_size=128,
        normalise="train",
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
