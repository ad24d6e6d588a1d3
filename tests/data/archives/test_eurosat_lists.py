"""Published split lists and attribute tables of EuroSAT."""

import pytest

from fedrs_lightning.data.archives.eurosat.lists import read_attributes, read_split_lists
from fedrs_lightning.errors import DataError

IDS = tuple(f"River/River_{number}.jpg" for number in range(1, 7))


def write_lists(folder, prefix="eurosat", **lists):
    for part, numbers in lists.items():
        (folder / f"{prefix}-{part}.txt").write_text("".join(f"River_{number}.jpg\n" for number in numbers) + "\n")


def test_published_lists(tmp_path):
    write_lists(tmp_path, train=[6, 1, 2], val=[3], test=[5])
    write_lists(tmp_path, prefix="eurosat-spatial", train=[1], val=[2], test=[3, 4])
    splits, prefix = read_split_lists(tmp_path, "eurosat", tuple(name.replace(".jpg", ".tif") for name in IDS))
    assert splits.tolist() == ["train", "train", "validation", "", "test", "train"]
    assert prefix == str(tmp_path / "eurosat")
    spatial, _ = read_split_lists(tmp_path / "eurosat-spatial", "eurosat", IDS)
    assert spatial.tolist() == ["train", "validation", "test", "test", "", ""]


def test_faulty_lists_are_named(tmp_path):
    write_lists(tmp_path, train=[1, 2], val=[3, 77])
    with pytest.raises(DataError, match=r"eurosat-val\.txt: names 1 tiles .*River_77"):
        read_split_lists(tmp_path, "eurosat", IDS)
    write_lists(tmp_path, val=[2], test=[4])
    with pytest.raises(DataError, match=r"eurosat-val\.txt: tile River_2 is also in eurosat-train\.txt"):
        read_split_lists(tmp_path, "eurosat", IDS)
    with pytest.raises(DataError, match=r"typo-train\.txt: no such split list; set lists to the folder"):
        read_split_lists(tmp_path / "typo", "eurosat", IDS)


def test_attribute_tables(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(
        "file,country,year\n"
        + "".join(f"River_{number}.tif,{'AT' if number < 4 else 'FI'},2017\n" for number in range(9, 0, -1))
    )
    found = read_attributes(path, IDS)
    assert found["country"].tolist() == ["AT"] * 3 + ["FI"] * 3
    assert list(found) == ["country", "year"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,country\n", "no column 'file' .columns: name, country"),
        ("file,country\nRiver_1.jpg,AT\n", "no row for 5 of 6 tiles, such as River_2"),
        ("file,country\nRiver_1.jpg,AT\nx/River_1.jpg,FI\n", "two rows for River_1"),
        ("file,country\nRiver_1.jpg\n", "table.csv:2: 1 cells, but 2 columns"),
    ],
)
def test_faulty_attribute_tables(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_attributes(path, IDS)
    with pytest.raises(DataError, match="no such attribute table"):
        read_attributes(tmp_path / "other.csv", IDS)
