"""Tables of text, such as the list of your own images or attributes of tiles."""

from __future__ import annotations

import csv
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


def _read_csv(path: Path) -> tuple[Columns, Callable[[int], str]]:
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            reader = csv.reader(handle, strict=True)
            header = [name.strip() for name in next(reader, [])]
            if len(header) == 1 and any(other in header[0] for other in ";\t"):
                got = f"columns must be separated by commas, got '{header[0]}'"
                raise DataError(f"{path}: {got}; save it as CSV with commas")
            for row in filter(None, reader):
                where = f"{path}:{reader.line_num}"
                if any("\0" in cell for cell in row):
                    raise DataError(f"{where}: holds a zero byte, so that the file is damaged; write it again")
                if len(row) != len(header):
                    counts = f"{len(row)} cells, but {len(header)} columns"
                    raise DataError(f"{where}: {counts}; put cells that hold commas into quotes")
                rows.append(row)
                lines.append(reader.line_num)
    except UnicodeDecodeError:
        raise DataError(f"{path}: is no text in UTF-8; save it as CSV in UTF-8") from None
    except (csv.Error, OSError) as error:
        raise DataError(f"{path}: cannot be read ({error}); save it as CSV again") from None
    if len(set(header)) != len(header) or not header:
        raise DataError(f"{path}: the first line must name each column once, got {', '.join(header) or 'nothing'}")
    return {name: [row[place] for row in rows] for place, name in enumerate(header)}, lambda row: f"{path}:{lines[row]}"


def _read_parquet(path: Path) -> tuple[Columns, Callable[[int], str]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}: cannot be read as Parquet ({reason}); write it again") from None
    if not table.num_columns:
        raise DataError(f"{path}: has no column")
    return {name: table.column(name).to_pylist() for name in table.column_names}, lambda row: f"{path}, row {row + 1}"
