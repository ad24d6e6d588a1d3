"""Tables of text, such as the list of your own images or attributes of tiles."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrs_lightning.errors import DataError

Columns = Mapping[str, Sequence[Any]]


def read_table(path: Path) -> tuple[Columns, Callable[[int], str]]:
    """Columns of a CSV or Parquet file, and a function that names a row in messages.

    Raises:
        DataError: it is missing or no such table; names the file or the row, and a remedy.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such table; set table to a .csv or .parquet file, relative to root")
    if path.suffix.lower() == ".csv":
        return _read_csv(path)
    if path.suffix.lower() in (".parquet", ".pq"):
        return _read_parquet(path)
    raise DataError(f"{path}: a table must be a .csv or .parquet file")


def read_lines(path: Path) -> list[str]:
    """Lines of a text file without spaces around them and without empty ones.

    Raises:
        DataError: it is missing or no text in UTF-8; names the file and a remedy.
    """
    return [line.strip() for line in _text(path).splitlines() if line.strip()]


def _text(path: Path) -> str:
    """Content of a text file in UTF-8, with or without a byte order mark."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the file and its permissions") from None
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{path}: is text in UTF-16; save it in UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(f"{path}:{line}: is no text in UTF-8; save it in UTF-8") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise DataError(f"{path}:{line}: holds a zero byte, so that the file is damaged; write it again")
    return text


def _read_csv(path: Path) -> tuple[Columns, Callable[[int], str]]:
    rows: list[list[str]] = []
    lines: list[int] = []
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True, skipinitialspace=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        if len(header) == 1 and any(other in header[0] for other in ";\t|"):
            got = f"columns must be separated by commas, got '{header[0]}'"
            raise DataError(f"{path}: {got}; save it as CSV with commas")
        for row in filter(None, reader):
            if len(row) != len(header):
                counts = f"{len(row)} cells, but {len(header)} columns"
                raise DataError(f"{path}:{reader.line_num}: {counts}; put cells that hold commas into quotes")
            rows.append([cell.strip() for cell in row])
            lines.append(reader.line_num)
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: cannot be read ({error}); save it as CSV again") from None
    if len(set(header)) != len(header) or not all(header) or not header:
        raise DataError(f"{path}: the first line must name each column once, got {', '.join(header) or 'nothing'}")
    return {name: [row[place] for row in rows] for place, name in enumerate(header)}, lambda row: f"{path}:{lines[row]}"


def _read_parquet(path: Path) -> tuple[Columns, Callable[[int], str]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(path).read()  # this file alone, and no folders named like columns
        if len(set(table.column_names)) != table.num_columns:
            raise DataError(f"{path}: names a column twice; write it again")
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}: cannot be read as Parquet ({reason}); write it again") from None
    if not table.num_columns:
        raise DataError(f"{path}: has no column")
    return columns, lambda row: f"{path}, row {row + 1}"
