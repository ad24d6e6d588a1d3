"""Every fault of a BigEarthNet archive: the check finds it, by file name, and the reader says the same of what it
meets.
"""

import builtins
import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from fedrs_lightning.cli.main import main
from fedrs_lightning.data import BigEarthNet, FederatedDataset
from fedrs_lightning.data.archives.bigearthnet import files as layout
from fedrs_lightning.data.archives.bigearthnet.check import patch_headers
from fedrs_lightning.data.rasters.plain_tiff import first_pixels
from fedrs_lightning.errors import DataError
from fedrs_lightning.synth.bigearthnet import defects
from fedrs_lightning.synth.bigearthnet.sample import BigEarthNetSample
from fedrs_lightning.synth.sample import write_sample

TABLES = {
    "unknown-label": r"metadata\.parquet: label 'Sea and ocean' of patch {patch} is not one of the 19",
    "val-split-name": r"metadata\.parquet: split of patch {patch} is 'val', but must be .*it is called 'validation'",
    "duplicate-id": r"metadata\.parquet: patch {patch} has two rows",
    "two-splits": r"metadata\.parquet: patch {patch} is in train and in test",
}
FILES = {
    "missing-band": r"{patch}_B05\.tif: no such file; a patch needs all bands",
    "wrong-size": r"{patch}_B03\.tif: has 1 band of uint16, 100 x 100 pixels, but must have one of uint16, 120 x 120",
    "wrong-type": r"{patch}_B04\.tif: has 1 band of uint8",
    "zero-band": r"{patch}_B08\.tif: is zero everywhere",
    "truncated": r"{patch}_B11\.tif: cannot be decoded at row 0 .* it is truncated",
}
FOLDERS = {
    "not-on-disk": r"BigEarthNet-S2: 1 of (21|19) patches of the table are not on disk, the first is {patch}",
    "v1-layout": r"this is BigEarthNet v1\.0 \(",
    "nested": r"is one level too high; set root to .*download",
    "packed": r"BigEarthNet-S2\.tar: is still packed; unpack it with: tar -xf",
    "empty": r"expected BigEarthNet-S2/<product>/<patch>/<patch>_B02\.tif",
}
READ = TABLES | FILES | FOLDERS  # the reader refuses these too


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """Two summer patches a country. Read only."""
    out = tmp_path_factory.mktemp("synthetic") / "small"
    write_sample(out, BigEarthNetSample(patches=2))
    return out


@pytest.fixture
def damaged(small, tmp_path):
    def damage(*names):
        root = Path(shutil.copytree(small, tmp_path / "archive"))
        for name in names:
            defects.DEFECTS[name](root)
        return root

    return damage


def check(root, deep=False, sample=None, **options):
    """Of all seasons, unless said otherwise."""
    return BigEarthNet(str(root), **({"season": "all"} | options)).check(deep, sample)


def pattern(text, name):
    return text.format(patch=defects.PLACES[name].id if name in defects.PLACES else "")


def messages(report, severity="error"):
    return [finding.message for finding in report.findings if finding.severity == severity]


@pytest.mark.parametrize("name", READ)
def test_faults_are_found_by_headers_and_refused_by_the_reader(damaged, capsys, name):
    root = damaged(name)
    assert main(["data", "check", "bigearthnet", "--season", "all", "--root", str(root)]) == 2
    out, err = capsys.readouterr()
    assert re.fullmatch(f"error: .*{pattern(READ[name], name)}.*\n", err)
    assert "1 error, 0 warnings" in out
    with pytest.raises(DataError) as refused:
        FederatedDataset(BigEarthNet(str(root), season="all")).prepare()
    assert re.search(pattern(READ[name], name), str(refused.value))


@pytest.mark.parametrize("name", FILES)
def test_faults_are_found_by_decoding(damaged, name):
    (message,) = messages(check(damaged(name), deep=True))
    assert re.search(pattern(FILES[name], name), message)


@pytest.mark.parametrize("deep", [False, True])
def test_equal_content_is_found(damaged, deep):
    (same,) = messages(check(damaged("duplicate"), deep=deep))
    assert re.search(
        f"{defects.PLACES['duplicate'].id}: the same content as .*_00_00; .*training and test data overlap", same
    )


def test_patches_that_only_begin_alike_are_not_the_same(damaged):
    root = damaged("duplicate")
    path = layout.band_path(root / "BigEarthNet-S2", defects.PLACES["duplicate"].id, "B12")
    content = path.read_bytes()
    path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    assert not check(root).failed


def test_a_patch_without_a_row(damaged, capsys):
    root = damaged("orphan")
    assert main(["data", "check", "bigearthnet", "--season", "all", "--root", str(root)]) == 2
    assert re.search(f"{defects.PLACES['orphan'].id}: this patch is in no metadata table", capsys.readouterr().err)
    (root / layout.FLAGGED_METADATA).unlink()  # then nothing tells strangers from flagged patches
    report = check(root)
    assert not report.failed
    assert "this and 2 more patches are not in metadata.parquet" in messages(report, "note")[1]


def test_many_patches_without_rows_are_one_line(damaged):
    from pyarrow import parquet

    from fedrs_lightning.synth.bigearthnet.files import write_table

    root = damaged()
    rows = parquet.read_table(root / layout.METADATA).to_pylist()
    write_table(root / layout.METADATA, rows[3:])
    (message,) = messages(check(root))
    assert re.search(r": this patch \(and 2 more\) is in no metadata table", message)


def test_a_country_without_training_patches_is_no_client(damaged, capsys):
    from pyarrow import parquet

    from fedrs_lightning.synth.bigearthnet.files import write_table

    root = damaged()
    rows = parquet.read_table(root / layout.METADATA).to_pylist()
    write_table(
        root / layout.METADATA, [row | ({"split": "test"} if row["country"] == "Serbia" else {}) for row in rows]
    )
    report = check(root)
    assert not report.failed
    (message,) = messages(report, "warning")
    assert message.startswith(
        "country Serbia has no training patches (season: all), so that a run refuses it as a client"
    )
    assert (
        main(
            ["data", "check", "bigearthnet", "--root", str(root), "--season", "all", "--countries", "[Serbia, Finland]"]
        )
        == 2
    )
    assert capsys.readouterr().err == f"error: {message}\n"
    assert not check(root, countries=["Finland"]).findings[1:]


def test_a_patch_in_two_countries(damaged):
    from pyarrow import parquet

    from fedrs_lightning.synth.bigearthnet.files import write_table

    root = damaged()
    rows = parquet.read_table(root / layout.METADATA).to_pylist()
    write_table(root / layout.METADATA, [*rows, rows[0] | {"country": "Belgium"}])
    (message,) = messages(check(root))
    assert re.search(
        f"patch {rows[0]['patch_id']} is in {rows[0]['country']} and in Belgium; a patch may be in one split and one "
        "country",
        message,
    )


def test_flagged_patches_need_their_table(damaged, capsys):
    root = str(damaged("no-flagged-table"))
    assert main(["data", "check", "bigearthnet", "--season=all", "--root", root]) == 0
    assert main(["data", "check", "bigearthnet", "--season=all", "--root", root, "--flagged", "true"]) == 2
    assert (
        "flagged patches (snow, cloud, shadow) are wanted, but the table that lists them is missing"
        in capsys.readouterr().err
    )


def test_an_offset_is_a_warning(damaged):
    (warning,) = messages(check(damaged("offset")), "warning")
    assert re.search(r"BigEarthNet-S2: in 12 patches the darkest hundredth of every band is 1\d\d\d or more", warning)


def test_all_faults_are_listed_together(damaged):
    names = [name for name in defects.DEFECTS if name not in (*defects.ALONE, "unreadable", "no-flagged-table")]
    report = check(damaged(*names), deep=True)
    assert len(messages(report)) == len(names) - 1  # junk files are no fault
    assert not messages(report, "warning")


def test_files_and_folders_without_permission(damaged, monkeypatch):
    """By a stand-in, since the superuser may read everything."""
    root = damaged("unreadable")
    path = layout.band_path(root / "BigEarthNet-S2", defects.PLACES["unreadable"].id, "B12")
    assert path.stat().st_mode & 0o777 == 0
    true_open = os.open

    def guarded(name, *arguments, **options):
        if Path(name) == path:
            raise PermissionError(13, "Permission denied", str(path))
        return true_open(name, *arguments, **options)

    monkeypatch.setattr("fedrs_lightning.data.rasters.plain_tiff.os.open", guarded)
    (message,) = messages(check(root))
    assert message == f"{path}: no permission to read it; run chmod u+r on it"
    true_scan = os.scandir

    def closed(name):
        if Path(name).name == layout.product_of(defects.PLACES["unreadable"].id):
            raise PermissionError(13, "Permission denied", str(name))
        return true_scan(name)

    monkeypatch.setattr("fedrs_lightning.data.archives.folders.os.scandir", closed)
    (message,) = messages(check(root))
    assert "no permission to read it; run chmod u+rx on it" in message


@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_archive_gets_one_note_and_a_table(small, tmp_path, capsys, deep):
    report = tmp_path / "report.json"
    assert (
        main(
            [
                "data",
                "check",
                "bigearthnet",
                "--season=all",
                "--root",
                str(small),
                "--json",
                str(report),
                *(["--deep"] if deep else []),
            ]
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert err == ""
    assert (
        f"252 files checked ({'decoded' if deep else 'headers read; --deep looks at every pixel'}): 0 errors, 0 "
        "warnings" in out
    )
    (read,) = json.loads(report.read_text())["reports"]
    assert [finding["severity"] for finding in read["findings"]] == ["note"]
    assert read["synthetic"]
    assert read["files"]["Belgium"] == {"train": 2, "validation": 0, "test": 0, "days": 1, "flagged": 0}
    assert read["files"]["Finland"]["flagged"] == 1
    assert read["samples"]["Austria train"] == 3
    assert sum(read["samples"].values()) == 21
    assert [sum(column) for column in zip(*read["clients"].values(), strict=True)] == list(read["counts"].values())


def test_junk_is_ignored_and_strangers_are_not(damaged):
    root = damaged("junk-files")
    assert [finding.severity for finding in check(root).findings] == ["note"]
    product = next((root / "BigEarthNet-S2").glob("S2*"))
    (root / "BigEarthNet-S2" / "notes").mkdir()
    (product / "readme.txt").write_text("hello")
    warnings = messages(check(root), "warning")
    assert "notes: is no part of BigEarthNet v2.0 and is not read" in warnings[1]
    assert "readme.txt: is no part of BigEarthNet v2.0 and is not read" in warnings[0]
    shutil.copytree(product, root / "BigEarthNet-S2" / "S2A_MSIL2A_20170613T101031_87_48")
    assert "this is BigEarthNet v1.0" in messages(check(root))[0]


def test_seasons_countries_and_random_parts(small):
    summer = check(small, season="summer")
    assert set(summer.files) == set(layout.COUNTRIES[:8])
    assert check(small, season=[12]).samples == {"Austria train": 1, "Kosovo train": 1}
    assert check(small, sample=3).checked == 36
    assert check(small, countries=["Serbia"]).checked == 24
    (message,) = messages(check(small, season="summer", countries=["Kosovo", "Serbia"]))
    assert "country Kosovo has no patches left (season: summer)" in message
    (message,) = messages(check(small, season=[3]))
    assert "no patches left (season: [3])" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--season", "sumer"], "--data.archive.season: expected"),
        (["--season", "[13]"], "season must be summer, all, or a list of months"),
        (["--countries", "[Germany]"], "countries must be Finland, Ireland, "),
        (["--sample", "0"], "--sample must be at least 1, got 0"),
        (["--bands", "[B99]"], "B99"),
        (["--clients", "3"], "unknown option '--clients'"),
    ],
)
def test_wrong_options(small, capsys, options, message):
    assert main(["data", "check", "bigearthnet", "--root", str(small), *options]) == 2
    assert message in capsys.readouterr().err


def test_without_pyarrow(small, monkeypatch):
    true_import = builtins.__import__

    def guarded(name, *arguments, **options):
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return true_import(name, *arguments, **options)

    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", guarded)
    assert "needs the package pyarrow, which is not installed; run: pip install pyarrow" in messages(check(small))[0]


def test_a_missing_root_and_a_missing_table(small, damaged):
    assert "no such folder; set root to" in messages(check(small / "nowhere"))[0]
    root = damaged()
    (root / layout.METADATA).write_bytes(b"PAR1 not a table")
    assert "metadata.parquet: cannot be read as a Parquet table" in messages(check(root))[0]
    (root / layout.METADATA).unlink()
    assert "metadata.parquet: no such table" in messages(check(root))[0]


def test_real_patches_are_sound(data_root):
    for folder, patches, untrained in (("bigearthnet_v2", 21, []), ("bigearthnet_v2_v1pixels", 29, ["Switzerland"])):
        for deep in (False, True):
            report = check(data_root / folder, deep=deep)
            assert [finding.message.split()[1] for finding in report.findings] == untrained
            assert report.checked == 12 * patches
    (fault,) = check(data_root / "bigearthnet_v1").findings
    assert "this is BigEarthNet v1.0" in fault.message


def test_plain_water_may_be_equal(damaged):
    root = damaged()
    images, (first, second) = (
        root / "BigEarthNet-S2",
        (defects.PLACES[name].id for name in ("missing-band", "wrong-size")),
    )
    for patch in (first, second):
        for band in layout.ALL_BANDS:
            path = layout.band_path(images, patch, band)
            path.write_bytes(
                path.read_bytes()[: -2 * layout.SIDE[band] ** 2] + np.full(layout.SIDE[band] ** 2, 7, "<u2").tobytes()
            )
    for deep in (False, True):
        report = check(root, deep=deep)
        assert not report.failed
        assert "the same plain pixels also in" in messages(report, "note")[1]


def test_an_lmdb_is_checked_through_its_reader(small, tmp_path):
    lmdb = pytest.importorskip("lmdb")
    from safetensors.numpy import save

    root = Path(shutil.copytree(small, tmp_path / "archive", ignore=shutil.ignore_patterns("BigEarthNet-S2")))
    patches = sorted((small / "BigEarthNet-S2").glob("*/*"))
    with lmdb.open(str(root), map_size=1 << 26) as environment, environment.begin(write=True) as transaction:
        for path in patches[1:]:
            bands = {band: layout.read_band(path / f"{path.name}_{band}.tif", band) for band in layout.BANDS}
            if path == patches[5]:
                bands["B04"][:] = 0
            transaction.put(path.name.encode(), save(bands))
    (message,) = messages(check(root))[:1]
    assert f"1 of 21 patches of the table are not on disk, the first is {patches[0].name}" in message
    found = messages(check(root, deep=True))
    assert [text for text in found if f"{patches[5].name}/B04: is zero everywhere" in text]


@pytest.mark.parametrize("form", ["deflate", "big-endian", "bigtiff", "tiled"])
def test_other_forms_of_tiff_are_left_to_gdal(damaged, form):
    """They are sound: the reader reads them, so the check must not refuse them."""
    import rasterio

    root = damaged()
    path = layout.band_path(root / "BigEarthNet-S2", defects.PLACES["missing-band"].id, "B02")
    with rasterio.open(path) as raster:
        pixels, profile = raster.read(), dict(raster.profile)
    profile = {
        name: profile[name] for name in ("driver", "dtype", "count", "width", "height", "crs", "transform", "nodata")
    }
    more = {
        "deflate": {"compress": "deflate"},
        "big-endian": {"ENDIANNESS": "BIG"},
        "bigtiff": {"BIGTIFF": "YES"},
        "tiled": {"tiled": True, "blockxsize": 64, "blockysize": 64},
    }[form]
    assert first_pixels(path, 120) == pixels.tobytes()[: len(first_pixels(path, 120))] != b""
    assert first_pixels(path, 60) is None
    with rasterio.open(path, "w", **profile, **more) as raster:
        raster.write(pixels)
    assert first_pixels(path, 120) is None
    assert patch_headers(root / "BigEarthNet-S2", defects.PLACES["missing-band"].id).faults == []


def test_a_cut_header_is_not_plain(small, tmp_path):
    content = next((small / "BigEarthNet-S2").rglob("*_B05.tif")).read_bytes()
    for length in (0, 3, 7, 9, 60, 200, 300, len(content) - 1):
        (tmp_path / "cut.tif").write_bytes(content[:length])
        assert first_pixels(tmp_path / "cut.tif", 60) is None
    (tmp_path / "cut.tif").write_bytes(content)
    assert first_pixels(tmp_path / "cut.tif", 60)
