import re
import shutil

import numpy as np
import pytest
from PIL import Image

from fedrs_lightning.data.archives.isprs import potsdam
from fedrs_lightning.data.archives.isprs.potsdam import Potsdam
from fedrs_lightning.data.rasters import faults
from fedrs_lightning.data.rasters.rows import read_whole
from fedrs_lightning.errors import ConfigError, DataError

TILES = ("2_10", "4_12", "2_13")


@pytest.fixture
def root(tmp_path, layouts):
    layouts.potsdam(tmp_path / "Potsdam", TILES)
    return tmp_path / "Potsdam"


def read(tile):
    with tile.open() as opened:
        image, ids = opened.image.rows(0, tile.size[0]), opened.ids.rows(0, tile.size[0])[0]
        opened.finish()
    return image, ids


def label_of(root, tile="2_10", eroded=False):
    name = "5_Labels_all_noBoundary" if eroded else "5_Labels_all"
    return root / name / f"top_potsdam_{tile}_label{'_noBoundary' if eroded else ''}.tif"


def test_the_official_lists():
    assert (len(potsdam.TRAIN), len(potsdam.TEST), len({*potsdam.TRAIN, *potsdam.TEST})) == (24, 14, 38)
    assert {"7_12", "6_7"} <= set(potsdam.TRAIN)
    assert {"7_13", "4_15"} <= set(potsdam.TEST)


def test_modalities_and_label_sets(root, layouts):
    wanted = layouts.potsdam(root, TILES)["2_10"]
    pixels = read_whole(root / "4_Ortho_RGBIR/top_potsdam_2_10_RGBIR.tif")
    for modality, order in (("rgb", [0, 1, 2]), ("irrg", [3, 0, 1]), ("rgbir", [0, 1, 2, 3])):
        listing = Potsdam(str(root), modality).listing()
        assert [tile.id for tile in listing.train] == ["2_10", "4_12"]
        assert [tile.id for tile in listing.test] == ["2_13"]
        assert listing.facts["labels_train"] == "eroded"
        image, ids = read(listing.train[0])
        assert np.array_equal(image, pixels[order])
        assert np.array_equal(ids, np.where(layouts.eroded(wanted) >= 5, 255, wanted))
    built = Potsdam(str(root), "irrg", irrg_from="rgbir", labels_train="full", clutter="class")
    listing = built.listing()
    image, ids = read(listing.train[0])
    assert np.array_equal(image, pixels[[3, 0, 1]])
    assert np.array_equal(ids, wanted)
    assert (len(built.class_names), built.unscored) == (6, ("clutter",))
    assert (listing.facts["labels_train"], listing.facts["labels_eval"]) == ("full", "eroded")
    assert len(listing.facts["absent_train"]) == 22


def test_layout_variants(root, tmp_path):
    """Labels at the root, a nested folder of the same name, the spelling no_Boundary, other endings, junk."""
    for path in (root / "5_Labels_all").iterdir():
        shutil.move(path, root / path.name)
    (root / "5_Labels_all_noBoundary").rename(root / "5_Labels_for_participants_no_Boundary")
    (root / "2_Ortho_RGB").rename(root / "inner")
    (root / "2_Ortho_RGB").mkdir()
    (root / "inner").rename(root / "2_Ortho_RGB" / "2_Ortho_RGB")
    first = root / "2_Ortho_RGB/2_Ortho_RGB/top_potsdam_2_10_RGB.tif"
    first.rename(first.with_suffix(".TIF"))
    for name in (
        "top_potsdam_2_10_RGB.tfw",
        "._top_potsdam_2_10_RGB.tif",
        "Thumbs.db",
        "top_potsdam_2_10_RGB.tif.aux.xml",
    ):
        first.with_name(name).write_text("junk")
    listing = Potsdam(str(root), labels_train="full").listing()
    assert [tile.id for tile in listing.train] == ["2_10", "4_12"]
    link = tmp_path / "link"
    link.symlink_to(root)
    assert [tile.id for tile in Potsdam(str(link)).listing().test] == ["2_13"]


def test_the_blended_label(root):
    """4_12 of 5_Labels_all is a photo under the mask: the participants' copy is taken, or the error says what to do."""
    broken, photo = label_of(root, "4_12"), read_whole(root / "2_Ortho_RGB/top_potsdam_4_12_RGB.tif")
    good, mixed = broken.read_bytes(), (read_whole(broken) // 2 + photo // 2).astype(np.uint8)
    write(broken, mixed)
    with pytest.raises(
        DataError, match=r"top_potsdam_4_12_label\.tif: \d+ of 9216 .*5_Labels_for_participants.*skip_tiles: \['4_12'\]"
    ):
        read(Potsdam(str(root), labels_train="full").listing().train[1])
    assert [tile.id for tile in Potsdam(str(root), labels_train="full", skip_tiles=["4_12"]).listing().train] == [
        "2_10"
    ]
    (root / "5_Labels_for_participants").mkdir()
    (root / "5_Labels_for_participants" / broken.name).write_bytes(good)
    tile = Potsdam(str(root), labels_train="full").listing().train[1]
    assert "5_Labels_for_participants" in str(tile.files[1])
    assert len(np.unique(read(tile)[1])) > 3


def write(path, pixels):
    import rasterio

    with rasterio.open(
        path, "w", driver="GTiff", count=len(pixels), height=pixels.shape[1], width=pixels.shape[2], dtype=pixels.dtype
    ) as out:
        out.write(pixels)


def test_stray_colours_within_tolerance_are_decoded_and_others_counted(root):
    path = label_of(root, eroded=True)
    pixels, clean = read_whole(path), read(Potsdam(str(root)).listing().train[0])[1]
    car = (pixels == np.asarray([255, 255, 0])[:, None, None]).all(axis=0)
    pixels[:, car] = np.asarray([252, 255, 0])[:, None]
    pixels[:, 1, :9] = 77  # 9 pixels of 9216
    write(path, pixels)
    tile = Potsdam(str(root)).listing().train[0]
    with tile.open() as opened:
        opened.image.rows(0, 96)
        ids = opened.ids.rows(0, 96)[0]
        assert opened.finish() == 9
    clean[1, :9] = 255
    assert car.any()
    assert np.array_equal(ids, clean)
    pixels[:, 2, :90] = 77
    write(path, pixels)
    with pytest.raises(DataError, match=re.escape(f"{path}: 99 of 9216 pixels")):
        read(Potsdam(str(root)).listing().train[0])


def test_the_order_of_irrg_channels_is_compared(root):
    assert Potsdam(str(root), "irrg").listing().facts["irrg_order"] == "IR, R, G"
    path = root / "3_Ortho_IRRG/top_potsdam_2_10_IRRG.tif"
    write(path, read_whole(root / "4_Ortho_RGBIR/top_potsdam_2_10_RGBIR.tif")[[3, 1, 2]])
    with pytest.raises(DataError, match=r"2_10_IRRG\.tif: its channels are IR, G, B .* irrg_from: rgbir"):
        Potsdam(str(root), "irrg").listing()
    assert Potsdam(str(root), "irrg", irrg_order="accept").listing().facts["irrg_order"] == "IR, G, B"
    image, _ = read(Potsdam(str(root), "irrg", irrg_from="rgbir").listing().train[0])
    assert np.array_equal(image[1], read_whole(root / "2_Ortho_RGB/top_potsdam_2_10_RGB.tif")[0])
    shutil.rmtree(root / "2_Ortho_RGB")
    shutil.rmtree(root / "4_Ortho_RGBIR")
    assert Potsdam(str(root), "irrg").listing().facts["irrg_order"].startswith("not checked")


def test_alpha_is_dropped_with_one_warning(root):
    for path in (root / "2_Ortho_RGB/top_potsdam_2_10_RGB.tif", label_of(root, eroded=True)):
        write(path, np.concatenate([read_whole(path), np.full((1, 96, 96), 255, np.uint8)]))
    faults._warned.clear()
    with pytest.warns(UserWarning, match=r"2_10_RGB\.tif: has 4 bands; the first 3 are used") as caught:
        listing = Potsdam(str(root)).listing()
    assert len(caught) == 1
    image, ids = read(listing.train[0])
    assert image.shape == (3, 96, 96)
    assert len(np.unique(ids)) > 3


def damage(root, what):
    image, label = root / "2_Ortho_RGB/top_potsdam_2_10_RGB.tif", label_of(root, eroded=True)
    if what == "sixteen bit":
        write(image, read_whole(image).astype(np.uint16) * 257)
    elif what == "no label":
        label.unlink()
    elif what == "sizes":
        write(label, read_whole(label)[:, :90])
    elif what == "interchanged":
        first = read_whole(image)
        write(image, read_whole(label))
        write(label, first)
    elif what == "index label":
        write(label, read_whole(label)[:1] // 50)
    elif what == "one band":
        write(image, read_whole(image)[:1])
    elif what == "unknown tile":
        image.rename(image.with_name("top_potsdam_9_99_RGB.tif"))
    elif what == "no training tile":
        for tile in ("2_10", "4_12"):
            (root / f"2_Ortho_RGB/top_potsdam_{tile}_RGB.tif").unlink()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("sixteen bit", r"2_10_RGB\.tif: holds uint16 pixels, a re-export; .*from the archive"),
        ("no label", r"2_10_RGB\.tif: has no eroded label; set labels_train and labels_eval to full"),
        ("sizes", r"2_10_label_noBoundary\.tif: is 90 x 96, but its image top_potsdam_2_10_RGB\.tif is 96 x 96"),
        ("interchanged", r"2_10_label_noBoundary\.tif: .*are image and label interchanged\?"),
        (
            "index label",
            r"2_10_label_noBoundary\.tif: has 1 band, so it holds class numbers where colours are expected",
        ),
        ("one band", r"2_10_RGB\.tif: has 1 band, 3 are needed"),
        ("unknown tile", r"top_potsdam_9_99_RGB\.tif: is none of the 38 Potsdam tiles"),
        ("no training tile", "none of the 24 training tiles is there"),
    ],
)
def test_faults_are_named(root, what, message):
    damage(root, what)
    with pytest.raises(DataError, match=message):
        read(Potsdam(str(root), labels_train="eroded").listing().train[0])


def test_wrong_roots(root, tmp_path):
    for folder, message in (
        (tmp_path / "nowhere", "nowhere: no such folder; set root to the Potsdam folder"),
        (root / "5_Labels_all", r"expected 2_Ortho_RGB/.*\(set root to the folder above"),
    ):
        with pytest.raises(DataError, match=message):
            Potsdam(str(folder)).listing()
    (tmp_path / "zipped").mkdir()
    (tmp_path / "zipped" / "2_Ortho_RGB.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"2_Ortho_RGB\.zip: is still zipped"):
        Potsdam(str(tmp_path / "zipped")).listing()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: the folder is empty"):
        Potsdam(str(tmp_path / "empty")).listing()
    shutil.rmtree(root / "3_Ortho_IRRG")
    with pytest.raises(DataError, match="holds no IRRG tiles, but RGB, RGBIR; set modality or irrg_from"):
        Potsdam(str(root), "irrg").listing()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"modality": "nir"}, "modality must be rgb, irrg or rgbir, got 'nir'"),
        ({"clutter": "keep"}, "clutter must be"),
        ({"skip_tiles": ["9_9"]}, "'9_9' is not one of the 38"),
        ({"split": "random"}, "split must be"),
        ({"labels_eval": "half"}, "labels_eval must be"),
    ],
)
def test_settings_are_checked(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Potsdam("x", **arguments)


def test_a_converted_tree_is_put_together(tmp_path, layouts):
    """512 crops of MMSegmentation, here of 40, whose last row and column overlap; 0 in a label is the boundary."""
    rng = np.random.default_rng(0)
    values, pixels = layouts.ids(rng, 96, 70, 7), rng.integers(0, 256, (3, 96, 70)).astype(np.uint8)
    for kind in ("img_dir", "ann_dir"):
        (tmp_path / kind / "train").mkdir(parents=True)
    for row in (0, 40, 56):
        for column in (0, 30):
            name = f"2_10_{column}_{row}_{column + 40}_{row + 40}.png"
            part = (slice(row, row + 40), slice(column, column + 40))
            Image.fromarray(pixels[:, *part].transpose(1, 2, 0)).save(tmp_path / "img_dir/train" / name)
            Image.fromarray(values[part]).save(tmp_path / "ann_dir/train" / name)
    listing = Potsdam(str(tmp_path), "irrg").listing()
    assert listing.facts["variant"] == "converted by MMSegmentation"
    assert [(tile.id, tile.size) for tile in listing.train] == [("2_10", (96, 70))]
    image, ids = read(listing.train[0])
    assert np.array_equal(image, pixels)
    assert np.array_equal(ids, np.where((values == 0) | (values == 6), 255, values - np.uint8(1)))
    (tmp_path / "ann_dir/train/2_10_30_56_70_96.png").unlink()
    with pytest.raises(DataError, match=r"img_dir/train/2_10_30_56_70_96\.png: has no counterpart in ann_dir"):
        Potsdam(str(tmp_path)).listing()
    (tmp_path / "img_dir/train/2_10_30_56_70_96.png").unlink()
    with pytest.raises(DataError, match="tile 2_10: no piece covers row 80, column 40"):
        read(Potsdam(str(tmp_path)).listing().train[0])


def test_the_real_crop(data_root):
    image, ids = read(Potsdam(str(data_root / "potsdam")).listing().train[0])
    shares = np.bincount(ids.ravel(), minlength=256)[[0, 1, 2, 3, 4, 255]] / ids.size
    assert image.shape == (3, 416, 512)
    assert image.mean(axis=(1, 2)) == pytest.approx([74.03, 75.09, 68.75], abs=0.01)
    assert shares == pytest.approx([0.378, 0.210, 0.140, 0.144, 0.032, 0.096], abs=0.001)
    first, last = (
        Potsdam(str(data_root / "potsdam"), split="by_position").listing().__dict__[name][0]
        for name in ("train", "test")
    )
    assert (first.size, last.size) == ((416, 384), (416, 128))
    assert np.array_equal(np.concatenate([read(first)[1], read(last)[1]], axis=1), ids)
