"""Which files belong to your own classification data, and what a folder or a table says about each."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrs_lightning.data.archives.archive import ImageListing
from fedrs_lightning.data.archives.folders import existing_folder, subfolders, walk
from fedrs_lightning.data.archives.tables import Columns, read_table
from fedrs_lightning.data.rasters.rows import GEOTIFF, PICTURE
from fedrs_lightning.errors import DataError

SPLITS = ("train", "validation", "test")
KNOWN = ("path", "label", "labels", "client", "split")
KINDS = ", ".join(GEOTIFF + PICTURE)
DEPTH = 8  # levels of folders below a class folder


def scan_folders(root: str, classes: Sequence[str]) -> ImageListing:
    """Images of one folder a class, at any depth inside it.

    Raises:
        DataError: a folder is missing or not named as a class, a file is no image, or there is none; names it.
    """
    top = existing_folder(root, "data")
    folders = subfolders(top)
    for folder in folders:
        if folder.name not in classes:
            unknown = f"{folder}: no class has this name{_near(folder.name, classes)}"
            raise DataError(f"{unknown}; rename the folder, move it out, or name it in classes")
    lacking = [name for name in classes if name not in {folder.name for folder in folders}]
    if lacking:
        remedy = "make one (it may be empty), or take the class out of classes"
        raise DataError(f"{top}: no folder for class '{lacking[0]}'; {remedy}")
    found = [(path, folder.name) for folder in folders for path in walk(folder, DEPTH)]
    for path, name in found:
        if path.suffix.lower() not in GEOTIFF + PICTURE:
            raise DataError(f"{path}: is no image ({KINDS}); convert it or move it out of the folder of class {name}")
    if not found:
        raise DataError(f"{top}: the class folders hold no image ({KINDS})")
    paths, ids = [path for path, _ in found], [path.relative_to(top).as_posix() for path, _ in found]
    labels = np.asarray([classes.index(name) for _, name in found], dtype=np.int64)
    names = {"class_name": np.asarray([name for _, name in found])}
    return _sorted(ImageListing(top, ids, labels, paths, attributes=names, where=list(map(str, paths))))


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
    columns, where = read_table(path)
    texts = {name: [_text(value) for value in values] for name, values in columns.items()}
    chosen = _label_column(path, columns)
    if "path" not in columns:
        near = _near("path", columns, listed=True)
        raise DataError(f"{path}: has no column 'path'{near} (columns: {', '.join(columns)})")
    if not texts["path"]:
        raise DataError(f"{path}: has no row")
    rows = [where(row) for row in range(len(texts["path"]))]
    paths = [top / Path(name).expanduser() for name in texts["path"]]
    for name, file, row in zip(texts["path"], paths, rows, strict=True):
        if not name:
            raise DataError(f"{row}: no path; every row needs one")
        if not file.is_file():
            raise DataError(f"{row}: no file {file}; correct the path, or set root to the folder that it starts from")
        if file.suffix.lower() not in GEOTIFF + PICTURE:
            raise DataError(f"{row}: {file} is no image ({KINDS})")
    named = [_classes(value, separator if multi_label else None) for value in columns[chosen]]
    labels = _labels(named, classes, multi_label, rows)
    clients, splits = (np.asarray(texts[name]) if name in texts else None for name in ("client", "split"))
    for word, row in zip(texts.get("split", ()), rows, strict=False):
        if word not in SPLITS:
            near = _near(word, SPLITS, listed=True)
            raise DataError(f"{row}: split '{word}' is not one of {', '.join(SPLITS)}{near}")
    attributes = {name: np.asarray(values) for name, values in texts.items() if name not in KNOWN}
    if not multi_label:
        attributes["class_name"] = np.asarray(classes)[labels]
    ids = [
        file.relative_to(top).as_posix() if file.is_relative_to(top) else name
        for name, file in zip(texts["path"], paths, strict=True)
    ]
    return _sorted(ImageListing(top, ids, labels, paths, splits, clients, attributes=attributes, where=rows))


def _sorted(found: ImageListing) -> ImageListing:
    """In the order of ids, so that the rows of a table may be shuffled; no file may be there twice."""
    seen: dict[tuple[int, int], int] = {}
    for number, path in enumerate(found.paths):
        try:
            status = path.stat()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); check the file and its permissions") from None
        first = seen.setdefault((status.st_dev, status.st_ino), number)
        if first != number:
            also, other = found.where[first], found.paths[first]
            also += "" if path == other or also == str(other) else f" ({other})"
            if found.splits is not None and found.splits[first] != found.splits[number]:
                also += f", in split {found.splits[first]} there and {found.splits[number]} here"
            same = f"{path} is the same file as in {also}"
            raise DataError(f"{found.where[number]}: {same}; a file may be listed once only")
    order = np.asarray(sorted(range(len(found.ids)), key=lambda number: found.ids[number]))
    ids, paths, where = ([values[number] for number in order] for values in (found.ids, found.paths, found.where))
    splits, clients = (None if values is None else values[order] for values in (found.splits, found.clients))
    attributes = {name: values[order] for name, values in found.attributes.items()}
    return ImageListing(
        found.folder, ids, found.labels[order], paths, splits, clients, attributes=attributes, where=where
    )


def _label_column(path: Path, columns: Columns) -> str:
    there = [name for name in ("label", "labels") if name in columns]
    if len(there) != 1:
        found = "both" if there else "neither"
        raise DataError(f"{path}: needs one column 'label' or 'labels' and has {found} (columns: {', '.join(columns)})")
    return there[0]


def _near(name: str, valid: Collection[str], listed: bool = False) -> str:
    """For a message: the nearest valid name, whatever its case; else all, where the message does not list them."""
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
                near = _near(name, classes)
                raise DataError(f"{row}: unknown class '{name}'{near}; correct it, or name it in classes")
            if multi[number, places[name]]:
                raise DataError(f"{row}: class '{name}' stands there twice")
            multi[number, places[name]] = 1
    return multi if multi_label else multi.argmax(axis=1).astype(np.int64)
