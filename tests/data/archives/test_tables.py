"""One reader for all tables of text: byte order marks, encodings, separators, ends of lines."""

import pytest

from fedrs_lightning.data import IID, FederatedDataset, OwnImages
from fedrs_lightning.data.archives.eurosat.lists import read_attributes, read_split_lists
from fedrs_lightning.data.archives.tables import read_lines, read_table
from fedrs_lightning.errors import DataError

IDS = tuple(f"River/River_{number}.jpg" for number in range(1, 4))
TEXT = "file,city\nRiver_1.jpg,Köln\nRiver_2.jpg,Rom\nRiver_3.jpg,Bonn\n"


@pytest.mark.parametrize(
    "content",
    [
        TEXT.encode(),
        TEXT.encode("utf-8-sig"),
        TEXT.replace("\n", "\r\n").encode("utf-8-sig"),
        TEXT.replace("\n", "\r").encode(),
        TEXT.replace(",", ", ").encode(),
        TEXT.replace(",", ', "').replace("\n", '"\n').replace('"city"', "city").encode(),
        TEXT.replace("\n", "\n\n").encode(),
    ],
    ids=["plain", "mark", "mark and CRLF", "CR", "spaces", "quotes", "empty lines"],
)
def test_the_same_table_in_all_its_forms(tmp_path, content):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    assert read_attributes(path, IDS)["city"].tolist() == ["Köln", "Rom", "Bonn"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TEXT.encode("latin-1"), r"table\.csv:2: is no text in UTF-8; save it in UTF-8"),
        (TEXT.encode("utf-16"), r"table\.csv: is text in UTF-16; save it in UTF-8"),
        (TEXT.encode("utf-16-be"), r"table\.csv:.*(no text in UTF-8|zero byte)"),
        (TEXT.replace(",", ";").encode(), r"columns must be separated by commas, got 'file;city'"),
        (TEXT.replace(",", "\t").encode(), r"columns must be separated by commas"),
        (TEXT.replace("Rom", "Rom,x").encode(), r"table\.csv:3: 3 cells, but 2 columns"),
        (TEXT.replace("city", "file").encode(), r"must name each column once, got file, file"),
        (TEXT.replace("city", "").encode(), r"must name each column once"),
        (b"", r"must name each column once, got nothing"),
        (TEXT.replace("Rom", '"Rom').encode(), r"cannot be read .*save it as CSV again"),
        (TEXT.replace("Rom", "Ro\0m").encode(), r"table\.csv:3: holds a zero byte"),
        (b"file,city\n" + b"a" * 200_000 + b",b\n", r"table\.csv:\d: cannot be read \(field larger than"),
    ],
)
def test_another_form_is_one_line(tmp_path, content, message):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as raised:
        read_table(path)
    assert "\n" not in str(raised.value)


def test_split_lists_are_read_alike(tmp_path):
    for number, part in enumerate(("train", "val", "test"), 1):
        text = f"\ufeffRiver_{number}.jpg\r\n"
        (tmp_path / f"eurosat-{part}.txt").write_bytes(text.encode())
    assert read_split_lists(tmp_path, "eurosat", IDS)[0].tolist() == ["train", "validation", "test"]
    (tmp_path / "eurosat-val.txt").write_bytes("River_2.jpg\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"eurosat-val\.txt: is text in UTF-16; save it in UTF-8"):
        read_split_lists(tmp_path, "eurosat", IDS)
    with pytest.raises(DataError, match="cannot be read"):
        read_lines(tmp_path)


JUNK = (
    *("@eaDir/{}/SYNOPHOTO_THUMB_M.png", "#recycle/{}", "__MACOSX/._{}", "$RECYCLE.BIN/{}", "._{}", ".DS_Store"),
    *("thumbs.db", "Thumbs.db", "ehthumbs.db", "Desktop.ini", ".ipynb_checkpoints/{}", "lost+found/{}", "{}.aux.xml"),
    *("System Volume Information/{}", "@Recycle/{}", "{}~", "a.pgw", "{}.ovr", "Icon\r", "{}.part"),
)


def test_what_systems_leave_behind_is_no_image(tmp_path, layouts):
    import numpy as np

    rng = np.random.default_rng(0)
    for name in ("forest", "water"):
        for number in range(3):
            image = f"{name}{number}.tif"
            layouts.tiff(tmp_path / name / image, rng.integers(0, 255, (3, 8, 8)).astype(np.uint8))
            for junk in JUNK:
                path = tmp_path / name / junk.format(image)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes((tmp_path / name / image).read_bytes())
    (tmp_path / "@eaDir").mkdir()
    data = FederatedDataset(OwnImages(str(tmp_path), classes=["forest", "water"], in_channels=3), IID(1))
    assert data.listings[0].ids == [f"{name}/{name}{number}.tif" for name in ("forest", "water") for number in range(3)]
    assert not [each for each in data.archive.check().findings if each.severity == "error"]
