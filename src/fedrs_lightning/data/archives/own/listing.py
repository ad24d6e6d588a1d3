"""Which files belong to your own classification data, and what a folder or a table says about each."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrs_lightning.data.archives.archive import ImageListing
from fedrs_lightning.data.archives.folders import entries, existing_folder
from fedrs_lightning.data.rasters.rows import GEOTIFF, PICTURE
from fedrs_lightning.errors import DataError

SPLITS = ("train", "validation", "test")
KNOWN = ("path", "label", "labels", "client", "split")
DEPTH = 8  # levels of folders below a class folder

Columns = Mapping[str, Sequence[Any]]


def scan_folders(root: str, classes: Sequence[str]) -> ImageListing:
    """Images of one folder a class, at any depth inside it.

    Raises:
        DataError: a folder is missing or not named as a class, a file is no image, or there is none; names it.
    """
    top = existing_folder(root, "data")
    folders = [path for path in entries(top) if path.is_dir()]
    for folder in folders:
        if folder.name not in classes:
            raise DataError(
                f"{folder}: no class has this name{_near(folder.name, classes)}; rename the folder, move it out, or "
                "name it in classes"
            )
    lacking = [name for name in classes if name not in {folder.name for folder in folders}]
    if lacking:
        raise DataError(
            f"{top}: no folder for class '{lacking[0]}'; make one (it may be empty), or take the class out of classes"
        )
    found = [(path, folder.name) for folder in folders for path in _files(folder, DEPTH)]
    for path, name in found:
        if path.suffix.lower() not in GEOTIFF + PICTURE:
            raise DataError(
                f"{path}: is no image ({', '.join(GEOTIFF + PICTURE)}); convert it or move it out of the folder of "
                f"class {name}"
            )
    if not found:
        raise DataError(f"{top}: the class folders hold no image ({', '.join(GEOTIFF + PICTURE)})")
    names = np.asarray([name for _, name in found])
    labels = np.asarray([classes.index(name) for _, name in found], dtype=np.int64)
    paths = [path for path, _ in found]
    return _sorted(
        top,
        paths,
        [path.relative_to(top).as_posix() for path in paths],
        labels,
        None,
        None,
        {"class_name": names},
        list(map(str, paths)),
    )


def scan_table(root: str, table: str, classes: Sequence[str], multi_label: bool, separator: str) -> ImageListing:
    """Images that a CSV or Parquet file lists, with columns `path`, `label` or `labels`, and, where wanted, `client`
    and `split`.

    Args:
        root: folder from which relative paths are taken, that of the table too.
        table: the file.
        classes: names of all classes.
        multi_label: whether a sample may have any number of classes.
        separator: between the classes of one CSV cell (or Parquet text).

    Raises:
        DataError: the table or an image is missing, or a row says something unknown; names the row.
    """
    top = existing_folder(root, "data")
    path = top / Path(table).expanduser()
    columns, where = _read(path)
    count = len(next(iter(columns.values())))
    chosen = _label_column(path, columns)
    if "path" not in columns:
        raise DataError(
            f"{path}: has no column 'path'{_near('path', columns, listed=True)} (columns: {', '.join(columns)})"
        )
    if not count:
        raise DataError(f"{path}: has no row")
    rows = [where(row) for row in range(count)]
    written = [_text(value) for value in columns["path"]]
    paths = [top / Path(name).expanduser() for name in written]
    for name, file, row in zip(written, paths, rows, strict=True):
        if not name:
            raise DataError(f"{row}: no path; every row needs one")
        if not file.is_file():
            raise DataError(f"{row}: no file {file}; correct the path, or set root to the folder that it starts from")
        if file.suffix.lower() not in GEOTIFF + PICTURE:
            raise DataError(f"{row}: {file} is no image ({', '.join(GEOTIFF + PICTURE)})")
    named = [_classes(value, separator if multi_label else None) for value in columns[chosen]]
    labels = _labels(named, classes, multi_label, rows)
    clients = np.asarray([_text(value) for value in columns["client"]]) if "client" in columns else None
    splits = np.asarray([_text(value) for value in columns["split"]]) if "split" in columns else None
    for word, row in zip(splits if splits is not None else (), rows, strict=False):
        if word not in SPLITS:
            raise DataError(
                f"{row}: split '{word}' is not one of {', '.join(SPLITS)}{_near(word, SPLITS, listed=True)}"
            )
    attributes = {
        name: np.asarray([_text(value) for value in values]) for name, values in columns.items() if name not in KNOWN
    }
    if not multi_label:
        attributes["class_name"] = np.asarray(classes)[labels]
    ids = [
        file.relative_to(top).as_posix() if file.is_relative_to(top) else name
        for name, file in zip(written, paths, strict=True)
    ]
    return _sorted(top, paths, ids, labels, clients, splits, attributes, rows)


def _sorted(
    top: Path,
    paths: Sequence[Path],
    ids: Sequence[str],
    labels: np.ndarray,
    clients: np.ndarray | None,
    splits: np.ndarray | None,
    attributes: dict[str, np.ndarray],
    where: Sequence[str],
) -> ImageListing:
    """In the order of ids, so that the rows of a table may be shuffled; no file may be there twice."""
    seen: dict[tuple[int, int], int] = {}
    for number, path in enumerate(paths):
        try:
            status = path.stat()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); check the file and its permissions") from None
        first = seen.setdefault((status.st_dev, status.st_ino), number)
        if first != number:
            also = (
                where[first]
                if paths[first] == path or where[first] == str(paths[first])
                else f"{where[first]} ({paths[first]})"
            )
            both = (
                ""
                if splits is None or splits[first] == splits[number]
                else f", in split {splits[first]} there and {splits[number]} here"
            )
            raise DataError(
                f"{where[number]}: {path} is the same file as in {also}{both}; a file may be listed once only"
            )
    order = sorted(range(len(ids)), key=lambda number: ids[number])
    chosen = np.asarray(order)
    return ImageListing(
        top,
        [ids[number] for number in order],
        labels[chosen],
        [paths[number] for number in order],
        None if splits is None else splits[chosen],
        None if clients is None else clients[chosen],
        attributes={name: values[chosen] for name, values in attributes.items()},
        where=[where[number] for number in order],
    )


def _files(folder: Path, depth: int) -> list[Path]:
    found: list[Path] = []
    for path in entries(folder):
        if not path.is_dir():
            found.append(path)
        elif depth:
            found += _files(path, depth - 1)
    return found


def _read(path: Path) -> tuple[dict[str, Sequence[Any]], Callable[[int], str]]:
    """Columns of a table, and the name of a row."""
    if not path.is_file():
        raise DataError(f"{path}: no such table; set table to a .csv or .parquet file, relative to root")
    if path.suffix.lower() == ".csv":
        return _read_csv(path)
    if path.suffix.lower() in (".parquet", ".pq"):
        return _read_parquet(path)
    raise DataError(f"{path}: a table must be a .csv or .parquet file")


def _read_csv(path: Path) -> tuple[dict[str, Sequence[Any]], Callable[[int], str]]:
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            reader = csv.reader(handle, strict=True)
            header = [name.strip() for name in next(reader, [])]
            if len(header) == 1 and any(other in header[0] for other in ";\t"):
                raise DataError(
                    f"{path}: columns must be separated by commas, got '{header[0]}'; save it as CSV with commas"
                )
            for row in reader:
                if not row:
                    continue
                if any("\0" in cell for cell in row):
                    raise DataError(
                        f"{path}:{reader.line_num}: holds a zero byte, so that the file is damaged; write it again"
                    )
                if len(row) != len(header):
                    raise DataError(
                        f"{path}:{reader.line_num}: {len(row)} cells, but {len(header)} columns; put cells that hold "
                        "commas into quotes"
                    )
                rows.append(row)
                lines.append(reader.line_num)
    except UnicodeDecodeError:
        raise DataError(f"{path}: is no text in UTF-8; save it as CSV in UTF-8") from None
    except (csv.Error, OSError) as error:
        raise DataError(f"{path}: cannot be read ({error}); save it as CSV again") from None
    if len(set(header)) != len(header) or not header:
        raise DataError(f"{path}: the first line must name each column once, got {', '.join(header) or 'nothing'}")
    return {name: [row[place] for row in rows] for place, name in enumerate(header)}, lambda row: f"{path}:{lines[row]}"


def _read_parquet(path: Path) -> tuple[dict[str, Sequence[Any]], Callable[[int], str]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: cannot be read as Parquet ({str(error).partition(chr(10))[0]}); write it again"
        ) from None
    if not table.num_columns:
        raise DataError(f"{path}: has no column")
    return {name: table.column(name).to_pylist() for name in table.column_names}, lambda row: f"{path}, row {row + 1}"


def _label_column(path: Path, columns: Columns) -> str:
    there = [name for name in ("label", "labels") if name in columns]
    if len(there) != 1:
        found = "both" if there else "neither"
        raise DataError(f"{path}: needs one column 'label' or 'labels' and has {found} (columns: {', '.join(columns)})")
    return there[0]


def _near(name: str, valid: Collection[str], listed: bool = False) -> str:
    """The nearest valid name, whatever its case, as a part of a message; else all, where the message does not list them
    itself.
    """
    lower = {other.lower(): other for other in valid}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    if near:
        return f"; did you mean '{lower[near[0]]}'?"
    return f" ({', '.join(valid)})" if len(valid) <= 24 and not listed else ""


def _text(value: Any) -> str:
    """A cell as text; pandas writes NaN where a cell is empty."""
    return "" if value is None or value != value else str(value).strip()


def _classes(value: Any, separator: str | None) -> list[str]:
    """Class names of a cell: a list (Parquet), or text, cut at the separator where a sample may have several."""
    if isinstance(value, (list, tuple)):
        return [_text(name) for name in value]
    text = _text(value)
    parts = [text] if separator is None else [part.strip() for part in text.split(separator)]
    return [part for part in parts if part]


def _labels(
    named: Sequence[Sequence[str]], classes: Sequence[str], multi_label: bool, rows: Sequence[str]
) -> np.ndarray:
    places = {name: place for place, name in enumerate(classes)}
    multi = np.zeros((len(named), len(classes)), dtype=np.float32)
    for number, (names, row) in enumerate(zip(named, rows, strict=True)):
        if not multi_label and len(names) != 1:
            found = f"{len(names)} classes ({', '.join(names)})" if names else "no class"
            raise DataError(f"{row}: {found}; a sample has exactly one unless multi_label is true")
        for name in names:
            if name not in places:
                raise DataError(
                    f"{row}: unknown class '{name}'{_near(name, classes)}; correct it, or name it in classes"
                )
            if multi[number, places[name]]:
                raise DataError(f"{row}: class '{name}' stands there twice")
            multi[number, places[name]] = 1
    return multi if multi_label else multi.argmax(axis=1).astype(np.int64)
