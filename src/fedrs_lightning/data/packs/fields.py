"""Arrays of samples: their shapes and types, and exact sums over their pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Field:
    """One array of a sample.

    Attributes:
        shape: such as [C, H, W].
        dtype: NumPy's name; `uint8` or `uint16` where batches are gathered from it.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def bits(self) -> torch.dtype:
        """Type as which torch moves the values: its gather knows no uint16, and moving bits as int16 is the same."""
        return torch.int16 if self.dtype == "uint16" else torch.uint8


def as_bits(array: np.ndarray) -> Tensor:
    """The array's own memory as a tensor that torch can gather from."""
    return torch.from_numpy(array.view(np.int16) if array.dtype == np.uint16 else array)


def from_bits(values: Tensor) -> Tensor:
    """Gathered values in their own type."""
    return values.view(torch.uint16) if values.dtype == torch.int16 else values


def moments_of(samples: np.ndarray) -> np.ndarray:
    """Sum and sum of squares over the pixels of each sample; [N, C, ...] to int64 [N, 2, C]."""
    wide = samples.reshape(*samples.shape[:2], -1).astype(np.int64)
    return np.stack([wide.sum(axis=2), np.square(wide).sum(axis=2)], axis=1)


def filled(values: np.ndarray) -> np.ndarray:
    """An array of a sample as it is stored: 0, which adds nothing to moments, where a masked one has no data."""
    return values.filled(0) if isinstance(values, np.ma.MaskedArray) else values


def pixels_of(values: np.ndarray) -> int:
    """Number of pixels of an array [C, ...] that are data."""
    return int(values[0].count()) if isinstance(values, np.ma.MaskedArray) else values[0].size


def exact_sums(moments: np.ndarray) -> list[list[int]]:
    """Sum of int64 moments [N, 2, C] over N without overflow."""
    sums = np.zeros(moments.shape[1:], dtype=object)  # of Python integers
    for start in range(0, len(moments), 1024):  # int64 holds 1024 crops of uint16
        sums += moments[start : start + 1024].sum(axis=0)
    return [list(map(int, row)) for row in sums]


def mean_std(count: int, sums: list[list[int]]) -> tuple[list[float], list[float]]:
    """Mean and (population) deviation of each channel from the sums and sums of squares of `count` pixels."""
    mean = [first / count for first in sums[0]]
    std = [((count * second - first * first) ** 0.5) / count for first, second in zip(*sums, strict=True)]
    return mean, std
