"""Your own labelled images: folders and tables, GeoTIFFs and PNGs that the test writes, and faults by their names."""

import csv
from inspect import signature
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from fedrs_lightning.cli.main import main
from fedrs_lightning.data import IID, ByAttribute, Dirichlet, FederatedDataset, OwnImages
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.results.store import find_runs

CLASSES = ["field", "forest, mixed", "water"]
SIDE = 16


def picture(path: Path, seed: int, side=(SIDE, SIDE), mode="RGB") -> np.ndarray:
    """A PNG of blurred noise, or a JPEG; gives [C, H, W]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bands = {"RGB": 3, "L": 1, "RGBA": 4}[mode]
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, bands)).astype(np.uint8).squeeze()
    image = Image.fromarray(coarse, mode).resize(side[::-1], Image.Resampling.BICUBIC)
    image.save(path)
    pixels = np.asarray(Image.open(path))
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def table(path: Path, header: str, rows: list[list[str]]) -> Path:
    with path.open("w", newline="") as handle:
        csv.writer(handle).writerows([header.split(","), *rows])
    return path


@pytest.fixture
def folders(tmp_path):
    """Six PNGs a class, one of them deeper; pixels by id."""
    root = tmp_path / "data"
    made = {}
    for label, name in enumerate(CLASSES):
        for number in range(6):
            place = f"{name}/{'2021/' if number == 5 else ''}{number}.png"
            made[place] = picture(root / place, 10 * label + number)
    (root / "README.txt").write_text("not an image")
    (root / "water" / "Thumbs.db").write_text("junk")
    return root, made


@pytest.fixture
def rasters(tmp_path, layouts):
    """Twelve GeoTIFFs of 4 bands of 16 bits, of three owners; rows of their table; pixels by id."""
    root, made, rows = tmp_path / "archive", {}, []
    labels = ["field", "water;field", "forest, mixed", "", "water ; forest, mixed", "field"]
    for number in range(12):
        name = f"images/{number}.tif"
        owner = ("north", "south", "west")[number % 3]
        made[name] = (
            np.random.default_rng(number).integers(0, 4000 + 2000 * (number % 3), (4, SIDE, SIDE)).astype(np.uint16)
        )
        layouts.tiff(root / name, made[name])
        rows.append([name, labels[number % 6], owner, ("train", "train", "test", "validation")[number // 3]])
    table(root / "table.csv", "path,labels,client,split", rows)
    return root, made, rows


def dataset_of(root, partition=None, *, split=None, **options):
    """Options go to the archive or to the data set, whichever has them."""
    names = signature(FederatedDataset).parameters
    own = {name: value for name, value in options.items() if name in names and name != "image_size"}
    archive = {"classes": CLASSES, "in_channels": 3} | {key: value for key, value in options.items() if key not in own}
    return FederatedDataset(OwnImages(str(root), **archive), partition, split=split, **own)


def opened(dataset, seed=0):
    dataset.prepare()
    return dataset.federation(seed)


def test_one_folder_a_class(folders):
    root, made = folders
    federation = opened(dataset_of(root, IID(2), validation_fraction=0.2, stratify=True, augment=False))
    assert list(federation.sample_ids) == sorted(made)
    batch = federation.source.gather(np.arange(18))
    for name, image, label in zip(federation.sample_ids, batch["image"].numpy(), batch["label"].tolist(), strict=True):
        np.testing.assert_array_equal(image, made[name])
        assert CLASSES[label] == name.split("/")[0]
    labels = batch["label"].numpy()
    train = np.concatenate([client.train for client in federation.clients])
    for indices, count in ((federation.test, 1), (federation.validation, 1), (train, 4)):  # of six of a class
        assert np.bincount(labels[indices]).tolist() == [count] * 3
    assert sorted(np.concatenate([train, federation.test, federation.validation])) == list(range(18))
    pixels = np.stack([made[federation.sample_ids[index]] for index in train]) / 255
    normal = federation.transform(federation.source.gather(train))["image"].numpy()
    expected = (pixels - pixels.mean((0, 2, 3), keepdims=True)) / pixels.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(normal, expected, atol=1e-5)
    assert federation.setup_bytes == {"up": 2 * 8 * 7, "down": 2 * 8 * 6}  # a count, and two numbers a band
    assert federation.manifest["test"]["class_counts"] == [1, 1, 1]
    again = dataset_of(root, Dirichlet(2, 10.0, min_samples=1), seed=4)
    assert [client.train.tolist() for client in opened(again, 0).clients] == [
        client.train.tolist() for client in opened(again, 9).clients
    ]


def test_clients_splits_and_several_labels_from_a_table(rasters):
    root, made, rows = rasters
    options = {"multi_label": True, "bands": [4, 2], "pixel_type": "uint16", "band_names": ["nir", "green"]}
    dataset = dataset_of(root, in_channels=2, table="table.csv", **options)
    federation = opened(dataset)
    assert [client.name for client in federation.clients] == ["north", "south", "west"]
    by_id = {row[0]: row for row in rows}
    for index, name in enumerate(federation.sample_ids):
        _, labels, owner, split = by_id[name]
        batch = federation.source.gather(np.array([index]))
        np.testing.assert_array_equal(batch["image"][0].numpy(), made[name][[3, 1]])
        wanted = {part.strip() for part in labels.split(";")} - {""}
        assert batch["label"].dtype == torch.float32
        assert {CLASSES[place] for place in np.flatnonzero(batch["label"][0].numpy())} == wanted
        client = federation.clients[("north", "south", "west").index(owner)]
        assert (index in client.train, index in client.test, index in federation.validation) == tuple(
            split == word for word in ("train", "test", "validation")
        )
        assert (index in federation.test) == (split == "test")
    assert federation.headline == "personal_own"
    lists = [[part.strip() for part in row[1].split(";") if part.strip()] for row in rows]
    content = {
        "path": [row[0] for row in rows],
        "label": lists,
        "client": [row[2] for row in rows],
        "split": [row[3] for row in rows],
    }
    order = np.random.default_rng(0).permutation(12)
    parquet.write_table(pa.table(content).take(order), root / "table.parquet")
    other = opened(dataset_of(root, in_channels=2, table="table.parquet", **options))
    packs = [made.source.parts[0].pack.folder for made in (federation, other)]
    assert packs[0] == packs[1]  # the same pack, though rows are shuffled
    assert other.manifest["archives"][0].pop("facts") == {"table": "table.parquet", "synthetic": None}
    assert federation.manifest["archives"][0].pop("facts") == {"table": "table.csv", "synthetic": None}
    assert other.manifest == federation.manifest
    assert dataset.band_names() == {"image": ("nir", "green")}


@pytest.mark.parametrize("normalise", ["per_client", "published"])
def test_normalisation(rasters, normalise):
    root, made, rows = rasters
    given = {"mean": [1.0, 2.0, 3.0, 4.0], "std": [1.0, 2.0, 2.0, 4.0]} if normalise == "published" else {}
    options = {"multi_label": True, "pixel_type": "uint16", "scale": 0.001, "normalise": normalise} | given
    dataset = dataset_of(root, in_channels=4, table="table.csv", **options)
    federation = opened(dataset)
    everything = np.arange(12)
    batch = federation.transform(federation.source.gather(everything))
    for index, name in enumerate(federation.sample_ids):
        owner = next(row[2] for row in rows if row[0] == name)
        own = np.stack([made[row[0]] for row in rows if row[2] == owner and row[3] == "train"]) * 0.001
        mean, std = (
            (own.mean((0, 2, 3)), own.std((0, 2, 3))) if normalise == "per_client" else map(np.array, given.values())
        )
        expected = (made[name] * 0.001 - mean[:, None, None]) / std[:, None, None]
        np.testing.assert_allclose(batch["image"][index].numpy(), expected, atol=1e-4)
    assert federation.setup_bytes == {"up": 0, "down": 0}


def test_the_split_is_drawn_within_each_client(tmp_path):
    root = tmp_path
    rows = []
    for number in range(16):
        picture(root / f"{number}.png", number)
        rows.append([f"{number}.png", CLASSES[number % 2], str(10 if number < 10 else 9), f"zone {number % 4}"])
    table(root / "t.csv", "path,label,client,zone", rows)
    dataset = dataset_of(root, table="t.csv", train_fraction=0.7)
    federation = opened(dataset, 3)
    assert [(client.name, len(client.train), len(client.test)) for client in federation.clients] == [
        ("9", 4, 2),
        ("10", 7, 3),
    ]
    table(root / "t.csv", "path,label,client,zone", rows[::-1])
    again = dataset_of(root, table="t.csv", train_fraction=0.7)
    assert [client.train.tolist() for client in opened(again, 3).clients] == [
        client.train.tolist() for client in federation.clients
    ]
    assert [client.train.tolist() for client in opened(dataset, 4).clients] != [
        client.train.tolist() for client in federation.clients
    ]
    table(root / "u.csv", "path,label,zone", [[row[0], row[1], row[3]] for row in rows])
    zones = opened(dataset_of(root, ByAttribute("zone"), table="u.csv"))
    assert [client.name for client in zones.clients] == ["zone 0", "zone 1", "zone 2", "zone 3"]
    assert zones.headline is None


def test_other_labels_are_other_data(tmp_path):
    for number in range(4):
        picture(tmp_path / f"{number}.png", number)
    manifests = []
    for order in ([0, 1, 0, 1], [1, 0, 1, 0]):  # as many of each class
        content = {"path": [f"{number}.png" for number in range(4)], "label": [CLASSES[label] for label in order]}
        content["split"] = ["train", "train", "test", "test"]
        parquet.write_table(
            pa.table(content | {"client": pa.array([1.0, 2.0, None, float("nan")])}), tmp_path / "t.parquet"
        )
        federation = opened(dataset_of(tmp_path, table="t.parquet"))
        assert [client.test for client in federation.clients] == [None, None]  # nobody's
        manifests.append(federation.manifest)
    assert manifests[0]["archives"] == manifests[1]["archives"]
    assert manifests[0]["labels_sha256"] != manifests[1]["labels_sha256"]


def test_resizing(tmp_path):
    sizes = {"a": (SIDE, SIDE), "b": (12, 30), "c": (40, 24)}
    made = {f"field/{name}.png": picture(tmp_path / "field" / f"{name}.png", 1, side) for name, side in sizes.items()}
    federation = opened(dataset_of(tmp_path, IID(1), classes=["field"], image_size=SIDE, train_fraction=1.0))
    found = federation.source.gather(np.arange(3))["image"].numpy()
    np.testing.assert_array_equal(found[0], made["field/a.png"])  # has that size already
    for image, name in zip(found, made, strict=True):
        expected = Image.fromarray(made[name].transpose(1, 2, 0)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        assert np.abs(image.transpose(1, 2, 0).astype(int) - np.asarray(expected).astype(int)).max() <= 1


ROWS = [["a.png", "field", "x", "train"], ["b.png", "water", "y", "train"], ["c.png", "water", "y", "test"]]


def changed(row: int, column: int, value: str) -> list[list[str]]:
    return [
        [value if (number, place) == (row, column) else cell for place, cell in enumerate(cells)]
        for number, cells in enumerate(ROWS)
    ]


TABLE_FAULTS = [
    (changed(1, 0, "d.png"), {}, "t.csv:3: no file .*d.png; correct the path"),
    (changed(1, 0, ""), {}, "t.csv:3: no path"),
    (changed(1, 0, "a.png"), {}, "t.csv:3: .*a.png is the same file as in .*t.csv:2; a file may be listed once only"),
    (
        changed(2, 0, "./a.png"),
        {},
        "t.csv:4: .*a.png is the same file as in .*t.csv:2.*, in split train there and test here",
    ),
    (changed(1, 0, "t.csv"), {}, "t.csv:3: .*t.csv is no image"),
    (changed(1, 1, "Watr"), {}, "t.csv:3: unknown class 'Watr'; did you mean 'water'"),
    (changed(1, 1, ""), {}, "t.csv:3: no class; a sample has exactly one"),
    (changed(1, 1, "water;water"), {"multi_label": True}, "t.csv:3: class 'water' stands there twice"),
    (
        changed(2, 3, "valid"),
        {},
        "t.csv:4: split 'valid' is not one of train, validation, test; did you mean 'validation'",
    ),
    (changed(2, 3, "val"), {}, "t.csv:4: split 'val' is not one of train, validation, test$"),
    (changed(0, 3, "test"), {}, r"client 0 \(x\) has 0 training samples, fewer than min_samples=1"),
    (changed(0, 2, ""), {}, "t.csv:2: a training image without client"),
    (changed(2, 2, ""), {"normalise": "per_client"}, "t.csv:4: an image without client"),
    ([*ROWS, ["d.png"]], {}, "t.csv:5: 1 cells, but 4 columns"),
    (changed(1, 2, "x\0"), {}, "t.csv:3: holds a zero byte, so that the file is damaged"),
    (ROWS, {"partition": IID(2)}, "the archive says whose the samples are; leave partition out"),
    (ROWS, {"table": "absent.csv"}, "absent.csv: no such table"),
    (ROWS, {"table": "a.png"}, "a.png: a table must be a .csv or .parquet file"),
    (ROWS, {"table": "t.parquet"}, "t.parquet: cannot be read as Parquet"),
    (ROWS, {"root": "absent"}, "absent: no such folder"),
]


@pytest.mark.parametrize(("rows", "options", "message"), TABLE_FAULTS)
def test_faults_of_a_table_name_the_row(rows, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate("abc"):
        picture(tmp_path / f"{name}.png", number)
    table(tmp_path / "t.csv", "path,label,client,split", rows)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError if "partition" in options else DataError, match=message) as caught:
        opened(dataset_of(**{"root": ".", "table": "t.csv"} | options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "partition", "message"),
    [
        ("Path,label,client,split", None, "has no column 'path'; did you mean 'Path'"),
        ("path;label;client;split", None, "columns must be separated by commas, got 'path;label;client;split'"),
        ("path,class,client,split", None, "needs one column 'label' or 'labels' and has neither"),
        ("path,label,label,split", None, "must name each column once"),
        (
            "path,label,owner,split",
            None,
            "nothing says whose the samples are; set partition, or name clients in a table",
        ),
        (
            "path,label,owner,split",
            ByAttribute("oner"),
            "samples have no attribute 'oner'; they have class_name, owner",
        ),
    ],
)
def test_faults_of_columns(header, partition, message, tmp_path):
    for number, name in enumerate("abc"):
        picture(tmp_path / f"{name}.png", number)
    table(tmp_path / "t.csv", header, ROWS)
    with pytest.raises((DataError, ConfigError), match=message):
        opened(dataset_of(tmp_path, partition, table="t.csv"))


def test_faults_of_folders_and_images_name_the_file(folders, layouts):
    root, _ = folders

    def fails(message, channels=3, error=DataError, **options):
        with pytest.raises(error, match=message) as caught:
            opened(dataset_of(root, IID(2), in_channels=channels, **options))
        assert "\n" not in str(caught.value)

    fails("water: no class has this name; did you mean 'Water'", classes=["field", "forest, mixed", "Water"])
    fails("no folder for class 'sand'", classes=[*CLASSES, "sand"])
    fails("0.png: has 3 bands, not in_channels=2; say with bands", channels=2)
    fails("0.png: has 3 bands, so there is no band 4", channels=1, bands=[4])
    fails("0.png: pixels are uint8, not uint16", pixel_type="uint16")
    fails(r"client 0 \(client 0\) has 7 training samples, fewer than min_samples=8", error=ConfigError, min_samples=8)
    odd = root / "water" / "0a.png"
    picture(odd, 0, (8, 9))
    fails("0a.png: is 9 x 8 pixels, the first image is 16 x 16; correct the odd one, or set image_size")
    odd.write_bytes((root / "water" / "1.png").read_bytes()[:200])
    fails("0a.png: cannot be decoded")
    odd.write_text("text")
    fails("0a.png: not an image")
    odd.unlink()
    odd.symlink_to(root / "field" / "0.png")
    fails("0a.png is the same file as in .*field/0.png; a file may be listed once only")
    odd.unlink()
    (root / "water" / "notes.doc").write_text("x")
    fails("notes.doc: is no image")
    (root / "water" / "notes.doc").unlink()
    picture(root / "field" / "0.png", 0, (8, 9))
    fails("0.png: is 9 x 8 pixels, and quarter turns need squares; set image_size of the archive, or augment: false")
    layouts.tiff(root / "field" / "0.tif", np.zeros((3, SIDE, SIDE), np.float32))
    fails("0.tif: pixels are float32, not uint8", image_size=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": ["a", "a"]}, "classes must be distinct names"),
        ({"bands": [1, 2]}, "bands must name in_channels=3 bands"),
        ({"band_names": ["r", "g"]}, "band_names must be in_channels=3 distinct names"),
        ({"multi_label": True}, "multi_label needs a table"),
        ({"mean": [0.0] * 3}, "mean and std belong together; set both or neither"),
        ({"std": [1.0] * 3}, "mean and std belong together; set both or neither"),
        ({"normalise": "published"}, "published: OwnImages has no published statistics; set federated"),
        ({"mean": [0.0] * 3, "std": [1.0, 1.0, 0.0]}, "std above 0"),
        ({"mean": [0.0] * 2, "std": [1.0] * 2}, "mean and std need in_channels=3 numbers"),
        ({"pixel_type": "int16"}, "pixel_type must be uint8 or uint16"),
        ({"separator": " "}, "separator must be"),
        ({"train_fraction": 1.5}, "train_fraction must be in"),
        ({"image_size": 0}, "image_size must be 1 to 16384"),
        ({"scale": 0.0}, "scale must be above 0"),
    ],
)
def test_settings_that_cannot_be(options, message):
    with pytest.raises(ConfigError, match=message):
        dataset_of("x", IID(2), **options)


def test_what_labels_and_owners_allow_is_said_before_anything_is_packed(folders, rasters, cache):
    root, _, _ = rasters
    options = {"table": "table.csv", "in_channels": 4, "pixel_type": "uint16"}

    def fails(message, dataset):
        with pytest.raises(ConfigError, match=message) as caught:
            dataset.prepare()
        assert "\n" not in str(caught.value)

    table(root / "free.csv", "path,labels", [[f"images/{number}.tif", "field"] for number in range(12)])
    free = options | {"table": "free.csv", "multi_label": True}
    fails("partition by class is for one class an image", dataset_of(root, Dirichlet(2, 0.3), **free))
    fails("stratify is for one class an image", dataset_of(root, IID(2), stratify=True, **free))
    fails("own_test cuts a common test set of images with one class", dataset_of(root, IID(2), own_test=True, **free))
    fails("per_client needs an archive that says whose", dataset_of(root, IID(2), normalise="per_client", **free))
    fails("nothing says whose the samples are; set partition", dataset_of(folders[0]))
    owned = options | {"multi_label": True}
    fails("validation_fraction must be 0 with a published", dataset_of(root, validation_fraction=0.1, **owned))
    fails("protocols must name personal_own", dataset_of(root, protocols=["global"], **owned))
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("several", [False, True])
def test_a_round_from_the_command_line(several, folders, rasters, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if several:
        data = f"  root: {rasters[0]}"
        archive = "table: table.csv, multi_label: true, in_channels: 4, pixel_type: uint16"
        task = "class_path: MultilabelTask"
    else:
        data = f"  root: {folders[0]}\n  partition: {{class_path: IID, init_args: {{num_clients: 2}}}}"
        archive = "in_channels: 3"
        task = "class_path: ClassificationTask"
    (tmp_path / "own.yaml").write_text(
        f"data:\n{data}\n  archive:\n    class_path: OwnImages\n"
        f"    init_args: {{classes: [field, 'forest, mixed', water], {archive}}}\n"
        f"task:\n  {task}\n  init_args: {{backbone: resnet18, width: 4, stem: small}}\n"
        "method: FedAvg\nschedule: {num_rounds: 1, batch_size: 4}\nfabric: {accelerator: cpu, devices: 1}\n"
    )
    assert main(["fit", "--config", "own.yaml", "--run.plot", "false"]) == 0
    (store,) = find_runs([tmp_path / "runs"])
    metric = "personal_own/micro_map" if several else "personal_common/overall_accuracy"
    assert 0 <= store.rounds()[0]["metrics"][metric] <= 1
    capsys.readouterr()
    assert main(["fit", "--config", "own.yaml", "--data.archive.init_args.classes", "[field]"]) == 2
    err = capsys.readouterr().err.strip().splitlines()[-1]
    assert "unknown class" in err or "no class has this name" in err
