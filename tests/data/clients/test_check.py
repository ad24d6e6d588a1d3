"""The check of what a config names: every part by its own check, own files through their reader."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from fedrs_lightning.cli.main import main
from fedrs_lightning.data import (
    IID,
    Domain,
    Domains,
    EuroSAT,
    FolderClassification,
    FolderDomains,
    FolderSegmentation,
    LoveDA,
    Potsdam,
)
from fedrs_lightning.data.check.dataset import check_dataset
from fedrs_lightning.data.clients.federation import FederatedDataset
from fedrs_lightning.errors import ConfigError, DataError

CLASSES = {"field": 1, "forest": 2, "water": 3}


def errors(reports):
    return [finding.message for report in reports for finding in report.findings if finding.severity == "error"]


def run(capsys, *argv):
    code = main(["data", "check", *map(str, argv)])
    return code, *capsys.readouterr()


@pytest.fixture
def rasters(tmp_path, layouts):
    """Two domains of own rasters with two training tiles and a test tile each."""
    for number, name in enumerate(("north", "south")):
        for tile, part in enumerate(("train", "train", "test")):
            rng = np.random.default_rng([number, tile])
            ids = layouts.ids(rng, 96, 80, 3) + 1
            layouts.tiff(
                tmp_path / name / part / "images" / f"t{tile}.tif", rng.integers(1, 200, (4, 96, 80), dtype=np.uint8)
            )
            layouts.tiff(tmp_path / name / part / "labels" / f"t{tile}.tif", ids[None].astype(np.uint8))
    return tmp_path


def own(root):
    return FolderDomains(str(root), ["north", "south"], 1, CLASSES, 4, ignored=[0], crop_size=32)


def test_own_rasters_are_read_through_their_reader(rasters, layouts):
    for deep in (False, True):
        reports = check_dataset(own(rasters), deep)
        assert not errors(reports)
        assert [report.files for report in reports] == [{"train": {"tiles": 2}, "test": {"tiles": 1}}] * 2
        assert [report.checked for report in reports] == [6, 6]
    assert sum(reports[0].counts.values()) == 3 * 96 * 80
    assert reports[0].counts["none of them"] == 0
    north = rasters / "north" / "train"
    shutil.copy(north / "images" / "t0.tif", rasters / "north" / "test" / "images" / "t2.tif")
    layouts.tiff(rasters / "south" / "train" / "labels" / "t1.tif", np.full((1, 96, 80), 77, np.uint8))
    content = (rasters / "south" / "test" / "images" / "t2.tif").read_bytes()
    (rasters / "south" / "test" / "images" / "t2.tif").write_bytes(content[: len(content) // 2])
    for deep in (False, True):
        same, unknown, cut = errors(check_dataset(own(rasters), deep))
        assert re.search(r"t2\.tif: the same content as .*t0\.tif, in train and test data; remove all but one", same)
        assert re.search(r"south/train/labels/t1\.tif: .* pixels have values outside the class table", unknown)
        assert re.search(r"south/test/images/t2\.tif: ", cut)


def test_own_rasters_without_a_partner_and_in_train_and_test(rasters):
    (rasters / "south" / "train" / "labels" / "t1.tif").unlink()
    (message,) = errors(check_dataset(own(rasters)))
    assert re.search(r"south/train/images/t1\.tif: has no label", message)

    def part(test):
        return FolderSegmentation(str(rasters / "north"), CLASSES, 4, ignored=[0], test_tiles=test)

    both = Domains([Domain("one", part(["t0"]), 1), Domain("two", part(["t1"]), 1)], crop_size=32, normalise="train")
    found = errors(check_dataset(both))
    assert len(found) == 2
    assert re.search(r"t1\.tif: is in test data, and in training data of domain one", "\n".join(found))


def test_domains_are_checked_by_their_own_checks(tmp_path, layouts, capsys):
    layouts.potsdam(tmp_path / "potsdam", ["2_10", "2_13"], modalities=("RGB",))
    layouts.loveda(tmp_path / "loveda")
    config = tmp_path / "domains.yaml"
    config.write_text(
        f"""class_path: Domains
init_args:
  root: {tmp_path}
  domains:
    - {{name: city, num_clients: 1, dataset: {{class_path: Potsdam, init_args: {{root: potsdam, modality: rgb, skip_tiles: ['4_12']}}}}}}
    - {{name: villages, num_clients: 1, dataset: {{class_path: LoveDA, init_args: {{root: loveda, area: rural}}}}}}
  crop_size: 32
  label_space: union
""",
        encoding="utf-8",
    )
    report = tmp_path / "report.json"
    code, out, err = run(capsys, "--config", config, "--json", report)
    assert (code, err) == (0, "")
    assert "domain city: Potsdam" in out
    assert "domain villages: LoveDA" in out
    read = json.loads(report.read_text())
    assert not read["failed"]
    assert len(read["reports"]) == 2
    masks = tmp_path / "loveda" / "Train" / "Rural" / "masks_png"
    Image.fromarray(np.full((64, 64), 9, np.uint8)).save(masks / "0.png")
    label = tmp_path / "potsdam" / "5_Labels_all" / "top_potsdam_4_12_label.tif"
    shutil.copy(label.with_name("top_potsdam_2_10_label.tif"), label)  # without an image, but skipped
    code, _, err = run(capsys, "--config", config, "--deep")
    assert code == 2
    assert re.search(r"Rural/masks_png/0\.png: 4096 of 4096 pixels have values outside", err)
    assert "4_12" not in err


def test_what_the_reader_needs_beside_sound_files(tmp_path, layouts):
    layouts.potsdam(tmp_path / "potsdam", ["2_10", "2_13"], modalities=("RGB",))
    wanted = Domains([Domain("city", Potsdam(str(tmp_path / "potsdam"), modality="irrg"), 1)], crop_size=32)
    (message,) = errors(check_dataset(wanted))
    assert "IRRG" in message
    missing = Domains([Domain("villages", LoveDA(str(tmp_path / "nowhere"), "rural"), 1)], crop_size=32)
    (message,) = errors(check_dataset(missing))
    assert "no such folder" in message


@pytest.fixture
def archive_of_images(tmp_path):
    """Four images of two classes, and a table of them."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(("field", "water", "field", "water")):
        path = tmp_path / "images" / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(path)
    rows = [
        f"{name}/{number}.png,{name},{split}"
        for number, name, split in ((0, "field", "train"), (1, "water", "train"), (2, "field", "test"))
    ]
    (tmp_path / "images.csv").write_text("\n".join(["path,label,split", *rows]) + "\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("deep", [False, True])
def test_own_images(archive_of_images, deep):
    root = archive_of_images / "images"
    dataset = FolderClassification(str(root), ["field", "water"], 3, IID(1))
    (report,) = check_dataset(dataset, deep)
    assert not report.findings
    assert report.counts == {"field": 2, "water": 2}
    listed = FolderClassification(str(root), ["field", "water"], 3, IID(1), table=str(archive_of_images / "images.csv"))
    assert not errors(check_dataset(listed, deep))
    shutil.copy(root / "field" / "0.png", root / "field" / "2.png")
    Image.fromarray(np.zeros((20, 16, 3), np.uint8)).save(root / "water" / "3.png")
    content = (root / "water" / "1.png").read_bytes()
    (root / "water" / "1.png").write_bytes(content[: len(content) // 2] if deep else b"nothing")
    cut, size, same = sorted(
        errors(check_dataset(dataset, deep)), key=lambda text: ("/1.png:" not in text, "/3.png:" not in text)
    )
    assert re.search(r"water/1\.png: ", cut)
    assert re.search(r"water/3\.png: is 16 x 20 pixels, the first image is 16 x 16", size)
    assert re.search(r"field/2\.png: the same content as .*field/0\.png; remove all but one", same)
    (root / "water" / "1.png").write_bytes(content)
    (message,) = errors(check_dataset(listed, deep))
    assert re.search(r"2\.png: the same content as .*0\.png, in train and test data", message)
    (missing,) = errors(check_dataset(FolderClassification(str(root / "nowhere"), ["field"], 3, IID(1)), deep))
    assert "no such folder" in missing


def test_own_images_that_no_run_can_deal(archive_of_images):
    root, table = archive_of_images / "images", archive_of_images / "images.csv"
    (message,) = errors(check_dataset(FolderClassification(str(root), ["field", "water"], 3, IID(9))))
    assert "9 clients but only 3 training samples" in message
    rows = ["0.png,field,train,a", "1.png,water,train,a", "2.png,field,test,a", "3.png,water,test,b"]
    lines = [f"{row.split(',')[1]}/{row}" for row in rows]
    table.write_text("\n".join(["path,label,split,client", *lines]) + "\n", encoding="utf-8")
    (message,) = errors(check_dataset(FolderClassification(str(root), ["field", "water"], 3, table=str(table))))
    assert "client 1 (b) has 0 training images, fewer than min_samples=1" in message
    dataset = FolderClassification(
        str(root), ["field", "water"], 3, table=str(table), cache_dir=str(archive_of_images / "cache")
    )
    dataset.prepare()
    with pytest.raises(DataError) as refused:
        dataset.federation(0)
    assert str(refused.value) == message


def test_plain_images_may_be_equal(archive_of_images):
    root = archive_of_images / "images"
    for number in (1, 3):
        Image.fromarray(np.full((16, 16, 3), 40, np.uint8)).save(root / "water" / f"{number}.png")
    assert not errors(check_dataset(FolderClassification(str(root), ["field", "water"], 3, IID(1))))


def test_a_tile_in_two_lists_or_of_two_clients(sample, tmp_path, capsys):
    names = [f"{name}_{number}.jpg" for name in ("Forest", "River") for number in range(1, 21)]
    for part, chosen in {"train": names, "val": names[:0], "test": names[3:4]}.items():
        (tmp_path / f"eurosat-{part}.txt").write_text("".join(f"{name}\n" for name in chosen), encoding="utf-8")
    code, _, err = run(capsys, "eurosat", "--root", sample, "--split", tmp_path)
    assert code == 2
    assert re.search(r"tile Forest_4 is also in eurosat-train\.txt; a tile may be in one list only, and once", err)
    rows = (sample / "attributes.csv").read_text().splitlines()
    (tmp_path / "attributes.csv").write_text("\n".join([*rows, rows[1].replace(",0", ",1")]) + "\n", encoding="utf-8")
    code, _, err = run(
        capsys, "eurosat", "--root", sample, "--by", "domain", "--attributes", tmp_path / "attributes.csv"
    )
    assert code == 2
    assert "two rows for AnnualCrop_1" in err
    dataset = EuroSAT(str(sample), IID(2), split=str(tmp_path))
    assert "is also in" in errors(check_dataset(dataset))[0]


def test_data_sets_without_a_check_and_wrong_options(tmp_path, capsys):
    class Own(FederatedDataset):
        num_classes, in_channels, class_names = 2, 3, ("a", "b")

        def prepare(self):
            raise AssertionError

        def federation(self, seed):
            raise AssertionError

    with pytest.raises(
        ConfigError, match=r"Own has no check of its own; fedrs data pack --config FILE decodes every sample"
    ):
        check_dataset(Own())
    config = tmp_path / "eurosat.yaml"
    config.write_text(
        "class_path: EuroSAT\ninit_args: {root: x, partition: {class_path: IID, init_args: {num_clients: 2}}}\n",
        encoding="utf-8",
    )
    for argv, message in (
        (["--config", config, "--root", "y"], "--root is said by the config"),
        (["eurosat", "--config", config], "eurosat is said by the config"),
        (["eurosat"], "name a data set and its --root, or a --config"),
        (["--config", config, "--data.init_args.rot", "y"], "did you mean 'root'"),
    ):
        code, out, err = run(capsys, *argv)
        assert (code, out) == (2, "")
        assert message in err
