"""Random images for the parts that measure: values do not matter for speed, sizes and types do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrs_lightning.data import ClientSplit, Federation
from fedrs_lightning.data.transforms.transform import Transform
from fedrs_lightning.types import Batch

MEAN, DEVIATION = 0.4, 0.2


class Noise:
    """uint8 images with a label each, or with masks, in memory; what is pinned is copied into pinned memory first."""

    def __init__(self, count: int, side: int, classes: int, masks: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
        self.key, shape = ("mask", (count, side, side)) if masks else ("label", (count,))
        dtype = torch.uint8 if masks else torch.int64
        self.labels = torch.randint(0, classes, shape, dtype=dtype, generator=generator)

    def __len__(self) -> int:
        return len(self.images)

    def gather(self, indices: np.ndarray | Tensor, *, pin_memory: bool = False) -> Batch:
        wanted = torch.as_tensor(indices)
        found = {"image": self.images, self.key: self.labels}
        if not pin_memory:
            return {name: values[wanted] for name, values in found.items()}
        batch = {}
        for name, values in found.items():
            batch[name] = torch.empty((len(wanted), *values.shape[1:]), dtype=values.dtype, pin_memory=True)
            torch.index_select(values, 0, wanted, out=batch[name])
        return batch


def federation(sizes: Sequence[int], test: int, side: int, classes: int = 10, masks: bool = False) -> Federation:
    """Clients with so many images each and a common test set."""
    source = Noise(sum(sizes) + test, side, classes, masks)
    ends = np.cumsum([0, *sizes])
    clients = tuple(ClientSplit(number, "", np.arange(*part)) for number, part in enumerate(pairwise(ends)))
    return of_source(source, clients, np.arange(ends[-1], len(source)))


def of_source(source: Any, clients: tuple[ClientSplit, ...], test: np.ndarray) -> Federation:
    """A federation of a source, augmented by turns and flips."""
    transform = Transform([[MEAN] * 3], [[DEVIATION] * 3], 1 / 255)
    ids = [str(number) for number in range(len(source))]
    return Federation(source, clients, test, np.arange(0), transform, {}, ids)
