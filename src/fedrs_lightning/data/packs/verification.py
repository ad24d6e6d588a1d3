"""Comparing the bytes of packs with their hashes, beside a run: a pack that rotted may not change a result silently.

What was found whole is remembered beside the pack with sizes, modification times and inodes of its files, so that it is
read again only after one of them changed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fedrs_lightning.data.packs.index import DAMAGED, PackIndex, read_index
from fedrs_lightning.data.packs.shards import damages_of
from fedrs_lightning.errors import DataError, RunError
from fedrs_lightning.files import read_json, write_json

Verify = Literal["always", "once", "never"]
THREADS = max(1, min(4, (os.cpu_count() or 1) // 4))


class Verification:
    """Compares packs one after the other, in a thread of its own.

    Args:
        folders: of the packs.
        mode: `always` reads every byte; `once` passes over packs whose files are as they were when they were found
            whole; `never` finds nothing.
    """

    def __init__(self, folders: Sequence[Path], mode: Verify) -> None:
        self.found: DataError | None = None
        self.checked: list[Path] = []
        self._folders, self._mode, self._process = tuple(folders), mode, os.getpid()
        self._thread: threading.Thread | None = None
        if mode != "never" and folders:
            self._thread = threading.Thread(target=self._run, name="verification of packs", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            for folder in self._folders:
                index = read_index(folder)
                if self._mode == "always" or not known_whole(folder, index):
                    verify(folder, index)
                    self.checked.append(folder)
        except DataError as error:
            self.found = error

    def look(self) -> None:
        """Raise what was found until now; costs nothing.

        Raises:
            DataError: a pack is damaged; names its folder, the samples and a remedy.
        """
        if self.found is not None:
            raise self.found

    def finish(self) -> None:
        """Wait until all is compared, and raise what was found, as `look` does."""
        if self._thread is not None and self._process == os.getpid():  # threads do not live on in a fork
            self._thread.join()
        self.look()


def verify(folder: Path, index: PackIndex) -> None:
    """Read every byte of a pack, and remember that it is whole.

    Raises:
        DataError: it is not; names its folder and a remedy.
    """
    before = _files(folder, index)
    found = damages_of(folder, index, THREADS)
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        raise DataError(DAMAGED.format(folder, f"{found[0]} is not what was packed{more}"))
    if before == _files(folder, index):
        try:
            write_json(_memory(folder), {"sha256": index.sha256, "files": before})
        except OSError:
            return  # a cache that may only be read is compared every time


def known_whole(folder: Path, index: PackIndex) -> bool:
    """Whether the pack was found whole, and its files are still those."""
    try:
        remembered = read_json(_memory(folder))
    except (RunError, OSError, RecursionError):
        return False
    return bool(remembered == {"sha256": index.sha256, "files": _files(folder, index)})


def _memory(folder: Path) -> Path:
    return folder.with_name(f".verified-{folder.name}.json")


def _files(folder: Path, index: PackIndex) -> dict[str, Any]:
    """Size, time of change and inode of each file."""
    names = ["index.json", *(f"{name}.npy" for name in (*index.arrays, *index.tables))]
    try:
        states = {name: (folder / name).stat() for name in names}
    except OSError as error:
        raise DataError(DAMAGED.format(folder, f"{error.filename}: {error.strerror}")) from None
    return {name: [state.st_size, state.st_mtime_ns, state.st_ino] for name, state in states.items()}
