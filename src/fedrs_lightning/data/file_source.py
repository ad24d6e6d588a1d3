"""Samples decoded from their files whenever they are wanted: slow, but without a pack."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedrs_lightning.data.field_source import FieldSource, moments_of
from fedrs_lightning.data.packing import PackSpec
from fedrs_lightning.progress import Meter, in_threads

THREADS = min(16, os.cpu_count() or 1)


class FileSource(FieldSource):
    """What `PackedSource` gives, bit for bit, straight from the files.

    Args:
        spec: as it would be packed.
        extras: one entry a sample, such as `label` int64 [N].
    """

    def __init__(self, spec: PackSpec, extras: Mapping[str, Tensor]) -> None:
        super().__init__(spec.ids, spec.fields, extras)
        self.spec = spec

    def _fields(self, wanted: Tensor, pin_memory: bool) -> dict[str, Tensor]:
        out = {
            name: torch.empty((len(wanted), *field.shape), dtype=field.bits, pin_memory=pin_memory)
            for name, field in self.about.items()
        }
        arrays = {name: values.view(getattr(torch, self.about[name].dtype)).numpy() for name, values in out.items()}

        def decode(row: int, number: int) -> None:
            for name, values in self.spec.decode(number).items():
                arrays[name][row] = values

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(decode, range(len(wanted)), wanted.tolist()))
        return out

    @cached_property
    def moments(self) -> Mapping[str, np.ndarray]:  # type: ignore[override]
        """int64 [N, 2, C] of each field, sum and sum of squares over each sample's pixels; decodes every file once."""
        found = {name: np.empty((len(self), 2, field.shape[0]), np.int64) for name, field in self.about.items()}

        def measure(number: int) -> int:
            for name, values in self.spec.decode(number).items():
                found[name][number] = moments_of(values[None])[0]
            return 1

        size = sum(field.nbytes for field in self.about.values())
        in_threads(measure, range(len(self)), THREADS, Meter(f"reading {self.spec.name}", len(self), 0, size))
        return found
