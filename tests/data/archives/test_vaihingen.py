import shutil

import numpy as np
import pytest
from PIL import Image

from fedrs_lightning.data.archives.isprs import pseudo_blue, vaihingen
from fedrs_lightning.data.archives.isprs.vaihingen import Vaihingen
from fedrs_lightning.data.rasters.rows import read_whole
from fedrs_lightning.errors import ConfigError, DataError

AREAS, SIZES = ("1", "11", "2"), ((61, 83), (40, 37), (52, 52))


@pytest.fixture
def written(tmp_path, layouts):
    root = tmp_path / "Vaihingen"
    return root, layouts.vaihingen(root, AREAS, SIZES)


def read(tile):
    with tile.open() as opened:
        image, ids = opened.image.rows(0, tile.size[0]), opened.ids.rows(0, tile.size[0])[0]
        opened.finish()
    return image, ids


def test_the_official_lists():
    assert (len(vaihingen.TRAIN), len(vaihingen.TEST), len({*vaihingen.TRAIN, *vaihingen.TEST})) == (16, 17, 33)
    assert not {"9", "18", "19", "25", "36"} & {*vaihingen.TRAIN, *vaihingen.TEST}


@pytest.mark.parametrize(
    "label_folder", ["", "gts", "gts_for_participants", "ISPRS_semantic_labeling_Vaihingen_ground_truth_COMPLETE", "x"]
)
def test_image_and_label_of_one_name_are_told_apart(tmp_path, layouts, label_folder):
    ids = layouts.vaihingen(tmp_path, AREAS, SIZES, label_folder)
    listing = Vaihingen(str(tmp_path), labels_train="full", gsd="native").listing()
    assert [tile.id for tile in listing.train] == ["1", "11"]
    assert [tile.id for tile in listing.test] == ["2"]
    for tile in listing.train:
        image, found = read(tile)
        assert np.array_equal(found, np.where(ids[tile.id] == 5, 255, ids[tile.id]))
        assert np.array_equal(image, read_whole(tmp_path / "top" / f"top_mosaic_09cm_area{tile.id}.tif"))
    if label_folder in ("", "x"):  # neither folder says what it holds
        assert set(listing.facts["told_apart_by_content"].values()) == {"label"}


def test_images_outside_top_are_known_by_their_content(written):
    root, _ = written
    (root / "top").rename(root / "pictures")
    listing = Vaihingen(str(root)).listing()
    assert [tile.id for tile in listing.train] == ["1", "11"]
    assert listing.facts["told_apart_by_content"]["pictures/top_mosaic_09cm_area1.tif"] == "image"


def test_resampling_to_five_centimetres(written):
    root, ids = written
    native, fine = Vaihingen(str(root), gsd="native").listing().train, Vaihingen(str(root)).listing().train
    assert [tile.size for tile in fine] == [(110, 149), (72, 67)]
    for first, second in zip(native, fine, strict=True):
        image, labels = read(second)
        (height, width), (native_image, native_labels) = second.size, read(first)
        row = np.floor((np.arange(height) + 0.5) * first.size[0] / height).astype(int)
        column = np.floor((np.arange(width) + 0.5) * first.size[1] / width).astype(int)
        assert np.array_equal(labels, native_labels[row][:, column])  # ids, never mixed colours
        assert image.mean() == pytest.approx(native_image.mean(), abs=0.5)
        assert set(np.unique(labels)) <= {0, 1, 2, 3, 4, 255}
    assert ids["1"].shape == (61, 83)


def test_labels_without_image_are_left_out_and_named(written):
    root, _ = written
    shutil.copy(
        root / "eroded/top_mosaic_09cm_area1_noBoundary.tif", root / "eroded/top_mosaic_09cm_area9_noBoundary.tif"
    )
    listing = Vaihingen(str(root)).listing()
    assert listing.facts["labels_without_image"] == ["9"]
    assert listing.facts["labels_train"] == "eroded"


def test_rgb_explains_itself():
    with pytest.raises(ConfigError) as error:
        Vaihingen("x", modality="rgb")
    for option in ("no blue band", "potsdam_rgb+vaihingen_irrg", "vaihingen_pseudo_rgb", "vaihingen_permuted"):
        assert option in str(error.value)


def test_permuted_bands(written):
    root, _ = written
    plain, permuted = (
        read(Vaihingen(str(root), modality, gsd="native").listing().train[0])[0] for modality in ("irrg", "permuted")
    )
    assert np.array_equal(permuted, plain[[1, 2, 0]])
    assert Vaihingen(str(root), "permuted").settings()["honest_name"] == "channel-permuted IRRG"


def test_pseudo_rgb_estimates_blue_from_potsdam(written, tmp_path, cache, layouts):
    root, _ = written
    layouts.potsdam(tmp_path / "Potsdam", ("2_10", "2_11", "2_13"), 200, 150)
    dataset = Vaihingen(str(root), "pseudo_rgb", str(tmp_path / "Potsdam"), gsd="native")
    with pytest.raises(DataError, match=r"not fitted yet; call prepare\(\) first"):
        dataset.listing()
    dataset.prepare(cache)
    rows = [
        read_whole(tmp_path / f"Potsdam/4_Ortho_RGBIR/top_potsdam_{tile}_RGBIR.tif") for tile in ("2_10", "2_11")
    ]  # training tiles only
    kept = [pixels[:, start : start + 8].reshape(4, -1).astype(float) for pixels in rows for start in range(0, 200, 64)]
    red, green, blue, infrared = np.concatenate(kept, axis=1)
    wanted = np.linalg.lstsq(np.stack([infrared, red, green, np.ones_like(red)], axis=1), blue, rcond=None)[0]
    assert dataset.settings()["blue_from_ir_r_g_1"] == pytest.approx(wanted, abs=1e-6)
    assert wanted == pytest.approx([0.05, 0.5, 0.3, 12], abs=0.7)  # how the sample was made
    image, _ = read(dataset.listing().train[0])
    native = read_whole(root / "top/top_mosaic_09cm_area1.tif")
    assert np.array_equal(image[:2], native[1:])
    estimate = np.clip(np.rint(np.tensordot(wanted[:3], native.astype(float), 1) + wanted[3]), 0, 255)
    assert np.abs(image[2] - estimate).max() <= 1
    assert pseudo_blue.fitted(tmp_path / "Potsdam", cache) == dataset._blue  # kept
    shutil.rmtree(tmp_path / "Potsdam/4_Ortho_RGBIR")
    with pytest.raises(DataError, match=r"holds no RGBIR training tile \(4_Ortho_RGBIR\)"):
        dataset.prepare(cache)
    assert (pseudo_blue.pseudo_rgb((9.0, 0.0, 0.0, 0.0))(np.full((3, 1, 1), 200, np.uint8))[2] == 255).all()


def test_plain_tiles_cannot_fit_blue(tmp_path, layouts):
    path = layouts.tiff(tmp_path / "plain.tif", np.full((4, 16, 16), 9, np.uint8))
    with pytest.raises(DataError, match=r"plain\.tif: IR, red and green do not vary independently"):
        pseudo_blue.fit([path])
    path = layouts.tiff(tmp_path / "three.tif", np.full((3, 16, 16), 9, np.uint8))
    with pytest.raises(DataError, match=r"three\.tif: has 3 bands"):
        pseudo_blue.fit([path])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"modality": "cir"}, "modality must be"),
        ({"gsd": "10cm"}, "gsd must be 5cm or native"),
        ({"modality": "pseudo_rgb"}, "rgbir_root is needed for modality pseudo_rgb"),
        ({"rgbir_root": "y"}, "only for it"),
        ({"skip_tiles": ["9"]}, "'9' is not one of the 33"),
    ],
)
def test_settings_are_checked(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Vaihingen("x", **arguments)


def test_faults_are_named(written):
    root, _ = written
    extra = root / "top/top_mosaic_09cm_area9.tif"
    shutil.copy(root / "top/top_mosaic_09cm_area1.tif", extra)
    with pytest.raises(DataError, match=r"area9\.tif: is none of the 33 Vaihingen areas"):
        Vaihingen(str(root)).listing()
    extra.unlink()
    (root / "eroded/top_mosaic_09cm_area1_noBoundary.tif").unlink()
    assert Vaihingen(str(root)).listing().facts["labels_train"] == "full"
    with pytest.raises(DataError, match=r"area1\.tif: has no eroded label; set labels_train and labels_eval to full"):
        Vaihingen(str(root), labels_train="eroded").listing()
    (root / "top_mosaic_09cm_area1.tif").unlink()
    with pytest.raises(DataError, match=r"area1\.tif: has no full label; unpack the labels, or add '1' to skip_tiles"):
        Vaihingen(str(root)).listing()
    assert [tile.id for tile in Vaihingen(str(root), skip_tiles=["1"]).listing().train] == ["11"]


def test_a_converted_tree(tmp_path, layouts):
    values, pixels = (
        layouts.ids(np.random.default_rng(0), 40, 40, 7),
        np.random.default_rng(1).integers(0, 256, (40, 40, 3)).astype(np.uint8),
    )
    for part, area in (("train", "1"), ("val", "2")):
        for kind, content in (("img_dir", pixels), ("ann_dir", values)):
            (tmp_path / kind / part).mkdir(parents=True)
            Image.fromarray(content).save(tmp_path / kind / part / f"area{area}_0_0_40_40.png")
    listing = Vaihingen(str(tmp_path)).listing()
    assert [(tile.id, tile.size) for tile in listing.train + listing.test] == [("1", (72, 72)), ("2", (72, 72))]
    assert set(np.unique(read(listing.train[0])[1])) <= {0, 1, 2, 3, 4, 255}
    Image.fromarray(pixels).save(tmp_path / "ann_dir/train/area1_0_0_40_40.png")
    with pytest.raises(
        DataError,
        match=r"train/area1_0_0_40_40\.png: has 3 bands, so it holds colours where class numbers 0 to 6",
    ):
        Vaihingen(str(tmp_path)).listing()


def test_the_real_crop(data_root):
    tile = Vaihingen(str(data_root / "vaihingen")).listing().train[0]
    image, ids = read(tile)
    assert image.shape == (3, 749, 922)
    assert image.mean(axis=(1, 2)) == pytest.approx([78.5, 74.3, 73.3], abs=0.2)
    shares = np.bincount(ids.ravel(), minlength=256)[[0, 1, 2, 3, 4, 255]] / ids.size
    assert shares == pytest.approx([0.535, 0.299, 0.071, 0.009, 0.013, 0.072], abs=0.002)
