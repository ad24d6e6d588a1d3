"""Samples that are a few arrays each, whether they lie in a pack or in files."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrs_lightning.types import Batch


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


class FieldSource(ABC):
    """Random access to samples of several arrays.

    Attributes:
        sample_ids: id of each sample.
        extras: what a batch holds beside the arrays, one entry a sample, such as `label` int64 [N].
        moments: int64 [N, 2, C] of each field, sum and sum of squares over each sample's pixels.

    Args:
        sample_ids: id of each sample.
        about: shape and type of each field.
        extras: see above.
    """

    moments: Mapping[str, np.ndarray]

    def __init__(self, sample_ids: Sequence[str], about: Mapping[str, Field], extras: Mapping[str, Tensor]) -> None:
        self.sample_ids, self.about, self.extras = tuple(sample_ids), dict(about), dict(extras)
        for name, values in extras.items():
            if len(values) != len(self.sample_ids):
                raise ValueError(f"{name} has {len(values)} entries for {len(self.sample_ids)} samples")

    def __len__(self) -> int:
        return len(self.sample_ids)

    def gather(self, indices: np.ndarray | Tensor, *, pin_memory: bool = False) -> Batch:
        """Every field [B, *shape] as stored and every extra of the given samples, in their order.

        Args:
            indices: global indices, int [B].
            pin_memory: put the result into page-locked memory, for an asynchronous copy to a GPU.
        """
        wanted = torch.as_tensor(indices, dtype=torch.int64)
        batch = {name: from_bits(values) for name, values in self._fields(wanted, pin_memory).items()}
        extras = {name: values[wanted] for name, values in self.extras.items()}
        return batch | {name: values.pin_memory() if pin_memory else values for name, values in extras.items()}

    @abstractmethod
    def _fields(self, wanted: Tensor, pin_memory: bool) -> dict[str, Tensor]:
        """The samples' fields, uint16 as the int16 of the same bits."""

    def sums(self, indices: np.ndarray, field: str = "image") -> tuple[int, list[list[int]]]:
        """Number of pixels of the samples, and their exact sums and sums of squares by channel."""
        return len(indices) * int(np.prod(self.about[field].shape[1:])), exact_sums(self.moments[field][indices])

    def mean_std(self, indices: np.ndarray, field: str = "image") -> tuple[list[float], list[float]]:
        """Mean and (population) standard deviation of each channel over the samples, in stored units.

        From exact integer sums, so the order of samples does not matter.
        """
        return mean_std(*self.sums(indices, field))


def moments_of(samples: np.ndarray) -> np.ndarray:
    """Sum and sum of squares over the pixels of each sample; [N, C, ...] to int64 [N, 2, C]."""
    wide = samples.reshape(*samples.shape[:2], -1).astype(np.int64)
    return np.stack([wide.sum(axis=2), np.square(wide).sum(axis=2)], axis=1)


def exact_sums(moments: np.ndarray) -> list[list[int]]:
    """Sum of int64 moments [N, 2, C] over N without overflow."""
    sums = [[0] * moments.shape[2] for _ in range(2)]
    for start in range(0, len(moments), 1024):  # int64 holds 1024 crops of uint16; Python integers hold the rest
        part = moments[start : start + 1024].sum(axis=0)
        sums = [
            [old + int(new) for old, new in zip(*rows, strict=True)] for rows in zip(sums, part.tolist(), strict=True)
        ]
    return sums


def mean_std(count: int, sums: list[list[int]]) -> tuple[list[float], list[float]]:
    """Mean and (population) deviation of each channel from the sums and sums of squares of `count` pixels."""
    mean = [first / count for first in sums[0]]
    std = [((count * second - first * first) ** 0.5) / count for first, second in zip(*sums, strict=True)]
    return mean, std
