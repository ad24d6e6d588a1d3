import re
import shutil

import numpy as np
import pytest
from PIL import Image

from fedrs_lightning.data.archives.loveda.archive import RANGES, LoveDA
from fedrs_lightning.errors import ConfigError, DataError


@pytest.fixture
def written(tmp_path, layouts):
    return tmp_path / "LoveDA", layouts.loveda(tmp_path / "LoveDA")


def read(tile):
    with tile.open() as opened:
        image, ids = opened.image.rows(0, tile.size[0]), opened.ids.rows(0, tile.size[0])[0]
        opened.finish()
    return image, ids


def test_the_official_ranges():
    assert {key: last - first + 1 for key, (first, last) in RANGES.items()} == {
        ("Train", "Rural"): 1366,
        ("Train", "Urban"): 1156,
        ("Val", "Rural"): 992,
        ("Val", "Urban"): 677,
    }


def test_areas_splits_and_the_shift_by_one(written):
    root, values = written
    for area, train, test in (("urban", [1366, 1367], [3514, 3515]), ("rural", [0, 1], [2522, 2523])):
        listing = LoveDA(str(root), area).listing()
        assert [int(tile.id) for tile in listing.train] == train
        assert [int(tile.id) for tile in listing.test] == test
        for tile in listing.train + listing.test:
            mask = values[int(tile.id)]
            assert np.array_equal(read(tile)[1], np.where(mask == 0, 255, mask - np.uint8(1)))
    both = LoveDA(str(root), "both").listing()
    assert [int(tile.id) for tile in both.train] == [0, 1, 1366, 1367]
    assert both.facts["test_set"] == "Val"


def test_a_palette_mask_gives_its_indices(written):
    root, _ = written
    tile = LoveDA(str(root), "rural").listing().train[0]
    wanted = read(tile)[1]
    with Image.open(tile.files[1]) as mask:
        coloured = mask.convert("P")
        coloured.putdata(np.asarray(mask).ravel().tolist())
    coloured.putpalette([3, 200, 77] * 256)
    coloured.save(tile.files[1])
    assert np.array_equal(read(LoveDA(str(root), "rural").listing().train[0])[1], wanted)


def test_shifted_masks_are_read_on_request(written):
    root, _ = written
    tile = LoveDA(str(root), "rural").listing().train[0]
    wanted = read(tile)[1]
    Image.fromarray(wanted).save(tile.files[1])
    assert np.array_equal(read(LoveDA(str(root), "rural", "shifted").listing().train[0])[1], wanted)
    with pytest.raises(DataError, match=r"0\.png: \d+ of 4096 pixels have values above 7"):  # 255 is no official value
        read(LoveDA(str(root), "rural").listing().train[0])


def test_a_converted_tree_is_split_by_official_ids(written, tmp_path):
    root, _ = written
    for part, name in (("Train", "train"), ("Val", "val")):
        for kind, target in (("images_png", "img_dir"), ("masks_png", "ann_dir")):
            (tmp_path / "converted" / target / name).mkdir(parents=True)
            for path in root.glob(f"{part}/*/{kind}/*.png"):
                shutil.copy(path, tmp_path / "converted" / target / name / path.name)
    first, second = LoveDA(str(root), "urban").listing(), LoveDA(str(tmp_path / "converted"), "urban").listing()
    assert second.facts["variant"] == "converted by MMSegmentation"
    assert [tile.id for tile in second.train + second.test] == [tile.id for tile in first.train + first.test]
    assert np.array_equal(read(first.train[1])[1], read(second.train[1])[1])
    (tmp_path / "converted/ann_dir/train/1366.png").unlink()
    with pytest.raises(DataError, match=r"img_dir/train/1366\.png: has no mask of the same id"):
        LoveDA(str(tmp_path / "converted"), "urban").listing()


def damage(root, what):
    image, mask = root / "Train/Rural/images_png/0.png", root / "Train/Rural/masks_png/0.png"
    if what == "above seven":
        values = np.asarray(Image.open(mask)).copy()
        values[3, 4] = 8
        Image.fromarray(values).save(mask)
    elif what == "colours":
        Image.open(image).save(mask)
    elif what == "orphan image":
        mask.unlink()
    elif what == "orphan mask":
        image.unlink()
    elif what == "sizes":
        Image.open(mask).resize((32, 64), Image.Resampling.NEAREST).save(mask)
    elif what == "grey image":
        Image.open(image).convert("L").save(image)
    elif what == "name":
        image.rename(image.with_name("first.png"))
    elif what == "truncated":
        image.write_bytes(image.read_bytes()[:900])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "above seven",
            r"masks_png/0\.png: 1 of 4096 pixels have values above 7, such as 8; LoveDA masks hold 0 \(no-data\) to 7",
        ),
        ("colours", r"masks_png/0\.png: has 3 bands, so it holds colours where class numbers 0 to 7 are expected"),
        ("orphan image", r"images_png/0\.png: has no mask of the same id"),
        ("orphan mask", r"masks_png/0\.png: has no image of the same id"),
        ("sizes", r"masks_png/0\.png: is 64 x 32, but its image 0\.png is 64 x 64"),
        ("grey image", r"images_png/0\.png: has 1 band, 3 are needed"),
        ("name", r"images_png/first\.png: is not named <id>\.png"),
        ("truncated", r"images_png/0\.png: cannot be decoded"),
    ],
)
def test_faults_are_named(written, what, message):
    root, _ = written
    damage(root, what)
    with pytest.raises(DataError, match=message):
        read(LoveDA(str(root), "rural").listing().train[0])


def test_ids_outside_their_range_are_warned_about(written):
    root, _ = written
    for kind in ("images_png", "masks_png"):
        (root / "Train/Rural" / kind / "1.png").rename(root / "Train/Rural" / kind / "1500.png")
    with pytest.warns(UserWarning, match=r"1500\.png: its id is outside the official range of its folder \(2 files\)"):
        assert LoveDA(str(root), "rural").listing().facts["outside_official_ranges"] == 2


def test_wrong_roots_and_settings(written, tmp_path):
    root, _ = written
    with pytest.raises(DataError, match="Train: is a part of LoveDA; set root to the folder that holds Train and Val"):
        LoveDA(str(root / "Train"), "rural").listing()
    shutil.rmtree(root / "Train/Urban")
    with pytest.raises(DataError, match="no training image of area urban"):
        LoveDA(str(root), "urban").listing()
    (tmp_path / "zipped").mkdir()
    (tmp_path / "zipped/Train.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"Train\.zip: is still zipped"):
        LoveDA(str(tmp_path / "zipped"), "urban").listing()
    with pytest.raises(ConfigError, match="area must be urban, rural or both, got 'city'"):
        LoveDA("x", "city")
    shutil.copytree(root / "Train", root / "again/Train")
    with pytest.raises(DataError, match=re.escape("id 0 is there twice")):
        LoveDA(str(root), "rural").listing()


def test_the_real_images(data_root):
    listing = LoveDA(str(data_root / "loveda"), "rural", split="by_position").listing()
    assert [(tile.id, tile.size) for tile in listing.train] == [("0-first", (768, 1024)), ("1-first", (768, 1024))]
    assert [tile.size for tile in listing.test] == [(256, 1024), (256, 1024)]
    whole = LoveDA(str(data_root / "loveda"), "rural").listing().train[0]
    image, ids = read(whole)
    assert image.mean(axis=(1, 2)) == pytest.approx([77.65, 82.19, 79.36], abs=0.01)
    assert np.bincount(ids.ravel(), minlength=7).tolist() == [142441, 14427, 19208, 3888, 0, 0, 868612]
    parts = [read(listing.train[0])[1], read(listing.test[0])[1]]
    assert np.array_equal(np.concatenate(parts), ids)
