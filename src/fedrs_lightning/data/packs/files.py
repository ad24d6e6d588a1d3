"""Samples decoded from their files whenever they are wanted: slow, but without a pack."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedrs_lightning.data.packs.fields import filled, moments_of, pixels_of
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
                arrays[name][row] = filled(values)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(decode, range(len(rows)), rows.tolist()))

    def moments(self, field: str) -> np.ndarray:
        """See `Pack.moments`; decodes every file once."""
        return self._measured[0][field]

    def pixels(self, field: str) -> np.ndarray:
        """See `Pack.pixels`."""
        return self._measured[1][field]

    @cached_property
    def _measured(self) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        found = {name: np.empty((len(self), 2, field.shape[0]), np.int64) for name, field in self.fields.items()}
        pixels = {name: np.zeros(len(self), np.int64) for name in self.fields}

        def measure(number: int) -> int:
            for name, values in self.spec.decode(number).items():
                found[name][number] = moments_of(filled(values)[None])[0]
                pixels[name][number] = pixels_of(values)
            return 1

        size = sum(field.nbytes for field in self.fields.values())
        in_threads(measure, range(len(self)), THREADS, Meter(f"reading {self.spec.name}", len(self), 0, size))
        return found, pixels
