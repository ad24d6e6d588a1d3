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

PACKED = re.compile(r"\.(zip|7z|rar|gz|tar|tgz|tar\.zst|tar\.gz[a-z]{0,2})$", re.IGNORECASE)
_JUNK = re.compile(
    r"^\.|^(eh)?thumbs(_vista)?\.db$|^desktop\.ini$|^__MACOSX$|^Icon\r$|^\$RECYCLE\.BIN$|^System Volume Information$"
    r"|^lost\+found$|^[@#](eaDir|Recently-Snapshot|Recycle|snapshot|tmp)$|^@SynoResource$|@SynoEAStream$|^__pycache__$"
    r"|~$|\.(tfw|tifw|pgw|jgw|wld|ovr|msk|aux\.xml|qml|part|crdownload)$",
    re.IGNORECASE,
)
"""Of systems (dot files, .DS_Store and ._* among them), network drives, browsers and viewers."""


def no_permission(path: Path) -> str:
    """Message about a file or folder that may not be read."""
    return f"{path}: no permission to read it; run chmod u+r{'x' if path.is_dir() else ''} on it"


def names_in(folder: Path) -> list[str]:
    """Sorted names in a folder, without junk; none of what is no folder.

    A hundred thousand paths would take longer to make than the folders to list.
    """
    try:
        with os.scandir(folder) as found:
            return sorted(entry.name for entry in found if not _JUNK.search(entry.name))
    except (NotADirectoryError, FileNotFoundError):
        return []
    except PermissionError:
        raise DataError(no_permission(folder)) from None


def entries(folder: Path) -> list[Path]:
    """Sorted contents of a folder, without junk; none of what is no folder."""
    return [folder / name for name in names_in(folder)]


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted."""
    return [path for path in entries(folder) if path.is_dir()]


def walk(folder: Path, depth: int) -> Iterator[Path]:
    """Files of a folder and of its subfolders down to `depth` levels, each folder in sorted order."""
    found = entries(folder)
    yield from (path for path in found if not path.is_dir())
    for path in found if depth > 0 else ():
        if path.is_dir():
            yield from walk(path, depth - 1)


def existing_folder(root: str | os.PathLike[str], what: str, expected: str = "") -> Path:
    """The root as a path.

    Args:
        root: given by the user.
        what: name of the data set.
        expected: what the folder should hold, for an empty one.

    Raises:
        DataError: missing, a file, an archive, or empty.
    """
    top = Path(root).expanduser()
    remedy = f"set root to the {what} folder that you downloaded and unpacked"
    if top.is_file():
        raise DataError(still_packed(top) if PACKED.search(top.name) else f"{top}: is a file; {remedy}")
    if not top.exists():
        raise DataError(f"{top}: no such folder; {remedy}")
    if not names_in(top):
        raise DataError(f"{top}: the folder is empty; {f'expected {expected}' if expected else remedy}")
    return top


def still_packed(path: Path, expected: str = "") -> str:
    """Message about an archive in place of the folder that it holds."""
    name, folder = path.name, path.parent
    if ".tar" not in name and path.suffix != ".tgz":
        hint = f" (expected {expected})" if expected else ""
        return f"{path}: is still zipped; unpack it, then set root to the unpacked folder{hint}"
    if ".tar.gza" in name:  # split in parts: .tar.gzaa, .tar.gzab
        command = f"cat {folder / name.split('.tar.gz')[0]}.tar.gz* | tar -xz -C {folder}"
    else:
        command = f"tar {'--zstd ' if name.endswith('.zst') else ''}-xf {path} -C {folder}"
    return f"{path}: is still packed; unpack it with: {command}"


def nothing_found(top: Path, expected: str, depth: int) -> DataError:
    """The error of a folder without data: what was expected, what is there, archives that are still packed."""
    packed = next((path for path in walk(top, depth) if PACKED.search(path.name)), None)
    if packed is not None:
        return DataError(still_packed(packed, expected))
    names = names_in(top)
    return DataError(f"{top}: expected {expected}, found: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}")


def synthetic_facts(folder: Path, levels: int = 3) -> dict[str, Any] | None:
    """Content of `SYNTHETIC.json` in the folder or above it, for the manifest; None for real data."""
    marker = synthetic_marker(folder, levels)
    return None if marker is None else dict(read_json(marker))


def numeric(name: str) -> tuple[int, ...]:
    """Sort key of names that hold numbers, such as 2_10."""
    return tuple(int(part) for part in re.findall(r"\d+", name))
