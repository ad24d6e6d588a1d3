"""Packs of images: one sample a file, or a few arrays a sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedrs_lightning.data.packs.fields import Field, filled, moments_of, pixels_of
from fedrs_lightning.data.packs.pack import PackSpec
from fedrs_lightning.data.packs.shards import Plan, Put

SHARD = 64 * 2**20  # bytes
CHUNK, CHUNK_BYTES = 64, 4 * 2**20  # samples that a thread decodes at a time


@dataclass(frozen=True)
class ImagePack(PackSpec):
    """Images that are packed.

    Attributes:
        name: see `PackSpec`.
        ids: of the samples, in their order.
        fields: arrays of a sample by name.
        settings: everything that decides the decoded values, as plain JSON values.
        source: fingerprint of the source as it is now, such as `fingerprint` of its files.
        decode: number of a sample to its arrays by field; raises DataError naming the file. Called from many threads.
        gaps: whether some pixels may be no data, so that the arrays are masked. Their number is a table of the pack.
    """

    name: str
    ids: Sequence[str]
    fields: Mapping[str, Field]
    settings: dict[str, Any]
    source: Callable[[], str]
    decode: Callable[[int], Mapping[str, np.ndarray]]
    gaps: bool = False

    def key(self) -> dict[str, Any]:
        """See `PackSpec.key`."""
        fields = {name: asdict(field) for name, field in self.fields.items()}
        about = {"ids": list(self.ids), "fields": fields, "settings": self.settings}
        return {"shard": SHARD, "source": self.source(), **about}

    def plan(self) -> Plan:
        """Shards of about `SHARD` bytes."""
        size = sum(field.nbytes for field in self.fields.values())
        tables = {f"{name}.moments": Field((2, field.shape[0]), "int64") for name, field in self.fields.items()}
        if self.gaps:
            tables |= {f"{name}.pixels": Field((), "int64") for name in self.fields}
        bounds = [*range(0, len(self.ids), max(1, SHARD // max(1, size))), len(self.ids)]
        about = {"settings": self.settings, "sample_ids": list(self.ids)}
        return Plan(self.fields, tables, bounds, self._fill, about, min(CHUNK, max(1, CHUNK_BYTES // size)))

    def _fill(self, first: int, stop: int, put: Put) -> dict[str, np.ndarray]:
        pixels = {name: np.zeros(stop - first, np.int64) for name in self.fields}
        arrays = {name: np.empty((stop - first, *field.shape), field.dtype) for name, field in self.fields.items()}
        for number in range(first, stop):
            for name, values in self.decode(number).items():
                arrays[name][number - first] = filled(values)
                pixels[name][number - first] = pixels_of(values)
        for name, values in arrays.items():
            put(name, first, values)
        moments = {f"{name}.moments": moments_of(values) for name, values in arrays.items()}
        return moments | ({f"{name}.pixels": counts for name, counts in pixels.items()} if self.gaps else {})
