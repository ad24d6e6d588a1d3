"""The check of a federated data set: archives by their own checks, own files through their reader, then the clients."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from fedrs_lightning.cli.main import main
from fedrs_lightning.data import IID, Domain, EuroSAT, FederatedDataset, LoveDA, OwnImages, OwnRasters, Potsdam
from fedrs_lightning.errors import DataError

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
    archive = OwnRasters(
        classes=CLASSES, in_channels=4, ignored=[0], test_images="test/images", test_labels="test/labels"
    )
    return FederatedDataset(archive, subfolders=["north", "south"], num_clients=1, root=str(root), crop_size=32)


def test_own_rasters_are_read_through_their_reader(rasters, layouts):
    for deep in (False, True):
        reports = own(rasters).check(deep)
        assert not errors(reports)
        assert [report.files for report in reports] == [{"train": {"tiles": 2}, "test": {"tiles": 1}}] * 2 + [{}]
        assert [report.checked for report in reports] == [6, 6, 0]
        crops = {"0: north 0": 18, "0: north 0, own test": 9, "1: south 0": 18, "1: south 0, own test": 9, "test": 18}
        assert reports[2].samples == crops
    assert sum(reports[0].counts.values()) == 3 * 96 * 80
    assert reports[0].counts["none of them"] == 0
    north = rasters / "north" / "train"
    shutil.copy(north / "images" / "t0.tif", rasters / "north" / "test" / "images" / "t2.tif")
    layouts.tiff(rasters / "south" / "train" / "labels" / "t1.tif", np.full((1, 96, 80), 77, np.uint8))
    content = (rasters / "south" / "test" / "images" / "t2.tif").read_bytes()
    (rasters / "south" / "test" / "images" / "t2.tif").write_bytes(content[: len(content) // 2])
    for deep in (False, True):
        same, unknown, cut = errors(own(rasters).check(deep))
        assert re.search(r"t2\.tif: the same content as .*t0\.tif, in train and test data; remove all but one", same)
        assert re.search(r"south/train/labels/t1\.tif: .* pixels have values outside the class table", unknown)
        assert re.search(r"south/test/images/t2\.tif: ", cut)


def test_own_rasters_without_a_partner_and_in_train_and_test(rasters):
    (rasters / "south" / "train" / "labels" / "t1.tif").unlink()
    (message,) = errors(own(rasters).check())
    assert re.search(r"south/train/images/t1\.tif: has no label", message)

    def part(test):
        return OwnRasters(str(rasters / "north"), classes=CLASSES, in_channels=4, ignored=[0], test_tiles=test)

    both = FederatedDataset(domains=[Domain("one", part(["t0"]), 1), Domain("two", part(["t1"]), 1)], crop_size=32)
    found = "\n".join(errors(both.check()))
    assert found.count("\n") == 1
    assert re.search(r"t1\.tif: is in test data of domain two, and in train data of domain one", found)
    assert re.search(r"t0\.tif: is in train data of domain two, and in test data of domain one", found)


def test_images_of_two_domains_in_train_and_test(archive_of_images):
    table = archive_of_images / "images.csv"
    lines = table.read_text()
    table.with_name("other.csv").write_text(lines.replace("water/1.png,water,train", "water/1.png,water,test"))

    def part(name):
        return OwnImages(
            str(archive_of_images / "images"),
            classes=["field", "water"],
            in_channels=3,
            table=str(table.with_name(name)),
        )

    domains = [Domain("one", part("images.csv"), 1), Domain("two", part("other.csv"), 1)]
    (message,) = errors(FederatedDataset(domains=domains).check())
    assert re.search(r"water/1\.png: is in test data of domain two, and in train data of domain one", message)


def test_domains_are_checked_by_their_own_checks(tmp_path, layouts, capsys):
    layouts.potsdam(tmp_path / "potsdam", ["2_10", "2_13"], modalities=("RGB",))
    layouts.loveda(tmp_path / "loveda")
    config = tmp_path / "domains.yaml"
    config.write_text(
        f"""root: {tmp_path}
domains:
  - name: city
    num_clients: 1
    archive: {{class_path: Potsdam, init_args: {{root: potsdam, modality: rgb, skip_tiles: ['4_12']}}}}
  - {{name: villages, num_clients: 1, archive: {{class_path: LoveDA, init_args: {{root: loveda, area: rural}}}}}}
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
    assert [each["dataset"].split()[0] for each in read["reports"]] == ["domain", "domain", "clients"]
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
    (message,) = errors(FederatedDataset(Potsdam(str(tmp_path / "potsdam"), modality="irrg"), IID(1)).check())
    assert "holds no IRRG tiles" in message
    (message,) = errors(FederatedDataset(LoveDA(str(tmp_path / "nowhere"), "rural"), IID(1)).check())
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


def images(root, partition=IID(1), **options):  # noqa: B008
    return FederatedDataset(OwnImages(str(root), classes=["field", "water"], in_channels=3, **options), partition)


@pytest.mark.parametrize("deep", [False, True])
def test_own_images(archive_of_images, deep):
    root = archive_of_images / "images"
    dataset = images(root)
    report, clients = dataset.check(deep)
    assert not report.findings + clients.findings
    assert clients.total == 4
    assert list(clients.clients) == ["0: client 0", "test"]
    assert report.counts == {"field": 2, "water": 2}
    listed = images(root, table=str(archive_of_images / "images.csv"))
    assert not errors(listed.check(deep))
    shutil.copy(root / "field" / "0.png", root / "field" / "2.png")
    Image.fromarray(np.zeros((20, 16, 3), np.uint8)).save(root / "water" / "3.png")
    content = (root / "water" / "1.png").read_bytes()
    (root / "water" / "1.png").write_bytes(content[: len(content) // 2] if deep else b"nothing")
    cut, size, same = sorted(
        errors(dataset.check(deep)), key=lambda text: ("/1.png:" not in text, "/3.png:" not in text)
    )
    assert re.search(r"water/1\.png: ", cut)
    assert re.search(r"water/3\.png: is 16 x 20 pixels, the first image is 16 x 16", size)
    assert re.search(r"field/2\.png: the same content as .*field/0\.png; remove all but one", same)
    (root / "water" / "1.png").write_bytes(content)
    (message,) = errors(listed.check(deep))
    assert re.search(r"2\.png: the same content as .*0\.png, in train and test data", message)
    (missing,) = errors(images(root / "nowhere").check(deep))
    assert "no such folder" in missing


def test_own_images_that_no_run_can_partition(archive_of_images):
    root, table = archive_of_images / "images", archive_of_images / "images.csv"
    (message,) = errors(images(root, partition=IID(9)).check())
    assert "9 clients but only 3 training samples" in message
    rows = ["0.png,field,train,a", "1.png,water,train,a", "2.png,field,test,a", "3.png,water,test,b"]
    lines = [f"{row.split(',')[1]}/{row}" for row in rows]
    table.write_text("\n".join(["path,label,split,client", *lines]) + "\n", encoding="utf-8")
    dataset = images(root, partition=None, table=str(table))
    (message,) = errors(dataset.check())
    assert "client 1 (b) has 0 training samples, fewer than min_samples=1" in message
    dataset.prepare()
    with pytest.raises(DataError) as refused:
        dataset.federation(0)
    assert str(refused.value) == message


def test_plain_images_may_be_equal(archive_of_images):
    root = archive_of_images / "images"
    for number in (1, 3):
        Image.fromarray(np.full((16, 16, 3), 40, np.uint8)).save(root / "water" / f"{number}.png")
    assert not errors(images(root).check())


def test_a_tile_in_two_lists_or_of_two_clients(sample, tmp_path, capsys):
    names = [f"{name}_{number}.jpg" for name in ("Forest", "River") for number in range(1, 21)]
    for part, chosen in {"train": names, "val": names[:0], "test": names[3:4]}.items():
        (tmp_path / f"eurosat-{part}.txt").write_text("".join(f"{name}\n" for name in chosen), encoding="utf-8")
    code, _, err = run(capsys, "eurosat", "--root", sample, "--lists", tmp_path)
    assert code == 2
    assert re.search(r"tile Forest_4 is also in eurosat-train\.txt; a tile may be in one list only, and once", err)
    rows = (sample / "attributes.csv").read_text().splitlines()
    (tmp_path / "attributes.csv").write_text("\n".join([*rows, rows[1].replace(",0", ",1")]) + "\n", encoding="utf-8")
    options = ["--data.partition", "ByAttribute", "--data.partition.attribute", "domain"]
    code, _, err = run(capsys, "eurosat", "--root", sample, "--attributes", tmp_path / "attributes.csv", *options)
    assert code == 2
    assert "two rows for AnnualCrop_1" in err
    (message,) = errors(FederatedDataset(EuroSAT(str(sample), lists=str(tmp_path)), IID(2)).check())
    assert "is also in" in message


def test_without_clients_the_archive_alone_is_checked(sample):
    (report,) = FederatedDataset(EuroSAT(str(sample))).check()
    assert (report.dataset, report.checked, report.clients) == ("EuroSAT", 200, {})


def test_wrong_options(tmp_path, capsys):
    config = tmp_path / "eurosat.yaml"
    config.write_text("archive: {class_path: EuroSAT, init_args: {root: x}}\npartition: IID\n", encoding="utf-8")
    for argv, message in (
        ([], "name an archive and its --root, or a --config: an experiment file or a data file, such as configs"),
        (["--config", config, "--root", "y"], "unknown option '--root"),
        (["eurosta", "--root", "y"], "'eurosta' is no archive; did you mean 'EuroSAT'?"),
        (["no_such_module.Archive", "--root", "y"], "'no_such_module.Archive' is no archive"),
        (["--config", config, "--data.archive.rot", "y"], "did you mean 'root'"),
    ):
        code, out, err = run(capsys, *argv)
        assert (code, out) == (2, "")
        assert message in err


def test_a_name_is_short_for_options_of_the_data_set(sample, tmp_path, capsys):
    written = []
    config = tmp_path / "eurosat.yaml"
    config.write_text(f"archive: {{class_path: EuroSAT, init_args: {{root: {sample}}}}}\n", encoding="utf-8")
    for argv in (
        ["eurosat", "--root", sample],
        ["EuroSAT", f"--root={sample}"],
        ["--data.archive", "EuroSAT", "--data.archive.root", sample],
        ["--config", config],
    ):
        code, out, _ = run(capsys, *argv, "--json", tmp_path / "report.json")
        assert code == 0
        written.append((out, (tmp_path / "report.json").read_text()))
    assert len(set(written)) == 1
