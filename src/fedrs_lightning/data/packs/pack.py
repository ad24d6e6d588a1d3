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

from fedrs_lightning.data.packs.crops import crop_index
from fedrs_lightning.data.packs.fields import Field
from fedrs_lightning.data.packs.folders import build
from fedrs_lightning.data.packs.residence import MappedArray, Shelf
from fedrs_lightning.data.packs.shards import Plan
from fedrs_lightning.errors import DataError, RunError
from fedrs_lightning.files import read_json

FORMAT = 4
DAMAGED = "{}: the pack is damaged ({}); delete this folder, it is made again"


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

    def open(self, cache: Path) -> Pack:
        """The pack, made before.

        Raises:
            DataError: it is not there, or damaged.
        """
        folder = self.folder(cache)
        if not folder.is_dir():
            remedy = "call prepare() first, and on several nodes share cache_dir"
            raise DataError(f"{folder}: not packed yet, or the files changed; {remedy}")
        return Pack(folder)


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

    Raises:
        DataError: the pack is damaged; names its folder.
    """

    def __init__(self, folder: Path) -> None:
        try:
            index = read_json(folder / "index.json")
            self.fields = {name: Field(tuple(own["shape"]), own["dtype"]) for name, own in index["arrays"].items()}
            self.crops = crop_index(index["tiles"], index["size"], index["overlap"]) if "tiles" in index else None
            self.sample_ids: tuple[str, ...] = tuple(index["sample_ids"] if self.crops is None else self.crops.ids)
            self.mapped = {name: MappedArray(folder / f"{name}.npy") for name in self.fields}
            self.tables = {name: np.load(folder / f"{name}.npy", allow_pickle=False) for name in index["tables"]}
            self.folder, self.digest, count = folder, str(index["sha256"]), len(self.sample_ids)
        except (RunError, OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(DAMAGED.format(folder, error)) from None
        expected = {name: ((count, *field.shape), field.dtype) for name, field in self.fields.items()}
        found = {name: (each.array.shape, str(each.array.dtype)) for name, each in self.mapped.items()}
        wrong = [name for name in expected if found[name] != expected[name]]
        wrong += [name for name, table in self.tables.items() if len(table) != count]
        if wrong:
            raise DataError(DAMAGED.format(folder, f"{wrong[0]}.npy does not fit"))

    def __len__(self) -> int:
        return len(self.sample_ids)

    def read(self, rows: Tensor, out: Mapping[str, Tensor], shelf: Shelf) -> None:
        """Put samples `rows`, int64, into `out` [len(rows), *shape] as bits; all on the shelf's device."""
        for name, values in out.items():
            shelf.select(self.mapped[name], rows, values)

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
