"""Decode samples once into memory-mapped arrays, so that a batch is one gather an array.

A pack is a folder of the cache, named by a hash over the source files (ids, sizes, modification times), the settings
that decide the decoded values, and the format version. A changed source or setting is another pack. Labels are not in
it: they come from tables that are quick to read, and may change without the images.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedrs_lightning.data.packs.fields import Field, FieldSource, moments_of
from fedrs_lightning.data.packs.folders import build
from fedrs_lightning.data.packs.residence import MappedArray, Shelf
from fedrs_lightning.data.packs.shards import Plan, Put, shard_bounds
from fedrs_lightning.errors import DataError, RunError
from fedrs_lightning.files import read_json

FORMAT = 2
SHARD = 64 * 2**20  # bytes
CHUNK, CHUNK_BYTES = 64, 4 * 2**20  # samples that a thread decodes at a time


@dataclass(frozen=True)
class PackSpec:
    """What is packed, and how.

    Attributes:
        name: start of the pack folder's name, such as `eurosat-rgb`.
        ids: of the samples, in their order.
        fields: arrays of a sample by name.
        settings: everything that decides the decoded values, as plain JSON values.
        source: fingerprint of the source as it is now, such as `fingerprint` of its files.
        decode: number of a sample to its arrays by field; raises DataError naming the file. Called from many threads.
    """

    name: str
    ids: Sequence[str]
    fields: Mapping[str, Field]
    settings: dict[str, Any]
    source: Callable[[], str]
    decode: Callable[[int], Mapping[str, np.ndarray]]


class PackedSource(FieldSource):
    """Samples of a pack: every field and every extra by global index.

    Attributes:
        folder: of the pack.
        digest: SHA-256 of the arrays' bytes.
        fields: [N, *shape] mapped array of each field (uint8 or uint16).
        shelf: where these arrays lie for `gather`.
        moments: int64 [N, 2, C] of each field, sum and sum of squares over each sample's pixels.
        sample_ids: id of each sample.
        extras: what a batch holds beside the fields.

    Args:
        folder: of a pack that is there.
        extras: one entry a sample, such as `label` int64 [N].

    Raises:
        DataError: the pack is damaged; names its folder.
    """

    def __init__(self, folder: Path, extras: Mapping[str, Tensor]) -> None:
        try:
            index = read_json(folder / "index.json")
            about = {name: Field(tuple(field["shape"]), field["dtype"]) for name, field in index["arrays"].items()}
            ids = tuple(index["sample_ids"])
            self._arrays = {name: MappedArray(folder / f"{name}.npy") for name in about}
            self.moments: Mapping[str, np.ndarray] = {
                name: np.load(folder / f"{name}.moments.npy", allow_pickle=False) for name in about
            }
        except (RunError, OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder}: the pack is damaged ({error}); delete this folder, it is made again") from None
        self.fields = {name: array.array for name, array in self._arrays.items()}
        for name, field in about.items():
            found = self.fields[name]
            if (
                found.shape != (len(ids), *field.shape)
                or str(found.dtype) != field.dtype
                or len(self.moments[name]) != len(ids)
            ):
                raise DataError(
                    f"{folder}: the pack is damaged ({name} {found.shape}); delete this folder, it is made again"
                )
        super().__init__(ids, about, extras)
        self.folder, self.digest = folder, str(index["sha256"])
        self.shelf = Shelf(list(self._arrays.values()))

    def _fields(self, wanted: Tensor, pin_memory: bool) -> dict[str, Tensor]:
        found, there = {}, wanted.to(self.shelf.device)
        for name, array in self._arrays.items():
            found[name] = self.shelf.empty(array, len(wanted), pin_memory)
            self.shelf.select(array, there, found[name])
        return found


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


def pack_folder(spec: PackSpec, cache: Path) -> Path:
    """Folder of the pack that belongs to the source as it is now; it may not exist yet."""
    key = {
        "format": FORMAT,
        "shard": SHARD,
        "source": spec.source(),
        "ids": list(spec.ids),
        "fields": {name: asdict(field) for name, field in spec.fields.items()},
        "settings": spec.settings,
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache / f"{spec.name}-{digest[:20]}"


def pack(spec: PackSpec, cache: Path, threads: int | None = None) -> Path:
    """Make the pack if it does not exist yet.

    Args:
        spec: what is packed.
        cache: folder of packs.
        threads: that decode; null takes one a core, at most 16.

    Returns:
        Its folder.

    Raises:
        DataError: the first sample, in their order, that cannot be decoded; or the cache cannot be written.
    """
    return build(lambda: pack_folder(spec, cache), spec.name, _plan(spec), threads)


def _plan(spec: PackSpec) -> Plan:
    def fill(first: int, stop: int, put: Put) -> dict[str, np.ndarray]:
        arrays = {name: np.empty((stop - first, *field.shape), field.dtype) for name, field in spec.fields.items()}
        for number in range(first, stop):
            for name, values in spec.decode(number).items():
                arrays[name][number - first] = values
        for name, values in arrays.items():
            put(name, first, values)
        return {f"{name}.moments": moments_of(values) for name, values in arrays.items()}

    size = sum(field.nbytes for field in spec.fields.values())
    return Plan(
        arrays=spec.fields,
        tables={f"{name}.moments": Field((2, field.shape[0]), "int64") for name, field in spec.fields.items()},
        bounds=shard_bounds(len(spec.ids), size, SHARD),
        fill=fill,
        about={"format": FORMAT, "settings": spec.settings, "sample_ids": list(spec.ids)},
        step=min(CHUNK, max(1, CHUNK_BYTES // size)),
    )
