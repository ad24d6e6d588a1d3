"""Tables beside a EuroSAT folder: published split lists, and attributes of tiles."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedrs_lightning.data.archives.tables import read_lines, read_table
from fedrs_lightning.errors import DataError


def read_split_lists(split: str | os.PathLike[str], name: str, sample_ids: Sequence[str]) -> tuple[np.ndarray, str]:
    """Published split of each sample by lists (a file name a line), str [N], and the start of the lists' paths.

    Suffixes are not compared: the lists of EuroSAT name JPEGs and serve the GeoTIFFs too.

    Args:
        split: folder that holds `<name>-train.txt`, `-val.txt` and `-test.txt`, or the start of such paths.
        name: of the data set.
        sample_ids: relative path of each sample.

    Raises:
        DataError: a list is missing, names an unknown tile, or two lists share one.
    """
    given = Path(split).expanduser()
    prefix = str(given / name) if given.is_dir() else str(given)
    index = {Path(sample_id).stem: number for number, sample_id in enumerate(sample_ids)}
    owner: dict[str, Path] = {}
    found = np.full(len(sample_ids), "", dtype="<U10")
    for part, title in (("train", "train"), ("val", "validation"), ("test", "test")):
        path = Path(f"{prefix}-{part}.txt")
        if not path.is_file():
            remedy = "set lists to the folder (or path start) of -train, -val and -test.txt"
            raise DataError(f"{path}: no such split list; {remedy}")
        names = [Path(line).stem for line in read_lines(path)]
        unknown = [stem for stem in names if stem not in index]
        if unknown:
            raise DataError(f"{path}: names {len(unknown)} tiles that are not in the data folder, such as {unknown[0]}")
        for stem in names:
            if stem in owner:
                also = f"tile {stem} is also in {owner[stem].name}"
                raise DataError(f"{path}: {also}; a tile may be in one list only, and once")
            owner[stem] = path
        found[[index[stem] for stem in names]] = title
    return found, prefix


def read_attributes(path: Path, sample_ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns of a CSV in sample order; its column `file` holds file names, with or without the class folder.

    Raises:
        DataError: no such file or column, a sample without a row, or with two.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such attribute table; set attributes to a CSV with a column 'file', or to null")
    table, _ = read_table(path)
    if "file" not in table:
        raise DataError(f"{path}: has no column 'file' (columns: {', '.join(table)})")
    rows: dict[str, int] = {}
    for row, name in enumerate(table["file"]):
        if rows.setdefault(Path(name).stem, row) != row:
            raise DataError(f"{path}: two rows for {Path(name).stem}")
    stems = [Path(sample_id).stem for sample_id in sample_ids]
    lacking = [stem for stem in stems if stem not in rows]
    if lacking:
        raise DataError(f"{path}: no row for {len(lacking)} of {len(stems)} tiles, such as {lacking[0]}")
    order = [rows[stem] for stem in stems]
    return {name: np.asarray(values)[order] for name, values in table.items() if name != "file"}
