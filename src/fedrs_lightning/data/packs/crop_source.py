"""Samples of several crop packs under one numbering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrs_lightning.data.packs.crop_packs import CropPack
from fedrs_lightning.data.packs.crops import stitch
from fedrs_lightning.data.packs.fields import exact_sums, from_bits
from fedrs_lightning.data.packs.residence import Shelf
from fedrs_lightning.types import Batch


@dataclass(frozen=True)
class Part:
    """A pack inside a source.

    Attributes:
        pack: the crops.
        prefix: of sample ids and tile names, such as `potsdam/test`.
        domain: number of the domain.
        table: id in the pack to id in the federation's label space, uint8 [256]; None where they are the same.
    """

    pack: CropPack
    prefix: str
    domain: int
    table: np.ndarray | None = None


class CropSource:
    """Crops of several packs; sample numbers run through them in order.

    Attributes:
        parts: the packs.
        offsets: first sample of each part, and the number of samples; int64 [P + 1].
        sample_ids: `prefix/tile/row_column` of each sample.
        shelf: where the packs' arrays lie for `gather`.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self.offsets = np.concatenate([[0], np.cumsum([len(part.pack) for part in parts])]).astype(np.int64)
        self.sample_ids = tuple(f"{part.prefix}/{name}" for part in parts for name in part.pack.index.ids)
        self.shelf = Shelf([array for part in parts for array in (part.pack.image_rows, part.pack.mask_rows)])
        self._firsts = torch.from_numpy(self.offsets[1:].copy())
        self._tables = [None if part.table is None else torch.from_numpy(part.table) for part in parts]

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def gather(self, indices: np.ndarray | Tensor, *, pin_memory: bool = False) -> Batch:
        """Samples in the order of `indices`.

        Returns:
            `image` [B, C, h, w] as stored, `mask` uint8 [B, h, w], `domain` int64 [B].

        Raises:
            ValueError: samples of different sizes are asked for in one batch.
        """
        wanted = torch.as_tensor(indices, dtype=torch.int64)
        owner = torch.bucketize(wanted, self._firsts, right=True)
        numbers = torch.unique(owner).tolist() or [0]
        packs, device = [self.parts[number].pack for number in numbers], self.shelf.device
        if len({pack.images.shape[1:] for pack in packs}) > 1:
            raise ValueError("training windows and test crops have different sizes and cannot be in one batch")
        size, first = len(wanted), packs[0]
        image, mask = (self.shelf.empty(array, size, pin_memory) for array in (first.image_rows, first.mask_rows))
        domain = torch.empty(size, dtype=torch.int64, pin_memory=pin_memory)
        for number in numbers:
            part, table = self.parts[number], self._tables[number]
            rows = torch.nonzero(owner == number)[:, 0]
            local = (wanted[rows] - int(self.offsets[number])).to(device)
            alone, there = len(numbers) == 1, rows.to(device)
            for array, whole in ((part.pack.image_rows, image), (part.pack.mask_rows, mask)):
                found = whole if alone else self.shelf.empty(array, len(rows), False)
                self.shelf.select(array, local, found)
                if table is not None and whole is mask:
                    found = table.to(device)[found.int()]
                if found is not whole:
                    whole[there] = found
            domain[rows] = part.domain
        return {"image": from_bits(image), "mask": mask, "domain": domain}

    def sums(self, indices: np.ndarray) -> tuple[int, list[list[int]]]:
        """Number of pixels inside tiles, and their exact sums and sums of squares by channel, over the samples."""
        total, sums = 0, [[0] * self.parts[0].pack.images.shape[1] for _ in range(2)]
        for number, part in enumerate(self.parts):
            local = self._local(indices, number)
            total += int(part.pack.pixels[local].sum())
            more = exact_sums(part.pack.moments[local])
            sums = [[old + new for old, new in zip(*rows, strict=True)] for rows in zip(sums, more, strict=True)]
        return total, sums

    def class_pixels(self, indices: np.ndarray, num_classes: int) -> np.ndarray:
        """Pixels of each class in the masks of the samples, and ignored ones last; int64 [K + 1]."""
        result = np.zeros(num_classes + 1, np.int64)
        for number, part in enumerate(self.parts):
            found = part.pack.counts[self._local(indices, number)].sum(axis=0)
            own = np.arange(len(found) - 1) if part.table is None else part.table[: len(found) - 1].astype(np.int64)
            np.add.at(result, np.where(own < num_classes, own, num_classes), found[:-1])
            result[-1] += found[-1]
        return result

    def tiles(self, indices: np.ndarray) -> list[str]:
        """Names `prefix/tile` of the tiles that the samples are from, in order."""
        names = []
        for number, part in enumerate(self.parts):
            index = part.pack.index
            names += [
                f"{part.prefix}/{index.tiles[tile]}" for tile in np.unique(index.tile[self._local(indices, number)])
            ]
        return names

    def stitch(self, predictions: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Whole tiles from predictions of crops.

        Args:
            predictions: one value a pixel, [B, size, size], in the order of `indices`.
            indices: samples, int [B].

        Returns:
            `prefix/tile` to [height, width]; pixels of absent crops are 255.
        """
        result: dict[str, np.ndarray] = {}
        for number, part in enumerate(self.parts):
            rows = np.flatnonzero((indices >= self.offsets[number]) & (indices < self.offsets[number + 1]))
            found = (
                stitch(predictions[rows], part.pack.index, indices[rows] - self.offsets[number]) if len(rows) else {}
            )
            result |= {f"{part.prefix}/{name}": tile for name, tile in found.items()}
        return result

    def _local(self, indices: np.ndarray, number: int) -> np.ndarray:
        inside = (indices >= self.offsets[number]) & (indices < self.offsets[number + 1])
        return indices[inside] - self.offsets[number]
