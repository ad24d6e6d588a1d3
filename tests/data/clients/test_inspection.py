"""`fedrs data inspect`: numbers against NumPy on the decoded files, tables, pictures and mistakes."""

import argparse
import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image
from rich.cells import cell_len

from fedrs_lightning.cli.data.config import dataset_of
from fedrs_lightning.cli.data.inspect import _inspect
from fedrs_lightning.cli.data.inspect_tables import show
from fedrs_lightning.cli.main import main
from fedrs_lightning.data import (
    IID,
    ByAttribute,
    ClientSplit,
    EuroSAT,
    FederatedDataset,
    ImageArchive,
    ImageListing,
    OwnRasters,
)
from fedrs_lightning.data.clients.inspection import inspect_data
from fedrs_lightning.errors import ConfigError
from fedrs_lightning.results.data_pictures import composites, stretch
from fedrs_lightning.results.short_text import short_name, short_number


def compare(bands, pixels, moments_of, pixels_of):
    """Facts of bands with [C, pixels] of all the samples they are of."""
    assert len(bands) == len(pixels)
    for band, values in zip(bands, pixels, strict=True):
        np.testing.assert_allclose([band["mean"], band["deviation"]], [values.mean(), values.std()], rtol=1e-12)
        assert [band["min"], band["max"]] == [values.min(), values.max()]
        points = np.percentile(values, [1, 50, 99], method="inverted_cdf")
        assert [band["p1"], band["p50"], band["p99"]] == points.tolist()
        assert (band["moments_of"], band["pixels_of"]) == (moments_of, pixels_of)


def test_single_labels(sample):
    dataset = FederatedDataset(EuroSAT(str(sample)), IID(3), own_test=True, validation_fraction=0.1)
    dataset.prepare()
    federation = dataset.federation(5)
    facts = inspect_data(dataset, federation, 5, sample=None).facts
    images = {
        name: np.asarray(Image.open(next(sample.rglob(name.rpartition("/")[2])))).reshape(-1, 3).T
        for name in federation.sample_ids
    }

    def check(indices, split):
        names = [federation.sample_ids[index] for index in indices]
        classes = [dataset.class_names.index(name.split("/")[0]) for name in names]
        assert split["num_samples"] == len(names)
        assert split["class_counts"] == np.bincount(classes, minlength=10).tolist()
        compare(
            split["bands"],
            np.concatenate([images[name] for name in names], axis=1).astype(float),
            len(names),
            len(names),
        )

    total = sum(len(client.train) for client in federation.clients)
    for client, found in zip(federation.clients, facts["clients"], strict=True):
        check(client.train, found["train"])
        check(client.test, found["test"])
        assert found["weight"] == len(client.train) / total
        lacking = {
            name for name, count in zip(dataset.class_names, found["train"]["class_counts"], strict=True) if count == 0
        }
        assert set(found["classes_lacking"]) == lacking
    check(federation.test, facts["test"])
    check(federation.validation, facts["validation"])
    check(np.concatenate([client.train for client in federation.clients]), facts["train"])
    sizes = [len(client.train) for client in federation.clients]
    assert facts["largest_to_smallest"] == max(sizes) / min(sizes)
    assert [band["band"] for band in facts["train"]["bands"]] == ["red", "green", "blue"]
    assert facts["synthetic"] is True
    json.dumps(facts, allow_nan=False)


def test_a_random_part_is_seeded_and_its_size_stated(sample):
    dataset = FederatedDataset(EuroSAT(str(sample)), IID(2))
    dataset.prepare()
    federation = dataset.federation(0)
    whole, one, again, other = (
        inspect_data(dataset, federation, seed, part) for seed, part in ((1, None), (1, 4), (1, 4), (2, 4))
    )
    assert one.facts == again.facts != other.facts
    band = one.facts["clients"][0]["train"]["bands"][0]
    assert (band["moments_of"], band["pixels_of"]) == (len(federation.clients[0].train), 4)
    assert (
        band["mean"] == whole.facts["clients"][0]["train"]["bands"][0]["mean"]
    )  # of all samples, however few are looked at
    assert one.facts["train"]["bands"][0]["pixels_of"] == 8
    assert one.histograms[0]["image"].sum() == 4 * 64 * 64 * 3
    assert set(one.examples[1].tolist()) <= set(federation.clients[1].train.tolist())


def test_masks(tmp_path, layouts):
    rng = np.random.default_rng(0)
    made = {}
    for domain, (height, width) in (("a", (40, 40)), ("b", (20, 48))):  # b is narrower than a crop
        for part in ("train", "test"):
            ids = layouts.ids(rng, height, width, 3, block=8)
            image = rng.integers(1, 60000, (2, height, width)).astype(np.uint16)
            layouts.tiff(tmp_path / domain / part / "images" / "x.tif", image)
            layouts.tiff(tmp_path / domain / part / "labels" / "x.tif", (ids + 1)[None].astype(np.uint8))
            made[domain, part] = image, ids
    classes = {"one": 1, "two": 2, "three": 3}
    tests = {"test_images": "test/images", "test_labels": "test/labels"}
    archive = OwnRasters(classes=classes, in_channels=2, pixel_type="uint16", **tests)
    dataset = FederatedDataset(archive, subfolders=["a", "b"], num_clients=1, root=str(tmp_path), crop_size=24)
    dataset.prepare()
    facts = inspect_data(dataset, dataset.federation(0), 0, sample=None).facts
    assert facts["kind"] == "segmentation"
    found = facts["clients"][1]["train"]
    image, ids = made["b", "train"]
    assert found["num_samples"] == 2  # columns 0 to 23 and 24 to 47
    assert found["class_counts"] == np.bincount(ids.ravel(), minlength=3).tolist()
    assert found["ignored_pixels"] == 2 * 24 * 24 - ids.size
    compare(found["bands"], image.reshape(2, -1).astype(float), 2, 2)
    tests = [np.bincount(made[domain, "test"][1].ravel(), minlength=3) for domain in "ab"]
    assert facts["test"]["class_counts"] == sum(tests).tolist()
    assert facts["test"]["bands"] == []  # of several domains
    assert [band["band"] for band in found["bands"]] == ["band 1", "band 2"]


class Memory(ImageArchive):
    """Multi-label samples with bands of two sizes."""

    class_names = ("water", "forest", "a very long class name that no table has room for", "absent")
    band_names = ("B04", "B03", "B08", "B11")
    stored_bands: ClassVar = {"fine": ("B04", "B03", "B08"), "coarse": ("B11",)}
    dtype = "uint16"

    def __init__(self, root="."):
        rng = np.random.default_rng(0)
        self.root = root
        self.fine = rng.integers(0, 5000, (30, 3, 8, 8)).astype(np.uint16)
        self.coarse = rng.integers(0, 9000, (30, 1, 4, 4)).astype(np.uint16)
        self.label = (rng.random((30, 4)) < [0.5, 0.5, 0.2, 0]).astype(np.float32)

    def listing(self):
        splits = np.repeat(["train", "test"], [20, 10])
        owners = np.repeat(["Malta", "x/y", ""], 10)
        return ImageListing(
            Path(self.root), [str(number) for number in range(30)], self.label, splits=splits, clients=owners
        )

    def decode_sample(self, listing, number):
        return {"fine": self.fine[number], "coarse": self.coarse[number]}

    def fingerprint(self, listing):
        return "in memory"

    def acquired(self, sample_id):
        return date(2017, 6, 1 + int(sample_id) % 3)


@pytest.fixture
def several_labels(cache):
    dataset = FederatedDataset(Memory())
    dataset.prepare()
    return dataset


def test_label_sets_bands_of_two_sizes_and_days(several_labels):
    dataset, archive = several_labels, several_labels.archive
    facts = inspect_data(dataset, dataset.federation(0), 0, sample=None).facts
    assert facts["kind"] == "multi-label"
    found, label = facts["clients"][1]["train"], archive.label[10:20]
    assert found["class_counts"] == label.sum(axis=0).astype(int).tolist()
    sets = [tuple(row) for row in label.tolist()]
    assert found["label_sets"]["distinct"] == len(set(sets))
    first = found["label_sets"]["most_frequent"][0]
    assert first["num_samples"] == max(sets.count(row) for row in sets)
    assert sets.count(tuple(float(name in first["classes"]) for name in dataset.class_names)) == first["num_samples"]
    assert found["days"] == {"2017-06-01": 3, "2017-06-02": 4, "2017-06-03": 3}
    fine = archive.fine[10:20].transpose(1, 0, 2, 3).reshape(3, -1).astype(float)
    compare(found["bands"][:3], fine, 10, 10)
    compare(found["bands"][3:], archive.coarse[10:20].reshape(1, -1).astype(float), 10, 10)
    assert [band["band"] for band in found["bands"]] == ["B04", "B03", "B08", "B11"]
    assert facts["clients"][0]["classes_lacking"] == ["absent"]


def test_tables_of_many_clients_end(several_labels, capsys):
    dataset = several_labels
    facts = inspect_data(dataset, dataset.federation(0), 0).facts
    facts["clients"] = [facts["clients"][0] | {"id": number, "name": f"client {number}"} for number in range(100)]
    show(facts)
    out = capsys.readouterr().out
    assert "tables show 60 of 100 clients in rows and 24 in columns; --json FILE has all" in out
    assert "client 59 " in out
    assert "client 60 " not in out
    assert max(cell_len(line) for line in out.splitlines()) <= 80


def is_png(path):
    with Image.open(path) as image:
        image.load()
        return image.format == "PNG" and min(image.size) > 100 and len(np.unique(np.asarray(image))) > 8


def test_command(sample, tmp_path, capsys):
    config = tmp_path / "data.yaml"
    config.write_text(
        f"archive: {{class_path: EuroSAT, init_args: {{root: {sample}}}}}\nnormalise: federated\n"
        "partition: {class_path: Dirichlet, init_args: {num_clients: 3, alpha: 0.5}}\n"
    )
    command = [
        "data",
        "inspect",
        "--config",
        str(config),
        "--data.own_test",
        "true",
        "--seed",
        "3",
        "--sample",
        "8",
    ]
    assert (
        main([*command, "--examples", "2", "--out", str(tmp_path / "out"), "--json", str(tmp_path / "facts.json")]) == 0
    )
    out, err = capsys.readouterr()
    assert err == ""
    tables = out[: out.index("5 pictures: ")]
    assert max(cell_len(line) for line in tables.splitlines()) <= 80
    facts = json.loads((tmp_path / "facts.json").read_text())
    for client in facts["clients"]:
        assert f"client {client['id']}" in tables
        assert str(client["train"]["num_samples"]) in tables
        assert str(client["test"]["num_samples"]) in tables
    assert facts["seed"] == 3
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "bands.png", "classes.png", "samples-0-client-0.png", "samples-1-client-1.png", "samples-2-client-2.png",
    ]  # fmt: skip
    assert all(is_png(path) for path in (tmp_path / "out").iterdir())


def test_pictures_of_masks(tmp_path, layouts, capsys):
    layouts.potsdam(tmp_path / "data" / "potsdam", ["2_10", "2_11"], modalities=("RGBIR",), labels=("full",))
    config = tmp_path / "experiment.yaml"
    archive = "{class_path: Potsdam, init_args: {root: potsdam, modality: rgbir, split: by_position}}"
    config.write_text(
        f"data:\n  domains:\n    - {{name: four, num_clients: 2, archive: {archive}}}\n"
        f"  root: {tmp_path / 'data'}\n  crop_size: 32\ntask: {{class_path: SegmentationTask}}\nschedule: {{}}\n"
    )
    assert main(["data", "inspect", "--config", str(config), "--out", str(tmp_path / "a"), "--examples", "3"]) == 0
    assert "impervious surfaces" in capsys.readouterr().out
    assert is_png(tmp_path / "a" / "samples-0-four-0.png")


def test_pictures_of_several_labels(tmp_path, several_labels, capsys):
    _inspect(several_labels, 0, argparse.Namespace(sample=256, examples=6, out=tmp_path / "b", json=None))
    out = capsys.readouterr().out
    assert "2017-06-01 (4), 2017-06-02 (3)" in out
    assert max(cell_len(line) for line in out[: out.index("4 pictures")].splitlines()) <= 80
    assert sorted(path.name for path in (tmp_path / "b").glob("samples-*")) == [
        "samples-0-Malta.png",
        "samples-1-x-y.png",
    ]
    assert is_png(tmp_path / "b" / "samples-1-x-y.png")


def test_a_client_with_nothing_to_train_on_is_shown(several_labels, tmp_path, capsys):
    """No archive and partition make one, but a federation may hold one."""
    dataset = several_labels
    federation = dataset.federation(0)
    nothing = ClientSplit(2, "Nowhere", np.empty(0, np.int64))
    federation = replace(federation, clients=(*federation.clients, nothing))
    facts = inspect_data(dataset, federation, 0)
    show(facts.facts)
    assert "some clients have none to train on" in capsys.readouterr().out
    assert facts.facts["clients"][2]["train"]["num_samples"] == 0


def test_without_a_partition_all_is_one_client(sample, capsys):
    assert main(["data", "inspect", "eurosat", "--root", str(sample)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("no partition is given, so all training samples are those of one client")
    assert "EuroSAT (synthetic data): 1 clients, single-label" in out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--samples", "3"], "unknown option '--samples'; did you mean '--sample'?"),
        (["--sample", "0"], "argument --sample: 0 is below 1"),
        (["--data.archive.rood", "x"], "--data.archive.rood: EuroSAT has no option 'rood'; did you mean 'root'?"),
        (["--data.archive.root", "absent"], "absent: no such folder; set root to the EuroSAT folder"),
        (["--config", "absent.yaml"], "--config: no file absent.yaml"),
        (
            ["--json", "data.yaml/x.json"],
            "data.yaml/x.json: cannot be written (File exists); name another place with --json",
        ),
        (["--out", "data.yaml"], "data.yaml: cannot be written (File exists); name another place with --out"),
    ],
)
def test_mistakes_get_one_line_and_code_2(more, message, sample, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.yaml").write_text(
        f"archive: {{class_path: EuroSAT, init_args: {{root: {sample}}}}}\n"
        "partition: {class_path: IID, init_args: {num_clients: 2}}\n"
    )
    assert main(["data", "inspect", "--config", "data.yaml", *more]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err
    assert main(["data", "inspect"]) == 2
    assert "name an archive and its --root, or a --config" in capsys.readouterr().err


def test_configs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "data.yaml").write_text(
        "archive: {class_path: EuroSAT, init_args: {root: here}}\n"
        "partition: {class_path: IID, init_args: {num_clients: 2}}\n"
    )
    (tmp_path / "parts" / "experiment.yaml").write_text(
        "seed: 4\ndata: data.yaml\ntask: {class_path: Any}\nmethod: FedAvg\n"
    )
    experiment = tmp_path / "parts" / "experiment.yaml"
    dataset, seed = dataset_of([experiment], [])
    assert (type(dataset.archive), dataset.archive.root, seed) == (EuroSAT, "here", 4)
    dataset, seed = dataset_of(
        [experiment],
        ["--data.archive.root=there", "--data.partition", "ByAttribute", "--data.partition.attribute", "x"],
        7,
    )
    assert (dataset.archive.root, seed, type(dataset.domains[0].partition)) == ("there", 7, ByAttribute)
    experiment.write_text("data: data.yaml\nmethodd: FedAvg\n")
    with pytest.raises(ConfigError, match=r"experiment.yaml:2: there is no key 'methodd'; did you mean 'method'"):
        dataset_of([experiment], [])


def test_composites_and_stretch():
    rng = np.random.default_rng(0)
    bands = {name: rng.integers(1, 3000, (2, 5, 5)).astype(np.uint16) for name in ("B02", "B03", "B04", "B08")}
    made = composites(bands)
    assert list(made) == ["true colour", "false colour (near infrared, red, green)"]
    for name, chosen in (
        ("true colour", ("B04", "B03", "B02")),
        ("false colour (near infrared, red, green)", ("B08", "B04", "B03")),
    ):
        for place, band in enumerate(chosen):
            low, high = np.percentile(bands[band], [2, 98])
            np.testing.assert_allclose(made[name][..., place], np.clip((bands[band] - low) / (high - low), 0, 1))
    assert list(composites({"IR": bands["B08"], "R": bands["B04"], "G": bands["B03"]})) == [
        "false colour (near infrared, red, green)"
    ]
    assert list(composites({"band 1": bands["B08"], "band 2": bands["B04"]})) == ["band 1"]
    assert not stretch(np.zeros((1, 2, 2, 3), np.uint8), True).any()


def test_brief():
    assert [short_number(value) for value in (0, 9999, 12345, 4_560_000, 999_999, 0.12345, 85.004, 2.0)] == [
        "0", "9999", "12.3k", "4.56M", "1M", "0.123", "85", "2",
    ]  # fmt: skip
    assert short_name("short", 10) == "short"
    assert len(short_name("Land principally occupied by agriculture", 20)) <= 20
