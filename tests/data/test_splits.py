import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrs_lightning.data.clients.splits import cut_by_class_shares, divide, read_attributes, read_split_lists
from fedrs_lightning.errors import DataError

IDS = tuple(f"River/River_{number}.jpg" for number in range(1, 7))


@given(labels=st.lists(st.integers(0, 3), min_size=1, max_size=80), fraction=st.floats(0, 1), stratify=st.booleans())
def test_divide_keeps_every_sample_and_the_share(labels, fraction, stratify):
    labels = np.asarray(labels)
    indices = np.arange(len(labels))[::2]
    first, second = divide(indices, labels, fraction, stratify, np.random.default_rng(0))
    assert np.array_equal(np.sort(np.concatenate([first, second])), indices)
    groups = [indices[labels[indices] == label] for label in np.unique(labels[indices])] if stratify else [indices]
    assert all(abs(np.isin(first, group).sum() - fraction * len(group)) <= 0.5 for group in groups)


def test_own_test_sets_follow_the_clients_classes():
    labels = np.repeat([0, 1, 2], [1000, 1000, 500])
    rng = np.random.default_rng(0)
    trains = [
        np.r_[0:600, 1000:1100],
        np.r_[600:800, 1100:1700],
    ]  # class 0: 3 to 1; class 1: 1 to 6; nobody has class 2
    test = np.sort(rng.permutation(np.r_[800:1000, 1700:2000, 2000:2500]))
    first, second = cut_by_class_shares(labels, trains, test, rng)
    assert np.bincount(labels[first], minlength=3).tolist() == [150, 43, 0]
    assert np.bincount(labels[second], minlength=3).tolist() == [50, 257, 0]
    assert not np.intersect1d(first, second).size
    assert np.isin(np.concatenate([first, second]), test).all()


def test_a_client_without_own_test_data_has_none():
    labels = np.asarray([0, 0, 1, 0])
    assert (
        cut_by_class_shares(labels, [np.asarray([0]), np.asarray([2])], np.asarray([3]), np.random.default_rng(0))[1]
        is None
    )


def write_lists(folder, prefix="eurosat", **lists):
    for part, numbers in lists.items():
        (folder / f"{prefix}-{part}.txt").write_text("".join(f"River_{number}.jpg\n" for number in numbers) + "\n")


def test_published_lists(tmp_path):
    write_lists(tmp_path, train=[6, 1, 2], val=[3], test=[5])
    write_lists(tmp_path, prefix="eurosat-spatial", train=[1], val=[2], test=[3, 4])
    train, validation, test, prefix = read_split_lists(
        tmp_path, "eurosat", tuple(name.replace(".jpg", ".tif") for name in IDS)
    )
    assert (train.tolist(), validation.tolist(), test.tolist()) == ([0, 1, 5], [2], [4])
    assert prefix == str(tmp_path / "eurosat")
    assert read_split_lists(tmp_path / "eurosat-spatial", "eurosat", IDS)[2].tolist() == [2, 3]


def test_faulty_lists_are_named(tmp_path):
    write_lists(tmp_path, train=[1, 2], val=[3, 77])
    with pytest.raises(DataError, match=r"eurosat-val\.txt: names 1 tiles .*River_77"):
        read_split_lists(tmp_path, "eurosat", IDS)
    write_lists(tmp_path, val=[2], test=[4])
    with pytest.raises(DataError, match=r"eurosat-val\.txt: tile River_2 is also in eurosat-train\.txt"):
        read_split_lists(tmp_path, "eurosat", IDS)
    with pytest.raises(DataError, match=r"typo-train\.txt: no such split list; split must be 'seeded'"):
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
        ("file,country\nRiver_1.jpg\n", "row of River_1 has fewer than 2 columns"),
    ],
)
def test_faulty_attribute_tables(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_attributes(path, IDS)
    with pytest.raises(DataError, match="no such attribute table"):
        read_attributes(tmp_path / "other.csv", IDS)
