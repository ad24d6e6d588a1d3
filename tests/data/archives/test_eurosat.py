import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch
from jsonargparse import ArgumentParser
from PIL import Image

from fedrs_lightning.data import (
    IID,
    ByAttribute,
    ClientLoader,
    Dirichlet,
    EuroSAT,
    FederatedDataset,
)
from fedrs_lightning.data.archives.eurosat.archive import ALL, RGB
from fedrs_lightning.data.archives.eurosat.files import ALL_BANDS_PATH, BANDS, CLASSES, decode_all, decode_rgb, scan
from fedrs_lightning.data.packs.fields import mean_std
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.synth.eurosat.sample import EuroSATSample
from fedrs_lightning.synth.sample import write_sample

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """20 tiles of noise of each class, and the domain of each. Read only."""
    root, rng = tmp_path_factory.mktemp("tiles"), np.random.default_rng(0)
    lines = ["file,domain"]
    for name in CLASSES:
        (root / "2750" / name).mkdir(parents=True)
        for number in range(1, 21):
            coarse = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((64, 64)).save(root / "2750" / name / f"{name}_{number}.jpg")
            lines.append(f"{name}_{number}.jpg,{(number - 1) % 2}")
    (root / "attributes.csv").write_text("\n".join(lines) + "\n")
    (root / "SYNTHETIC.json").write_text('{"parameters": {"domains": 2}}')
    return root


def dataset_of(root, partition=None, bands="rgb", lists=None, attributes=None, **options):
    archive = EuroSAT(str(root), bands, None if lists is None else str(lists), attributes)
    return FederatedDataset(archive, partition or IID(4), **options)


def federate(root, partition=None, seed=0, **options):
    dataset = dataset_of(root, partition, **options)
    dataset.prepare()
    return dataset.federation(seed)


def rows(source):
    """Stored images of a pack."""
    return source.parts[0].pack.mapped["image"].array


def listing(folder):
    return sorted((str(path.relative_to(folder)), path.stat().st_mtime_ns) for path in folder.rglob("*"))


# Real tiles -----------------------------------------------------------------------------------------------------------


def test_real_tiles(data_root):
    before = listing(data_root / "eurosat")
    made = federate(data_root / "eurosat", Dirichlet(8, 0.3), own_test=True, validation_fraction=0.1)
    labels = made.source.extras["label"].numpy()
    assert np.bincount(labels).tolist() == [86, 85, 85, 85, 85, 86, 85, 85, 85, 85]
    mean, std = (np.asarray(values) / 255 for values in mean_std(*made.source.sums(np.arange(852), "image")))
    assert mean == pytest.approx([0.336, 0.375, 0.404], abs=0.002)
    assert std == pytest.approx([0.195, 0.135, 0.116], abs=0.002)
    train = np.concatenate([client.train for client in made.clients])
    assert (len(train), len(made.validation), len(made.test)) == (614, 68, 170)
    assert np.array_equal(np.sort(np.concatenate([train, made.validation, made.test])), np.arange(852))
    own = np.concatenate([client.test for client in made.clients if client.test is not None])
    assert len(np.unique(own)) == len(own) == 170
    picked = [0, 100, 851]
    for index, image in zip(picked, made.source.gather(np.asarray(picked))["image"], strict=True):
        path = data_root / "eurosat" / "EuroSAT_RGB" / made.sample_ids[index]
        assert np.array_equal(image.permute(1, 2, 0).numpy(), np.asarray(Image.open(path)))
    numbers = [int(Path(name).stem.split("_")[1]) for name in made.sample_ids if name.startswith("AnnualCrop")]
    assert numbers == sorted(numbers)
    assert numbers[0] == 1
    assert listing(data_root / "eurosat") == before
    assert made.manifest["synthetic"] is None
    json.dumps(made.manifest, allow_nan=False)


def test_real_geotiffs(data_root):
    folder = data_root / "eurosat" / "EuroSAT_MS"
    for name, water_vapour, cirrus, narrow_infrared in [
        ("AnnualCrop/AnnualCrop_1.tif", 484, 12, 2031),
        ("Pasture/Pasture_300.tif", 1148, 9, 4424),
    ]:
        bands = decode_all(folder / name)
        assert (bands.shape, bands.dtype) == ((13, 64, 64), np.uint16)
        for band, value in (("B09", water_vapour), ("B10", cirrus), ("B8A", narrow_infrared)):
            assert bands[BANDS.index(band)].mean() == pytest.approx(value, abs=0.6)
    rgb = decode_rgb(data_root / "eurosat" / "EuroSAT_RGB" / "AnnualCrop" / "AnnualCrop_1.jpg")
    stretched = decode_all(folder / "AnnualCrop/AnnualCrop_1.tif")[[3, 2, 1]]
    assert np.corrcoef(rgb.ravel(), stretched.ravel())[0, 1] > 0.97  # near, but a contrast stretch of it
    with pytest.raises(DataError, match="class folders missing: Forest, HerbaceousVegetation"):
        scan(folder, "all")


def digests(made):
    return [archive["samples_sha256"] for archive in made.manifest["archives"]]


# Layouts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [".", "2750", "EuroSAT_RGB", "EuroSAT", "eurosat/2750", "a/b"])
def test_layout_variants_hold_the_same_samples(sample, tmp_path, place):
    root = tmp_path / "root"
    shutil.copytree(sample / "2750", root / place)
    for name in ("train.csv", "validation.csv", "label_map.json"):
        (root / name).write_text("ignored")
    made = federate(root)
    assert made.sample_ids == federate(sample).sample_ids
    assert digests(made) == digests(federate(sample))
    assert made.manifest["test"] == federate(sample).manifest["test"]


def test_symlinks_junk_and_other_spellings_of_suffixes(copied, tmp_path):
    tiles = copied / "2750"
    for junk in (
        ".DS_Store",
        "Forest/Thumbs.db",
        "Forest/._Forest_1.jpg",
        "Forest/Forest_1.jpg.aux.xml",
        "desktop.ini",
    ):
        (tiles / junk).write_text("junk")
    (tiles / "__MACOSX").mkdir()
    (tiles / "Forest" / "Forest_10.jpg").rename(tiles / "Forest" / "Forest_10.JPG")
    (tiles / "Forest" / "Forest_9.jpg").rename(tiles / "Forest" / "Forest_9.jpeg")
    for path in sorted(tiles.rglob("[A-Z]*.jpg")):
        path.rename(path.with_suffix(".JPG"))
    (tmp_path / "link").symlink_to(copied)
    made = federate(tmp_path / "link")
    assert len(made.source) == 200
    forest = [name for name in made.sample_ids if name.startswith("Forest")]
    assert forest[8:10] == ["Forest/Forest_9.jpeg", "Forest/Forest_10.JPG"]
    assert made.manifest["synthetic"]["parameters"]["domains"] == 2


def test_all_bands(tmp_path, sample):
    write_sample(tmp_path / "ms", EuroSATSample(tiles=2, layout="allBands"))
    made = federate(tmp_path / "ms", IID(2), bands="all", normalise="federated")
    assert made.sample_ids[:2] == ("AnnualCrop/AnnualCrop_1.tif", "AnnualCrop/AnnualCrop_2.tif")
    path = tmp_path / "ms" / ALL_BANDS_PATH / "River" / "River_2.tif"
    index = made.sample_ids.index("River/River_2.tif")
    image = made.source.gather(np.asarray([index]))["image"]
    with rasterio.open(path) as raster:
        assert np.array_equal(image[0].numpy(), raster.read())
    batch = next(ClientLoader(made, 16, None, 0, "cpu").epoch(0, 1, 0))
    assert batch["image"].shape == (8, 13, 64, 64)
    assert batch["image"].mean(dim=(0, 2, 3)).abs().max() < 1.5
    assert made.manifest["archives"][0]["settings"]["bands"] == list(BANDS)
    assert len(ALL[0]) == len(ALL[1]) == dataset_of("", bands="all").in_channels == 13
    with pytest.raises(DataError, match="bands: rgb needs RGB JPEGs, but here are 13-band GeoTIFFs; set bands: all"):
        federate(tmp_path / "ms")
    with pytest.raises(DataError, match="set bands: rgb"):
        federate(sample, bands="all")


def test_jpegs_and_geotiffs_side_by_side(tmp_path, sample):
    root = tmp_path / "both"
    shutil.copytree(sample / "2750", root / "EuroSAT_RGB")
    write_sample(tmp_path / "ms", EuroSATSample(tiles=2, layout="EuroSAT_MS"))
    shutil.move(tmp_path / "ms" / "EuroSAT_MS", root)
    assert (len(federate(root).source), len(federate(root, bands="all").source)) == (200, 20)
    shutil.copytree(sample / "2750", root / "2750")
    with pytest.raises(DataError, match=r"several EuroSAT trees: .*2750.*EuroSAT_RGB; set root to one of them"):
        federate(root)


# Splits, statistics, clients ------------------------------------------------------------------------------------------


def test_split_is_seeded_and_recorded(sample):
    first, again, other = federate(sample), federate(sample), federate(sample, seed=1)
    assert first.manifest == again.manifest
    assert first.manifest["test"]["sha256"] != other.manifest["test"]["sha256"]
    assert federate(sample, seed=1, partition=Dirichlet(4, 1.0)).manifest["test"] == other.manifest["test"]
    names = sorted(first.sample_ids[index] for index in first.test)
    assert (
        first.manifest["test"]["sha256"] == hashlib.sha256("".join(f"{name}\n" for name in names).encode()).hexdigest()
    )
    dataset = dataset_of(sample, seed=1)
    dataset.prepare()
    assert dataset.federation(0).manifest == other.manifest  # the data set's own seed wins
    assert first.manifest["clients"][2]["train"]["num_samples"] == 40
    stratified = federate(sample, stratify=True, validation_fraction=0.25)
    assert stratified.manifest["test"]["class_counts"] == [4] * 10
    assert stratified.manifest["validation"]["class_counts"] == [4] * 10
    assert [len(client.train) for client in stratified.clients] == [30] * 4


def test_training_statistics_come_from_training_samples_only(sample):
    made = federate(sample, normalise="federated", validation_fraction=0.2)
    train = np.sort(np.concatenate([client.train for client in made.clients]))
    pixels = rows(made.source)[train].astype(np.float64) / 255
    about = made.manifest["normalisation"]["of"]["all clients together"]
    assert about["mean"] == pytest.approx(pixels.mean(axis=(0, 2, 3)), rel=1e-12)
    assert about["std"] == pytest.approx(pixels.std(axis=(0, 2, 3)), rel=1e-9)
    assert made.setup_bytes == {"up": len(made.clients) * 8 * 7, "down": len(made.clients) * 8 * 6}
    images = torch.cat([batch["image"] for _, batch in ClientLoader(made, 8, None, 0, "cpu").ordered(train, 64)])
    assert images.mean(dim=(0, 2, 3)).abs().max() < 1e-4
    assert (images.std(dim=(0, 2, 3)) - 1).abs().max() < 1e-3
    assert federate(sample).manifest["normalisation"]["of"]["EuroSAT"] == {"mean": list(RGB[0]), "std": list(RGB[1])}
    assert federate(sample).setup_bytes == {"up": 0, "down": 0}


def test_image_size_is_a_step_of_the_transform(sample):
    made = federate(sample, image_size=32)
    assert rows(made.source).shape[2:] == (64, 64)
    assert next(ClientLoader(made, 8, None, 0, "cpu").epoch(1, 1, 0))["image"].shape == (8, 3, 32, 32)
    assert "bilinear" in made.manifest["resize"]


def test_clients_by_attribute(sample):
    made = federate(sample, ByAttribute("domain"), attributes=str(sample / "attributes.csv"))
    assert [client.name for client in made.clients] == ["0", "1"]
    for client in made.clients:
        numbers = [int(Path(made.sample_ids[index]).stem.split("_")[1]) for index in client.train]
        assert {(number - 1) % 2 for number in numbers} == {client.id}
    assert [client.name for client in federate(sample, ByAttribute("class_name")).clients] == list(CLASSES)
    assert federate(sample, ByAttribute("number")).clients[-1].name == "20"


def test_published_lists_are_used(sample, tmp_path):
    for part, numbers in {"train": range(1, 11), "val": [11], "test": range(12, 15)}.items():
        lines = [f"{name}_{number}.jpg" for name in CLASSES for number in numbers]
        (tmp_path / f"eurosat-{part}.txt").write_text("\n".join(lines))
    made = federate(sample, lists=tmp_path)
    assert (sum(len(client.train) for client in made.clients), len(made.validation), len(made.test)) == (100, 10, 30)
    about = made.manifest["archives"][0]
    assert about["split"] == {"rule": "published", "left_out": 60}
    assert about["facts"]["lists"] == str(tmp_path / "eurosat")
    drawn = federate(sample, lists=tmp_path, split="seeded")
    assert drawn.manifest["test"] == federate(sample).manifest["test"]
    with pytest.raises(ConfigError, match="validation_fraction must be 0 with a published split"):
        federate(sample, lists=tmp_path, validation_fraction=0.1)
    with pytest.raises(ConfigError, match="split: published: eurosat has no published split here; set split to seeded"):
        federate(sample, split="published")
    below = FederatedDataset(EuroSAT("tiles", lists="lists"), IID(2), root="/somewhere")
    assert (below.archive.root, below.archive.lists) == ("/somewhere/tiles", "/somewhere/lists")


def test_clients_that_are_too_small(sample):
    with pytest.raises(
        ConfigError, match=r"client 0 \(1\) has \d+ training samples, fewer than min_samples=30; .* change split or"
    ):
        federate(sample, ByAttribute("number"), min_samples=30)
    with pytest.raises(ConfigError, match="300 clients but only 160 training samples"):
        federate(sample, IID(300))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bands": "rgbn"}, "bands must be rgb or all"),
        ({"normalise": "imagenet"}, "normalise must be"),
        ({"train_fraction": 1.2}, "train_fraction must be in"),
        ({"validation_fraction": 1.0}, "validation_fraction in"),
        ({"image_size": 0}, "image_size must be 1 to 16384"),
    ],
)
def test_refuses_impossible_options(options, message):
    with pytest.raises(ConfigError, match=message):
        dataset_of("somewhere", **options)


def test_needs_to_be_prepared(sample):
    with pytest.raises(DataError, match=r"not packed yet.*call prepare\(\) first"):
        dataset_of(sample).federation(0)


def test_constant_training_images_have_no_statistics(copied):
    for path in (copied / "2750").rglob("*.jpg"):
        Image.new("RGB", (64, 64), (10, 20, 30)).save(path)
    with pytest.raises(DataError, match="all clients together: band red does not vary over the training samples"):
        federate(copied, normalise="federated")


# Configs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "clients"), [("eurosat.yaml", 10), ("eurosat_synthetic.yaml", 8)])
def test_configs_name_classes_in_short(name, clients, sample):
    parser = ArgumentParser()
    parser.add_class_arguments(FederatedDataset, "data", sub_configs=True)
    config = parser.parse_args([f"--data={ROOT / 'configs' / 'data' / name}", f"--data.root={sample}"])
    dataset = parser.instantiate(config).data
    dataset.prepare()
    # The shipped alpha on 160 tiles leaves fewer than min_samples in many draws, which are repeated until it fits.
    dataset.domains[0].partition.min_samples = 2
    assert len(dataset.federation(0).clients) == clients
    assert (dataset.num_classes, dataset.in_channels, dataset.class_names) == (10, 3, CLASSES)


def test_num_clients_has_no_default():
    with pytest.raises(TypeError, match="num_clients"):
        Dirichlet(alpha=0.3)  # type: ignore[call-arg]
