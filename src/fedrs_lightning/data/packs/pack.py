"""Packs: samples decoded once into memory-mapped arrays, so that a batch is one gather an array.

A pack is a folder of the cache, named by a hash over the source files (ids, sizes, modification times), the settings
that decide the decoded values, and the format version. A changed source or setting is another pack. Labels of images
are not in it: they come from tables that are quick to read, and may change without the images.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedrs_lightning.data.packs.folders import build
from fedrs_lightning.data.packs.index import DAMAGED, UNREADABLE, read_index
from fedrs_lightning.data.packs.residence import MappedArray, Shelf
from fedrs_lightning.data.packs.shards import Plan, read_table
from fedrs_lightning.data.packs.verification import Verification
from fedrs_lightning.errors import DataError

FORMAT = 4


class PackSpec(ABC):
    """What is packed, and how.

    Attributes:
        name: start of the pack folder's name, such as `eurosat-rgb`; also for messages.
    """

    name: str
    threads: int | None = None
    """Pieces of work at a time; None takes one a core, at most 16."""

    @abstractmethod
    def key(self) -> dict[str, Any]:
        """Everything that decides the pack's bytes, the source files as they are now included; plain JSON values."""

    @abstractmethod
    def plan(self) -> Plan:
        """The files of the pack, and how they are filled."""

    def folder(self, cache: Path) -> Path:
        """Folder of the pack that belongs to the source as it is now; it may not exist yet."""
        key = json.dumps({"format": FORMAT} | self.key(), sort_keys=True)
        return cache / f"{self.name}-{hashlib.sha256(key.encode()).hexdigest()[:20]}"

    def pack(self, cache: Path) -> Path:
        """Make the pack if it does not exist yet; gives its folder.

        Raises:
            DataError: the first sample, in their order, that cannot be decoded; or the cache cannot be written.
        """
        return build(lambda: self.folder(cache), self.name, self.plan(), self.threads)

    def open(self, cache: Path, verification: Verification | None = None) -> Pack:
        """The pack, made before.

        Raises:
            DataError: it is not there, or damaged.
        """
        folder = self.folder(cache)
        if not folder.is_dir():
            remedy = "call prepare() first, and on several nodes share cache_dir"
            raise DataError(f"{folder}: not packed yet, or the files changed; {remedy}")
        return Pack(folder, verification)


class Pack:
    """Samples of a finished pack.

    Attributes:
        folder: of the pack.
        sample_ids: id of each sample.
        digest: SHA-256 of the arrays' bytes.
        fields: shape and type of each array of a sample.
        mapped: [N, *shape] array of each field.
        tables: other values of each sample, [N, ...], such as `image.moments`.
        crops: where the samples lie in their tiles; None where a sample is an image of its own.
        verification: whose findings end the next `read`; None for none.

    Raises:
        DataError: the pack is damaged; names its folder.
    """

    def __init__(self, folder: Path, verification: Verification | None = None) -> None:
        index = read_index(folder)
        self.fields, self.crops, self.sample_ids = index.arrays, index.crops, index.sample_ids
        self.folder, self.digest, count = folder, index.sha256, index.count
        self.verification = verification
        try:
            self.mapped = {name: MappedArray(folder / f"{name}.npy") for name in self.fields}
            self.tables = {name: read_table(folder / f"{name}.npy") for name in index.tables}
            self._states = {folder / f"{name}.npy": (folder / f"{name}.npy").stat() for name in self.fields}
        except UNREADABLE as error:
            raise DataError(DAMAGED.format(folder, error)) from None
        expected = {name: ((count, *field.shape), field.dtype) for name, field in self.fields.items()}
        found = {name: (each.array.shape, str(each.array.dtype)) for name, each in self.mapped.items()}
        wrong = [name for name in expected if found[name] != expected[name]]
        wrong += [name for name, table in self.tables.items() if table.shape[:1] != (count,)]
        if wrong:
            raise DataError(DAMAGED.format(folder, f"{wrong[0]}.npy does not fit"))
        for name, table in self.tables.items():  # before anything is counted
            if hashlib.sha256(table.tobytes()).hexdigest() != index.tables[name]:
                raise DataError(DAMAGED.format(folder, f"{name}.npy holds other values"))

    def __len__(self) -> int:
        return len(self.sample_ids)

    def read(self, rows: Tensor, out: Mapping[str, Tensor], shelf: Shelf) -> None:
        """Put samples `rows`, int64, into `out` [len(rows), *shape] as bits; all on the shelf's device.

        Raises:
            DataError: the pack was found to be damaged, or a file of it was cut.
        """
        if self.verification is not None:
            self.verification.look()
        self._refuse_cut_files()
        for name, values in out.items():
            shelf.select(self.mapped[name], rows, values)

    def _refuse_cut_files(self) -> None:
        """To touch a mapped page beyond the end of a file would end the process by SIGBUS, without a word."""
        for path, state in self._states.items():
            try:
                now = path.stat()
            except OSError:
                continue  # it was moved, or removed: what is mapped stays
            if now.st_size < state.st_size and now.st_ino == state.st_ino:
                raise DataError(DAMAGED.format(self.folder, f"{path.name} was cut while it was read"))

    def moments(self, field: str) -> np.ndarray:
        """Sum and sum of squares over each sample's pixels, without those beyond a tile's edge; int64 [N, 2, C]."""
        return self.tables[f"{field}.moments"]

    def pixels(self, field: str) -> np.ndarray:
        """Number of pixels that `moments` counts, int64 [N]."""
        found = self.tables.get("pixels" if self.crops is not None else f"{field}.pixels")
        return np.full(len(self), int(np.prod(self.fields[field].shape[1:])), np.int64) if found is None else found


def fingerprint(files: Iterable[tuple[str, Path]]) -> str:
    """SHA-256 over the sorted ids of files with their sizes and modification times."""
    lines = []
    for name, path in files:
        try:
            status = path.stat()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); check the file and its permissions") from None
        lines.append(f"{name}\x1f{status.st_size}\x1f{status.st_mtime_ns}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def hash_ids(ids: Sequence[str]) -> str:
    """SHA-256 over the sorted ids, one a line."""
    return hashlib.sha256("".join(f"{name}\n" for name in sorted(ids)).encode()).hexdigest()
