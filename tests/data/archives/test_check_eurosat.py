"""Every fault of EuroSAT folders: the reader refuses it and the check finds it, by file name."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedrs_lightning.cli.main import main
from fedrs_lightning.data import IID, ByAttribute, EuroSAT, FederatedDataset
from fedrs_lightning.errors import DataError
from fedrs_lightning.synth.eurosat import defects

FAULTS = {
    "missing-class": r"2750: class folders missing: SeaLake; all ten",
    "misspelt-class": r"class folders missing: Forest; rename 'Forrest' to 'Forest'",
    "wrong-size": r"Highway_2\.jpg: is 48 x 48 pixels, but EuroSAT tiles are 64 x 64",
    "grey": r"Industrial_2\.jpg: is grey, but EuroSAT tiles are RGB",
    "cmyk": r"Pasture_2\.jpg: is CMYK, but EuroSAT tiles are RGB",
    "truncated": r"PermanentCrop_2\.jpg: (is truncated|cannot be decoded \(image file is truncated)",
    "tif-for-rgb": r"Residential_2\.tif: lies among the RGB JPEGs, but is one of the 13-band GeoTIFFs",
    "zipped": r"2750\.zip: is still zipped; unpack it",
    "empty": r"expected the folders AnnualCrop, \.\.\., SeaLake here or up to 2 levels below, found: ",
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found_and_refused(copied, name):
    defects.DEFECTS[name](copied / "2750")
    archive = EuroSAT(str(copied))
    for deep in (False, True):
        report = archive.check(deep)
        (message,) = [finding.message for finding in report.findings if finding.severity != "note"]
        assert re.search(FAULTS[name], message)
        assert report.failed
    with pytest.raises(DataError, match=FAULTS[name]):
        FederatedDataset(archive, IID(2)).prepare()


def test_a_fault_ends_the_command_with_code_2(copied, capsys):
    defects.DEFECTS["grey"](copied / "2750")
    assert main(["data", "check", "eurosat", "--root", str(copied)]) == 2
    out, err = capsys.readouterr()
    assert re.fullmatch(rf"error: .*{FAULTS['grey']}.*\n", err)
    assert "200 files checked (headers read; --deep looks at every pixel): 1 error, 0 warnings" in out


@pytest.mark.parametrize("deep", [False, True])
def test_duplicates_are_found(copied, deep):
    defects.DEFECTS["duplicate"](copied / "2750")
    (message,) = [
        finding.message for finding in EuroSAT(str(copied)).check(deep).findings if finding.severity == "error"
    ]
    assert re.search(r"River_2\.jpg: the same content as .*River_1\.jpg; remove all but one", message)


def test_all_faults_of_files_are_listed_together(copied):
    names = ["wrong-size", "grey", "cmyk", "truncated", "tif-for-rgb", "duplicate", "junk-files"]
    for name in names:
        defects.DEFECTS[name](copied / "2750")
    report = EuroSAT(str(copied)).check()
    errors = [finding.message for finding in report.findings if finding.severity == "error"]
    assert len(errors) == 6
    assert report.counts["Residential"] == 19


def test_names_and_strangers(copied):
    forest = copied / "2750" / "Forest"
    shutil.copy(forest / "Forest_1.jpg", forest / "Forest_01.jpeg")
    shutil.copy(copied / "2750" / "River" / "River_3.jpg", forest / "River_3.jpg")
    (forest / "Forest_4.jpg").write_bytes(b"not a picture")
    (forest / "Forest_5.jpg").write_bytes((copied / "attributes.csv").read_bytes())
    for path in (copied / "2750" / "SeaLake").iterdir():
        path.unlink()
    (copied / "2750" / "Desert").mkdir()
    (forest / "readme.txt").write_text("hello")
    messages = {finding.message: finding.severity for finding in EuroSAT(str(copied)).check().findings}
    for pattern, severity in {
        r"Forest_1\.jpg: tile 1 of Forest is there twice, also as Forest_01\.jpeg": "error",
        r"River_3\.jpg: is not named Forest_<number>\.jpg": "error",
        r"Forest_4\.jpg: not an image": "error",
        r"Forest_5\.jpg: not an image": "error",
        r"SeaLake: no RGB JPEGs named SeaLake_<number>": "error",
        r"Desert: is not part of EuroSAT and is not read": "warning",
        r"readme\.txt: is not part of EuroSAT": "warning",
        r"SYNTHETIC\.json: synthetic data, made by fedrs-lightning": "note",
    }.items():
        assert [found for message, found in messages.items() if re.search(pattern, message)] == [severity], pattern


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "no such folder; set root to the EuroSAT folder"),
        ("2750/Forest", "is one class folder; set root to its parent"),
        ("attributes.csv", "is a file; set root to the EuroSAT folder"),
        ("archive.zip", "is still zipped; unpack it"),
        ("void", "the folder is empty; expected the folders AnnualCrop"),
        ("far", "expected the folders .*found: a"),
    ],
)
def test_a_wrong_root_says_what_was_expected_and_found(copied, place, message):
    (copied / "archive.zip").write_bytes(b"PK")
    (copied / "void").mkdir()
    shutil.copytree(copied / "2750", copied / "far" / "a" / "b" / "c")
    report = EuroSAT(str(copied / place)).check()
    assert report.failed
    assert re.search(f"{place}: .*{message}", report.findings[0].message)
    with pytest.raises(DataError, match=message):
        EuroSAT(str(copied / place)).listing()


def test_geotiffs(tmp_path):
    from fedrs_lightning.synth.eurosat.sample import EuroSATSample
    from fedrs_lightning.synth.sample import write_sample

    write_sample(tmp_path / "ms", EuroSATSample(tiles=2, layout="EuroSAT_MS", defects=("wrong-size", "truncated")))
    for deep in (False, True):
        messages = [
            finding.message
            for finding in EuroSAT(str(tmp_path / "ms"), "all").check(deep).findings
            if finding.severity == "error"
        ]
        assert len(messages) == 2
        assert re.search(r"Highway_2\.tif: has 13 bands of uint16, 48 x 48 pixels", messages[0])
        assert re.search(
            r"PermanentCrop_2\.tif: (cannot be read|cannot be decoded at row \d+ .* it is truncated)", messages[1]
        )
    with pytest.raises(DataError, match=r"Highway_2\.tif"):
        FederatedDataset(EuroSAT(str(tmp_path / "ms"), bands="all"), IID(2)).prepare()


def test_a_sound_sample_gets_one_note_and_a_table_of_clients(sample, tmp_path, capsys):
    report = tmp_path / "report.json"
    options = ["--attributes", str(sample / "attributes.csv"), "--json", str(report)]
    options += ["--data.partition", "ByAttribute", "--data.partition.attribute", "domain"]
    assert main(["data", "check", "eurosat", "--root", str(sample), "--deep", *options]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "200 files checked (decoded): 0 errors, 0 warnings" in out
    assert "clients checked: 0 errors, 0 warnings" in out
    whole = json.loads(report.read_text())
    read, clients = whole["reports"]
    assert read["counts"] == dict.fromkeys(read["counts"], 20)
    assert [finding["severity"] for finding in read["findings"]] == ["note"]
    assert read["synthetic"]
    assert not whole["failed"]
    federation = FederatedDataset(
        EuroSAT(str(sample), attributes=str(sample / "attributes.csv")), ByAttribute("domain")
    )
    federation.prepare()
    shares = federation.federation(0)
    parts = {"0: 0": shares.clients[0].train, "1: 1": shares.clients[1].train, "test": shares.test}
    labels = shares.source.extras["label"].numpy()
    expected = {name: np.bincount(labels[indices], minlength=10).tolist() for name, indices in parts.items()}
    assert clients["clients"] == expected


def test_real_tiles_are_sound(data_root):
    for deep in (False, True):
        report = EuroSAT(str(data_root / "eurosat")).check(deep=deep)
        assert not report.failed
        assert report.checked == 852
        (note,) = report.findings  # three tiles of plain water
        assert note.severity == "note"
        assert "SeaLake_9064" in note.message


def test_a_random_part(sample):
    assert EuroSAT(str(sample)).check(sample=17).checked == 17
    assert EuroSAT(str(sample)).check(sample=1000).checked == 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["IID", "--data.partition.num_clients", "999"], "999 clients but only 160 training samples"),
        (["Dirichlet", "--data.partition.num_clients", "2", "--data.partition.alpha", "0"], "alpha"),
        (
            ["ByAttribute", "--data.partition.attribute", "colour"],
            "no attribute 'colour'; they have class_name, number",
        ),
        (["IID", "--data.partition.num_clients", "2", "--sample", "0"], "--sample must be at least 1"),
    ],
)
def test_wrong_options_of_the_check(sample, capsys, options, message):
    assert main(["data", "check", "eurosat", "--root", str(sample), "--data.partition", *options]) == 2
    assert message in capsys.readouterr().err


def test_files_and_folders_without_permission(copied, monkeypatch):
    """By a stand-in, since the superuser may read everything."""
    from fedrs_lightning.data.archives.eurosat import files as eurosat_files
    from fedrs_lightning.data.rasters import declared

    true_open = Path.open

    def guarded(path, *arguments, **options):
        if path.name == "River_2.jpg":
            raise PermissionError(13, "Permission denied", str(path))
        return true_open(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", guarded)
    errors = [finding.message for finding in EuroSAT(str(copied)).check().findings if finding.severity == "error"]
    assert len(errors) == 1
    assert re.search(r"River_2\.jpg: no permission to read it; run chmod u\+r", errors[0])
    with monkeypatch.context() as patch:
        patch.setattr(declared.os, "access", lambda path, mode: False)
        with pytest.raises(DataError, match=r"River_2\.jpg: no permission to read it"):
            eurosat_files.decode_rgb(copied / "2750" / "River" / "River_2.jpg")
    true_scan = os.scandir

    def closed(folder):
        if Path(folder).name == "2750":
            raise PermissionError(13, "Permission denied", str(folder))
        return true_scan(folder)

    monkeypatch.setattr(os, "access", lambda path, mode: path.name != "2750")
    monkeypatch.setattr(os, "scandir", closed)
    (fault,) = EuroSAT(str(copied)).check().findings
    assert "2750: no permission to read it; run chmod u+rx on it" in fault.message
