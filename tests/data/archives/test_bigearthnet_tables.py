import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from fedrs_lightning.data.archives.bigearthnet.files import (
    CLASSES,
    COUNTRIES,
    SPLITS,
    Layout,
    find_layout,
    patch_date,
    product_of,
    v1_fault,
)
from fedrs_lightning.data.archives.bigearthnet.tables import (
    country_table,
    in_season,
    months_of,
    read_table,
    read_tables,
)
from fedrs_lightning.errors import ConfigError, DataError

EIGHT = [  # country, train, validation, test, all, days of acquisition
    ("Finland", 14_805, 7_753, 8_209, 30_767, 7),
    ("Ireland", 7_150, 4_136, 4_263, 15_549, 3),
    ("Serbia", 7_180, 3_255, 3_248, 13_683, 4),
    ("Austria", 5_941, 2_560, 1_871, 10_372, 4),
    ("Belgium", 1_323, 584, 32, 1_939, 1),
    ("Lithuania", 4_206, 2_418, 2_151, 8_775, 2),
    ("Portugal", 8_037, 4_181, 4_220, 16_438, 2),
    ("Switzerland", 1_692, 1_143, 2_039, 4_874, 1),
]


@pytest.fixture(scope="module")
def official(data_root) -> Layout:
    folder = data_root / "bigearthnet_v2" / "official_metadata"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there; it holds the complete official tables")
    return Layout(
        folder, "files", folder / "metadata.parquet", folder / "metadata_for_patches_with_snow_cloud_or_shadow.parquet"
    )


@pytest.fixture(scope="module")
def clean(official):
    """All rows of patches without snow, cloud and shadow."""
    return read_tables(official, flagged=False)


def test_country_table_of_the_official_table(clean):
    rows, table = clean, country_table(clean)
    assert [(*line[:4], sum(line[1:4]), line.days) for line in table] == EIGHT
    assert not rows.faults
    assert np.bincount(rows.split).tolist() == [237_871, 122_342, 119_825]
    assert np.bincount(rows.country[in_season(rows, "summer")]).tolist() == [line[4] for line in EIGHT]
    assert {line.country for line in country_table(rows, "all")} == set(COUNTRIES)
    assert abs(rows.labels.sum() / len(rows) - 2.95) < 0.01


def test_second_table_adds_flagged_patches(official, clean):
    both = read_tables(official, flagged=True)
    assert (len(both), len(clean), both.flagged.sum()) == (549_488, 480_038, 69_450)
    assert not both.faults
    assert (both.patch_ids[1:] > both.patch_ids[:-1]).all()


def test_rows_are_what_the_table_says(data_root):
    from pyarrow import parquet

    path = data_root / "bigearthnet_v2_v1pixels" / "metadata.parquet"
    rows = read_table(path)
    for number, row in enumerate(parquet.read_table(path).to_pylist()):
        assert rows.patch_ids[number] == row["patch_id"]
        assert [CLASSES[place] for place in np.flatnonzero(rows.labels[number])] == sorted(
            row["labels"], key=CLASSES.index
        )
        assert SPLITS[rows.split[number]] == row["split"]
        assert COUNTRIES[rows.country[number]] == row["country"]
        assert str(rows.day[number]) == patch_date(row["patch_id"]) == row["patch_id"][11:19]
        assert rows.month[number] == int(row["patch_id"][15:17])
        assert product_of(row["patch_id"]) == row["patch_id"][:-6]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"split": "val"},
            "split of patch {id} is 'val', but must be train, validation or test; it is called 'validation'",
        ),
        ({"labels": ["Pastures", "Sea"]}, "label 'Sea' of patch {id} is not one of the 19"),
        ({"labels": []}, "patch {id} has no label"),
        ({"labels": None}, "patch {id} has no label"),
        ({"country": "Spain"}, "country 'Spain' of patch {id} is not one of Finland"),
        ({"country": None}, "country of patch {id} is empty"),
        ({"patch_id": "S2A_MSIL2A_20171313T101031_N9999_R022_T33UUP_26_57"}, "is no patch id of v2.0"),
        ({"patch_id": "S2A_MSIL2A_20170613T101031_87_48"}, "'S2A_MSIL2A_20170613T101031_87_48' is no patch id of v2.0"),
        ({"patch_id": "first"}, "patch {first} has two rows"),
    ],
)
def test_faults_of_rows_name_the_patch(change, text, data_root, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    rows = parquet.read_table(data_root / "bigearthnet_v2" / "metadata.parquet").to_pylist()
    first, name = rows[0]["patch_id"], rows[2]["patch_id"]
    rows[2] |= {"patch_id": first} if change.get("patch_id") == "first" else change
    path = tmp_path / "metadata.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), path)
    read = read_tables(Layout(tmp_path, "files", path, tmp_path / "absent"), flagged=False)
    assert len(read.faults) == 1
    assert read.faults[0].startswith(f"{path}: ")
    assert text.format(id=name, first=first) in read.faults[0]
    assert len(read) == len(rows) - 1


def test_unusable_tables(data_root, tmp_path, monkeypatch):
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "metadata.parquet"
    path.write_bytes(b"not parquet")
    with pytest.raises(DataError, match=r"metadata\.parquet: cannot be read as a Parquet table"):
        read_table(path)
    parquet.write_table(pa.table({"patch_id": ["a"], "labels": [["b"]]}), path)
    with pytest.raises(
        DataError, match="has no column split, country, contains_seasonal_snow, contains_cloud_or_shadow"
    ):
        read_table(path)
    with pytest.raises(DataError, match=r"no such table; put metadata\.parquet from"):
        read_tables(Layout(tmp_path, "files", tmp_path / "absent", path), flagged=False)
    shutil.copy(data_root / "bigearthnet_v2" / "metadata.parquet", path)
    with pytest.raises(DataError, match=r"flagged patches .* are wanted, but the table that lists them is missing"):
        read_tables(Layout(tmp_path, "files", path, tmp_path / "absent"), flagged=True)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"needs the package pyarrow.*pip install pyarrow"):
        read_table(path)


def test_months():
    assert months_of("summer") == (6, 7, 8)
    assert months_of("all") == tuple(range(1, 13))
    assert months_of([9, 4]) == (4, 9)
    for wrong in ("winter", [], [0], [13], ["June"]):
        with pytest.raises(ConfigError, match="season must be summer, all, or a list of months"):
            months_of(wrong)


def test_layouts(data_root, tmp_path):
    real = data_root / "bigearthnet_v2"
    (tmp_path / "link").symlink_to(real)
    for root in (real, real / "BigEarthNet-S2", tmp_path / "link"):
        found = find_layout(root)
        assert found.images.resolve() == (real / "BigEarthNet-S2").resolve()
        assert found.metadata.is_file()
        assert found.flagged.is_file()
    elsewhere = find_layout(real, real / "official_metadata" / "metadata.parquet")
    assert elsewhere.flagged.parent.name == "official_metadata"


def test_wrong_roots_say_what_to_do(data_root, tmp_path):
    real = data_root / "bigearthnet_v2"
    product = next(path for path in (real / "BigEarthNet-S2").iterdir())
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "inner").symlink_to(real)
    (tmp_path / "empty").mkdir()
    for name, archive in (("zst", "BigEarthNet-S2.tar.zst"), ("gz", "BigEarthNet-S2.tar.gzaa")):
        (tmp_path / name).mkdir()
        (tmp_path / name / archive).touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "note.txt").touch()
    for root, text in {
        tmp_path / "absent": "no such folder; set root",
        tmp_path / "other" / "note.txt": "is a file",
        tmp_path / "empty": "the folder is empty; expected BigEarthNet-S2/<product>/",
        tmp_path / "other": "expected BigEarthNet-S2/.*found: note.txt",
        tmp_path / "up": f"is one level too high; set root to {tmp_path}/up/inner",
        product: f"is one product folder; set root to {product.parent}",
        next(product.iterdir()): f"is one patch folder; set root to {product.parent}",
        tmp_path / "zst": rf"is still packed; unpack it with: tar --zstd -xf {tmp_path}/zst/BigEarthNet-S2.tar.zst -C "
        rf"{tmp_path}/zst",
        tmp_path / "zst" / "BigEarthNet-S2.tar.zst": "is still packed",
        tmp_path / "gz": r"unpack it with: cat .*/gz/BigEarthNet-S2.tar.gz\* \| tar -xz -C",
    }.items():
        with pytest.raises(DataError, match=text):
            find_layout(root)


def test_version_one_is_refused_by_name(data_root, tmp_path):
    root = data_root / "bigearthnet_v1"
    patch = next((root / "BigEarthNet-v1.0").iterdir())
    for place in (root, root / "BigEarthNet-v1.0", patch):
        with pytest.raises(DataError, match=r"this is BigEarthNet v1\.0"):
            find_layout(place)
    (tmp_path / "renamed").mkdir()
    label = next(patch.glob("*.json"))
    (tmp_path / "renamed" / label.name).symlink_to(label)
    assert f"{label.name}: this is BigEarthNet v1.0 (a JSON file of labels beside the bands)" in v1_fault(
        tmp_path / "renamed"
    )
    assert v1_fault(data_root / "bigearthnet_v2" / "BigEarthNet-S2") is None
    assert v1_fault(Path(tmp_path / "absent")) is None
