"""What lies in a data folder, without what systems and viewers leave behind."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedrs_lightning.data.check.report import synthetic_marker
from fedrs_lightning.errors import DataError
from fedrs_lightning.files import read_json

PACKED = (".zip", ".7z", ".rar", ".tar", ".gz", ".tgz")
_JUNK_NAMES = {"Thumbs.db", "desktop.ini", "__MACOSX"}
_JUNK_ENDINGS = (".tfw", ".aux.xml", ".ovr")


def is_junk(name: str) -> bool:
    """Files that operating systems and viewers leave behind."""
    return name.startswith(".") or name in _JUNK_NAMES or name.endswith(_JUNK_ENDINGS)


def existing_folder(root: str | os.PathLike[str], what: str) -> Path:
    """The root as a path.

    Raises:
        DataError: missing, a file, an archive, or empty.
    """
    top = Path(root).expanduser()
    if top.is_file() and top.suffix.lower() in PACKED:
        raise DataError(f"{top}: is still zipped; unpack it, then set root to the unpacked folder")
    if not top.exists():
        raise DataError(f"{top}: no such folder; set root to the {what} folder that you downloaded and unpacked")
    if not top.is_dir():
        raise DataError(f"{top}: is a file; set root to the {what} folder")
    if not entries(top):
        raise DataError(f"{top}: the folder is empty; set root to the {what} folder that you downloaded and unpacked")
    return top


def entries(folder: Path) -> list[Path]:
    """Sorted contents of a folder, without what systems and viewers leave behind."""
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder) if not is_junk(entry.name))
    except PermissionError:
        raise DataError(f"{folder}: no permission to read this folder; run chmod u+rx on it") from None


def walk(folder: Path, depth: int) -> Iterator[Path]:
    """Files of a folder and of its subfolders down to `depth` levels, each folder in sorted order."""
    found = entries(folder)
    yield from (path for path in found if path.is_file())
    if depth > 0:
        for path in found:
            if path.is_dir():
                yield from walk(path, depth - 1)


def nothing_found(top: Path, expected: str, depth: int) -> DataError:
    """The error of a folder without tiles: what was expected, what is there, archives that are still packed."""
    archives = [path for path in walk(top, depth) if path.suffix.lower() in PACKED]
    if archives:
        return DataError(
            f"{archives[0]}: is still zipped; unpack it, then set root to the unpacked folder (expected {expected})"
        )
    names = [path.name for path in entries(top)]
    return DataError(f"{top}: expected {expected}, found: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}")


def synthetic_facts(folder: Path) -> dict[str, Any] | None:
    """Content of `SYNTHETIC.json`, for the manifest; None for real data."""
    marker = synthetic_marker(folder)
    return None if marker is None else dict(read_json(marker))


def numeric(name: str) -> tuple[int, ...]:
    """Sort key of names that hold numbers, such as 2_10."""
    return tuple(int(part) for part in re.findall(r"\d+", name))
