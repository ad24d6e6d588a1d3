import re

import numpy as np
import pytest
from PIL import Image

from fedrs_lightning.data.archives.own.rasters import OwnRasters
from fedrs_lightning.errors import ConfigError, DataError

VALUES = {"field": 3, "forest": 1}


@pytest.fixture
def root(tmp_path, layouts):
    """Five bands of uint16 with labels of values 0 (none), 1 and 3; two tiles for training and one for testing."""
    rng = np.random.default_rng(0)
    for part, names in (("train", ("t10", "t9")), ("test", ("t1",))):
        for name in names:
            pixels = rng.integers(0, 3000, (5, 40, 50)).astype(np.uint16)
            layouts.tiff(tmp_path / part / "images" / f"{name}.tif", pixels)
            layouts.tiff(
                tmp_path / part / "labels" / f"{name}.tif",
                np.asarray([0, 1, 3], np.uint8)[layouts.ids(rng, 40, 50, 3)][None],
            )
    return tmp_path


def make(root, **arguments):
    settings = {
        "classes": VALUES,
        "in_channels": 2,
        "bands": [5, 2],
        "pixel_type": "uint16",
        "ignored": [0],
        "test_images": "test/images",
    }
    return OwnRasters(str(root), **settings | {"test_labels": "test/labels"} | arguments)


def read(tile):
    with tile.open() as opened:
        image, ids = opened.image.rows(0, tile.size[0]), opened.ids.rows(0, tile.size[0])[0]
        return image, ids, opened.finish()


def test_bands_values_and_order(root):
    import rasterio

    dataset = make(root)
    listing = dataset.listing()
    assert [tile.id for tile in listing.train] == ["t9", "t10"]
    assert [tile.id for tile in listing.test] == ["t1"]
    image, ids, unknown = read(listing.train[1])
    with rasterio.open(root / "train/images/t10.tif") as pixels, rasterio.open(root / "train/labels/t10.tif") as values:
        assert np.array_equal(image, pixels.read()[[4, 1]])
        assert np.array_equal(ids, np.asarray([255, 1, 255, 0], np.uint8)[values.read(1)])
    assert unknown == 0
    assert (dataset.class_names, dataset.dtype, dataset.scale, dataset.published) == (
        ("field", "forest"),
        "uint16",
        1.0,
        None,
    )


def test_pictures_with_colours_and_endings(tmp_path):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 3, (20, 20))
    (tmp_path / "all").mkdir()
    for name in ("a", "b"):
        Image.fromarray(rng.integers(0, 256, (20, 20, 3)).astype(np.uint8)).save(tmp_path / f"all/{name}_rgb.png")
        Image.fromarray(np.asarray([(255, 0, 0), (0, 255, 0), (0, 0, 0)], np.uint8)[ids]).save(
            tmp_path / f"all/{name}_label.png"
        )
    dataset = OwnRasters(
        str(tmp_path),
        classes={"red": [255, 0, 0], "green": [0, 255, 0]},
        in_channels=3,
        ignored=[[0, 0, 0]],
        images="all",
        labels="all",
        image_ending="_rgb",
        label_ending="_label",
        test_tiles=["b"],
    )
    listing = dataset.listing()
    assert [tile.id for tile in listing.train + listing.test] == ["a", "b"]
    assert np.array_equal(read(listing.train[0])[1], np.where(ids == 2, 255, ids))


def test_the_check_looks_at_every_row_of_a_picture(tmp_path):
    """It is decoded whole anyway; a wrong value in the first rows is found without decoding everything on purpose."""
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        for kind in ("images", "labels"):
            (tmp_path / part / kind).mkdir(parents=True)
        Image.fromarray(rng.integers(0, 256, (200, 40, 3)).astype(np.uint8)).save(tmp_path / part / "images" / "a.png")
        ids = rng.integers(1, 3, (200, 40)).astype(np.uint8)
        ids[:20] = 9 if part == "train" else ids[:20]
        Image.fromarray(ids).save(tmp_path / part / "labels" / "a.png")
    test = {"test_images": "test/images", "test_labels": "test/labels"}
    report = OwnRasters(str(tmp_path), classes={"a": 1, "b": 2}, in_channels=3, **test).check()
    (message,) = [finding.message for finding in report.findings if finding.severity == "error"]
    assert re.search(r"train/labels/a\.png: 800 of 8000 pixels have values outside the class table", message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bands": [1]}, "bands must name in_channels=2 bands"),
        ({"bands": [0, 1]}, "numbered from 1"),
        ({"test_labels": None}, "belong together"),
        ({"test_tiles": ["t9"]}, "exactly one of"),
        ({"split": "by_position"}, "exactly one of"),
        ({"pixel_type": "float32"}, "pixel_type must be uint8 or uint16"),
    ],
)
def test_settings_are_checked(root, arguments, message):
    with pytest.raises(ConfigError, match=message):
        make(root, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bands": [6, 1]}, r"t9\.tif: has 5 bands, not 6; correct in_channels or bands"),
        ({"pixel_type": "uint8"}, r"t9\.tif: holds uint16 pixels, but pixel_type is uint8"),
        (
            {"classes": {"red": [1, 2, 3]}, "ignored": None},
            r"labels/t9\.tif: has 1 band of uint8, but classes are colours",
        ),
        ({"labels": "train/masks"}, r"train/masks: no such folder; it is named in the config"),
        ({"label_ending": "_label"}, r"train/labels: holds no raster named \*_label"),
        ({"test_images": None, "test_labels": None, "test_tiles": ["t7"]}, "holds no image of test tile 't7'"),
        ({"test_images": None, "test_labels": None, "test_tiles": ["t9", "t10"]}, "names every image"),
        ({"ignored": None}, r"labels/t9\.tif: \d+ of 2000 pixels have values outside the class table"),
    ],
)
def test_faults_are_named(root, arguments, message):
    with pytest.raises(DataError, match=message):
        read(make(root, **arguments).listing().train[0])


def test_pairs_must_be_complete(root):
    label = root / "train/labels/t9.tif"
    label.rename(root / "t9.tif")
    with pytest.raises(DataError, match=r"images/t9\.tif: has no label t9 in .*labels; add it"):
        make(root).listing()
    (root / "t9.tif").rename(label)
    (root / "train/images/t9.tif").rename(root / "t9.tif")
    with pytest.raises(DataError, match=r"labels/t9\.tif: has no image t9 in"):
        make(root).listing()
    (root / "t9.tif").rename(root / "train/images/t9.tif")
    Image.fromarray(np.zeros((40, 50), np.uint8)).save(label.with_suffix(".png"))
    with pytest.raises(DataError, match="tile t9 is there twice"):
        make(root).listing()
