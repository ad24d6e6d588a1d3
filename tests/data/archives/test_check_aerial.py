"""Every fault of Potsdam, Vaihingen and LoveDA folders: found, and named with its file and a remedy."""

import json
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedrs_lightning.cli.main import main
from fedrs_lightning.data import LoveDA, Potsdam, Vaihingen
from fedrs_lightning.data.rasters import declared as rasters
from fedrs_lightning.errors import DataError
from fedrs_lightning.synth.aerial import defects as aerial_defects
from fedrs_lightning.synth.aerial.archive import encode_tiff
from fedrs_lightning.synth.aerial.sample import AerialSample
from fedrs_lightning.synth.sample import write_sample

ARCHIVES = {"potsdam": Potsdam, "vaihingen": Vaihingen, "loveda": LoveDA}
ERODED = r"eroded_COMPLETE/top_mosaic_09cm_area3_noBoundary\.tif"
BOTH = "header deep"

# Data set and defect: which modes find it, how severe it is, and what is said.
FAULTS = {
    ("potsdam", "missing-label"): (
        BOTH,
        "error",
        r"2_11_RGB\.tif: image of tile 2_11 has no label; unpack the ground truth, or add '2_11'",
    ),
    ("potsdam", "missing-image"): (
        BOTH,
        "error",
        r"2_11_label\.tif: label of tile 2_11 has no image; unpack the images",
    ),
    ("potsdam", "wrong-size"): (
        BOTH,
        "error",
        r"2_11_label_noBoundary\.tif: is 112 x 120, but top_potsdam_2_11_RGB\.tif .* is 128 x 128; rep",
    ),
    ("potsdam", "interchanged"): (
        BOTH,
        "error",
        r"2_11_RGB\.tif: holds a label and .*noBoundary\.tif holds a photo; .* swap them",
    ),
    ("potsdam", "truncated"): (
        BOTH,
        "error",
        r"2_11_RGB\.tif: (is truncated|cannot be decoded at row 0.* truncated).*from the archive",
    ),
    ("potsdam", "duplicate"): (
        BOTH,
        "error",
        r"RGB\.tif: the same content as .*RGB\.tif, in test and train data; replace it",
    ),
    ("potsdam", "duplicate-id"): (
        BOTH,
        "error",
        r"copy/top_potsdam_2_11_RGB\.tif: the RGB image of tile 2_11 is there twice, .*remove one",
    ),
    ("potsdam", "unknown-tile"): (
        BOTH,
        "error",
        r"9_11_RGB\.tif \(and 4 more files of it\): is none of the 38 Potsdam tiles; rename it",
    ),
    ("potsdam", "alpha"): (BOTH, "warning", r"2_11_RGB\.tif: has 4 bands; the first 3 are used"),
    ("potsdam", "sixteen-bit"): (
        BOTH,
        "error",
        r"2_11_RGB\.tif: holds uint16 pixels, a re-export; .* replace it from the archive",
    ),
    ("potsdam", "stray-colour"): (
        BOTH,
        "note",
        r"2_11_label\.tif: \d+ pixels have stray colours within 8 .*\(252, 255, 0\); read as",
    ),
    ("potsdam", "unknown-colour"): (
        BOTH,
        "error",
        r"noBoundary\.tif: \d+ of \d+ pixels have colours outside the palette .*\(90, 60, 200\); th",
    ),
    ("potsdam", "index-label"): (
        BOTH,
        "error",
        r"noBoundary\.tif: has 1 band, so it holds class numbers where colours are expected; replace",
    ),
    ("potsdam", "irrg-order"): (
        BOTH,
        "error",
        r"IRRG\.tif \(and 2 more tiles\): its channels are IR, G, B and not IR, R, G; set irrg_from",
    ),
    ("potsdam", "blended-label"): (
        BOTH,
        "error",
        r"4_12_label\.tif: .* blended over the photo; put the one of 5_Labels_for_participants",
    ),
    ("potsdam", "zipped"): (BOTH, "error", r"2_Ortho_RGB\.zip: is still zipped; unpack it"),
    ("potsdam", "empty"): (BOTH, "error", r"expected 2_Ortho_RGB/top_potsdam_2_10_RGB\.tif .* found: "),
    ("potsdam", "colour-annotation"): (
        BOTH,
        "error",
        r"ann_dir/train/2_11.*png: has 3 bands, so it holds colours where class numbers 0 to 6",
    ),
    ("potsdam", "junk-files"): (BOTH, "none", ""),
    ("potsdam", "no-crs"): (BOTH, "none", ""),
    ("vaihingen", "missing-label"): (
        BOTH,
        "error",
        r"top/top_mosaic_09cm_area3\.tif: image of tile 3 has no label; unpack the ground truth",
    ),
    ("vaihingen", "missing-image"): (
        BOTH,
        "error",
        r"COMPLETE/top_mosaic_09cm_area3\.tif: label of tile 3 has no image; unpack the images",
    ),
    ("vaihingen", "wrong-size"): (
        BOTH,
        "error",
        ERODED + r": is \d+ x \d+, but top_mosaic_09cm_area3\.tif of the same tile is",
    ),
    ("vaihingen", "interchanged"): (
        BOTH,
        "error",
        r"top/top_mosaic_09cm_area3\.tif: holds a label and .*" + ERODED + r" holds a photo",
    ),
    ("vaihingen", "truncated"): (
        BOTH,
        "error",
        r"top/top_mosaic_09cm_area3\.tif: cannot be read as a GeoTIFF .*; replace it from the archive",
    ),
    ("vaihingen", "duplicate"): (
        BOTH,
        "error",
        r"area\d\.tif: the same content as .*area\d\.tif, in test and train data",
    ),
    ("vaihingen", "duplicate-id"): (
        BOTH,
        "error",
        r"copy/top_mosaic_09cm_area3\.tif: the IRRG image of tile 3 is there twice",
    ),
    ("vaihingen", "unknown-tile"): (
        BOTH,
        "error",
        r"top/top_mosaic_09cm_area9\.tif: is none of the 33 Vaihingen areas; rename it or move it",
    ),
    ("vaihingen", "alpha"): (BOTH, "warning", r"area3\.tif: has 4 bands; the first 3 are used"),
    ("vaihingen", "sixteen-bit"): (BOTH, "error", r"area3\.tif: holds uint16 pixels, a re-export"),
    ("vaihingen", "stray-colour"): (BOTH, "note", ERODED + r": \d+ pixels have stray colours within 8"),
    ("vaihingen", "unknown-colour"): (BOTH, "error", ERODED + r": \d+ of \d+ pixels have colours outside the palette"),
    ("vaihingen", "index-label"): (
        BOTH,
        "error",
        ERODED + r": has 1 band, so it holds class numbers where colours are expected",
    ),
    ("vaihingen", "area9-label"): (
        BOTH,
        "note",
        r"area9_noBoundary\.tif: is a label of area 9, which has no image; such labels are not read",
    ),
    ("vaihingen", "zipped"): (BOTH, "error", r"COMPLETE\.zip: is still zipped; unpack it"),
    ("vaihingen", "empty"): (BOTH, "error", r"expected top/top_mosaic_09cm_area1\.tif .* found: "),
    ("vaihingen", "colour-annotation"): (BOTH, "error", r"ann_dir/train/area3.*png: has 3 bands, so it holds colours"),
    ("vaihingen", "junk-files"): (BOTH, "none", ""),
    ("loveda", "missing-label"): (
        BOTH,
        "error",
        r"images_png/1367\.png: has no mask of the same id; unpack the archive again",
    ),
    ("loveda", "missing-image"): (
        BOTH,
        "error",
        r"masks_png/1367\.png: has no image of the same id; unpack the archive again",
    ),
    ("loveda", "wrong-size"): (
        BOTH,
        "error",
        r"masks_png/1367\.png: is 112 x 120, but 1367\.png of the same tile is 128 x 128; replace",
    ),
    ("loveda", "interchanged"): (
        BOTH,
        "error",
        r"images_png/1367\.png: holds a label and .*masks_png/1367\.png holds a photo; .*swap them",
    ),
    ("loveda", "truncated"): (
        BOTH,
        "error",
        r"images_png/1367\.png: (is truncated|cannot be decoded \(image file is truncated)",
    ),
    ("loveda", "duplicate"): (
        BOTH,
        "error",
        r"3514\.png: the same content as .*1366\.png, in Train/Urban and Val/Urban data",
    ),
    ("loveda", "duplicate-id"): (
        BOTH,
        "error",
        r"Urban/images_png/1\.png: id 1 is there twice, also as .*Rural/images_png/1\.png; ids are unique",
    ),
    ("loveda", "unknown-tile"): (BOTH, "error", r"tile_1367\.png: is not named <id>\.png; rename it"),
    ("loveda", "alpha"): (BOTH, "warning", r"1367\.png: has 4 bands; the first 3 are used"),
    ("loveda", "high-value"): (
        "deep",
        "error",
        r"masks_png/1367\.png: \d+ of \d+ pixels have values outside 0 to 7, such as 9; .*from the archive",
    ),
    ("loveda", "shifted-masks"): (
        "deep",
        "warning",
        r"masks_png/0\.png: .* 7 masks hold 0 to 6 and never 7; .* set mask_values: shifted",
    ),
    ("loveda", "palette-mask"): (BOTH, "warning", r"masks_png/1367\.png: is a palette PNG; its index array is read"),
    ("loveda", "rgb-mask"): (
        BOTH,
        "error",
        r"masks_png/1367\.png: has 3 bands, so it holds colours where class numbers 0 to 7 are expected",
    ),
    ("loveda", "outside-range"): (
        BOTH,
        "warning",
        r"images_png/907\.png: its id is outside the official range of its folder",
    ),
    ("loveda", "zipped"): (BOTH, "error", r"Train\.zip: is still zipped; unpack it"),
    ("loveda", "empty"): (BOTH, "error", r"expected Train/Urban/images_png and masks_png, .* found: "),
    ("loveda", "junk-files"): (BOTH, "none", ""),
}


@pytest.fixture(scope="session")
def aerial(tmp_path_factory):
    """Small samples by data set and layout. Read only."""
    made = {}

    def sample(dataset, layout="official"):
        if (dataset, layout) not in made:
            made[dataset, layout] = tmp_path_factory.mktemp("aerial") / dataset
            write_sample(
                made[dataset, layout], AerialSample(dataset, side=128, gsd_factor=4, layout=layout, spatial_shift=0.5)
            )
        return made[dataset, layout]

    return sample


def damaged(aerial, tmp_path, dataset, name):
    layout = "converted" if name in aerial_defects.CONVERTED else "official"
    copy = Path(shutil.copytree(aerial(dataset, layout), tmp_path / "copy"))
    aerial_defects.DEFECTS[dataset][name](copy, dataset)
    return copy


def harmless(message):
    return "synthetic data, made by" in message or "official tiles are" in message


def test_every_defect_has_its_message():
    listed = {(dataset, name) for dataset, names in aerial_defects.DEFECTS.items() for name in names}
    assert listed == set(FAULTS) | {(dataset, "unreadable") for dataset in aerial_defects.DEFECTS}


@pytest.mark.parametrize(("dataset", "name"), FAULTS)
def test_faults_are_found(aerial, tmp_path, dataset, name):
    modes, severity, pattern = FAULTS[dataset, name]
    root = damaged(aerial, tmp_path, dataset, name)
    assert json.loads((root / "SYNTHETIC.json").read_text())["synthetic"]
    for mode in ("header", "deep"):
        report = ARCHIVES[dataset](str(root)).check(mode == "deep")
        lines = [
            f"{finding.severity}: {finding.message}" for finding in report.findings if not harmless(finding.message)
        ]
        if severity == "none" or mode not in modes:
            assert lines == []
            continue
        assert any(re.search(f"^{severity}: .*{pattern}", line) for line in lines), lines
        assert report.failed == (severity == "error")
        errors = [line for line in lines if line.startswith("error")]
        # Half of the files of the unknown LoveDA tile is a mask, which is listed as well.
        wanted = 0 if severity != "error" else 2 if (dataset, name) == ("loveda", "unknown-tile") else 1
        assert len(errors) == wanted, lines
        assert all(str(root) in line for line in lines)


@pytest.mark.parametrize("dataset", ["potsdam", "vaihingen", "loveda"])
def test_a_file_without_permission(aerial, tmp_path, dataset, monkeypatch):
    """By a stand-in, since the superuser may read everything."""
    root = damaged(aerial, tmp_path, dataset, "unreadable")
    (closed,) = [path for path in root.rglob("*.*") if path.is_file() and path.stat().st_mode & 0o777 == 0]
    true_access = rasters.os.access
    monkeypatch.setattr(rasters.os, "access", lambda path, mode: Path(path) != closed and true_access(path, mode))
    errors = [
        finding.message for finding in ARCHIVES[dataset](str(root)).check().findings if finding.severity == "error"
    ]
    assert errors == [f"{closed}: no permission to read it; run chmod u+r on it"]


def read_training_tiles(dataset):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for tile in dataset.listing().train:
            with tile.open() as opened:
                opened.image.rows(0, opened.image.height)
                opened.ids.rows(0, opened.ids.height)
                opened.finish()


@pytest.mark.parametrize("name", ["missing-label", "wrong-size", "truncated", "interchanged", "unknown-tile"])
@pytest.mark.parametrize("dataset", ARCHIVES)
def test_the_reader_refuses_what_the_check_calls_an_error(aerial, tmp_path, dataset, name):
    reader = ARCHIVES[dataset](str(damaged(aerial, tmp_path, dataset, name)))
    with pytest.raises(DataError, match=r"2_11|9_11|area3|area9|1367"):
        read_training_tiles(reader)


def test_colours_near_the_limit(aerial, tmp_path):
    root = Path(shutil.copytree(aerial("potsdam"), tmp_path / "copy"))
    path = root / "5_Labels_all" / "top_potsdam_2_10_label.tif"
    pixels = np.asarray(Image.open(path)).copy()
    pixels[60:62, :80] = (100, 100, 100)  # 160 of 16384 pixels: just below 1 %
    path.write_bytes(encode_tiff(pixels))
    (finding,) = [finding for finding in Potsdam(str(root)).check(deep=True).findings if not harmless(finding.message)]
    assert finding.severity == "warning"
    assert re.search(
        r"2_10_label\.tif: 160 of 16384 pixels have colours outside the palette, .*; they are ignored", finding.message
    )
    pixels[62, :10] = (100, 100, 100)
    path.write_bytes(encode_tiff(pixels))
    report = Potsdam(str(root)).check(deep=True)
    assert report.failed
    assert report.counts["none of them"] >= 0
    assert sum(report.counts.values()) == 3 * 128 * 128


def test_bands_of_vaihingen_in_another_order(aerial, tmp_path):
    root = Path(shutil.copytree(aerial("vaihingen"), tmp_path / "copy"))
    (root / "SYNTHETIC.json").unlink()
    path = root / "top" / "top_mosaic_09cm_area1.tif"
    assert not Vaihingen(str(root)).check(deep=True).findings
    path.write_bytes(encode_tiff(np.ascontiguousarray(np.asarray(Image.open(path))[:, :, ::-1])))
    (finding,) = Vaihingen(str(root)).check(deep=True).findings
    assert finding.severity == "warning"
    assert re.search(r"area1\.tif: vegetation is not brightest in the first channel", finding.message)


def test_a_sound_sample_and_its_report(aerial, tmp_path, capsys):
    file = tmp_path / "report.json"
    assert main(["data", "check", "loveda", "--root", str(aerial("loveda")), "--deep", "--json", str(file)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "16 files checked (decoded): 0 errors, 0 warnings" in out
    (report,) = json.loads(file.read_text())["reports"]
    assert report["files"]["Train/Urban"] == {"tiles": 2, "image": 2, "mask": 2}
    masks = [np.asarray(Image.open(path)) for path in aerial("loveda").rglob("masks_png/*.png")]
    expected = np.bincount(np.concatenate([mask.ravel() for mask in masks]), minlength=8)
    assert list(report["counts"].values()) == [*expected[1:].tolist(), int(expected[0])]
    assert (report["synthetic"], report["failed"], report["unit"]) == (True, False, "pixels")
    assert main(["data", "check", "potsdam", "--root", str(aerial("potsdam")), "--sample", "1"]) == 0
    assert "5 files checked (headers read; --deep looks at every pixel)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--bands", "all"], "unknown option '--bands'"),
        (["--modality", "cir"], "--data.archive.modality: expected rgb, irrg or rgbir, got 'cir'"),
        (["--skip_tiles", "['9_9']"], "skip_tiles: '9_9' is not one of the 38 Potsdam tiles"),
        (["--sample", "0"], "--sample must be at least 1"),
    ],
)
def test_wrong_options(aerial, capsys, argv, message):
    assert main(["data", "check", "potsdam", "--root", str(aerial("potsdam")), *argv]) == 2
    assert message in capsys.readouterr().err


def test_a_wrong_root(tmp_path, capsys):
    assert main(["data", "check", "vaihingen", "--root", str(tmp_path / "none")]) == 2
    assert "no such folder; set root to the Vaihingen folder" in capsys.readouterr().err


@pytest.mark.parametrize(("dataset", "checked"), [("potsdam", 2), ("vaihingen", 2), ("loveda", 4)])
def test_real_crops_are_sound(data_root, dataset, checked):
    if not (data_root / dataset).is_dir():
        pytest.skip(f"no real crops of {dataset} under FEDRS_DATA")
    for deep in (False, True):
        report = ARCHIVES[dataset](str(data_root / dataset)).check(deep)
        assert report.checked == checked
        assert all(finding.severity == "note" for finding in report.findings)
        assert not report.synthetic
