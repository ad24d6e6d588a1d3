"""Samples decoded from their files whenever they are wanted: slow, but without a pack."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedrs_lightning.data.packs.fields import moments_of
from fedrs_lightning.data.packs.images import ImagePack
from fedrs_lightning.data.packs.residence import Shelf
from fedrs_lightning.progress import Meter, in_threads

THREADS = min(16, os.cpu_count() or 1)


class DecodedFiles:
    """What a `Pack` of `spec` gives, bit for bit, straight from the files."""

    crops = None

    def __init__(self, spec: ImagePack) -> None:
        self.spec, self.sample_ids, self.fields, self.digest = spec, tuple(spec.ids), dict(spec.fields), None

    def __len__(self) -> int:
        return len(self.sample_ids)

    def read(self, rows: Tensor, out: Mapping[str, Tensor], shelf: Shelf) -> None:
        """See `Pack.read`."""
        arrays = {name: values.view(getattr(torch, self.fields[name].dtype)).numpy() for name, values in out.items()}

        def decode(row: int, number: int) -> None:
            for name, values in self.spec.decode(number).items():
                arrays[name][row] = values

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(decode, range(len(rows)), rows.tolist()))

    def moments(self, field: str) -> np.ndarray:
        """See `Pack.moments`; decodes every file once."""
        return self._moments[field]

    def pixels(self, field: str) -> np.ndarray:
        """See `Pack.pixels`."""
        return np.full(len(self), int(np.prod(self.fields[field].shape[1:])), np.int64)

    @cached_property
    def _moments(self) -> Mapping[str, np.ndarray]:
        found = {name: np.empty((len(self), 2, field.shape[0]), np.int64) for name, field in self.fields.items()}

        def measure(number: int) -> int:
            for name, values in self.spec.decode(number).items():
                found[name][number] = moments_of(values[None])[0]
            return 1

        size = sum(field.nbytes for field in self.fields.values())
        in_threads(measure, range(len(self)), THREADS, Meter(f"reading {self.spec.name}", len(self), 0, size))
        return found
