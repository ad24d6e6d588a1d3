"""Samples of one or several packs under one numbering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrs_lightning.data.packs.crops import stitch
from fedrs_lightning.data.packs.fields import exact_sums, from_bits
from fedrs_lightning.data.packs.files import DecodedFiles
from fedrs_lightning.data.packs.pack import Pack
from fedrs_lightning.data.packs.residence import Shelf, onto
from fedrs_lightning.types import Batch


@dataclass(frozen=True)
class Part:
    """A pack inside a source.

    Attributes:
        pack: the samples.
        prefix: of sample ids and tile names, such as `potsdam/test/`.
        table: class id in the pack's masks to id in the federation's label space, uint8 [256]; None where they agree.
    """

    pack: Pack | DecodedFiles
    prefix: str = ""
    table: np.ndarray | None = None


class PackedSource:
    """Random access to the samples of packs; their numbers run through the parts in order.

    Attributes:
        parts: the packs.
        offsets: first sample of each part, and the number of samples; int64 [P + 1].
        sample_ids: `prefix` and id of each sample.
        extras: what a batch holds beside the arrays of packs, one entry a sample, such as `label` int64 [N].
        shelf: where the packs' arrays lie for `gather`.

    Raises:
        ValueError: an extra has another length.
    """

    def __init__(self, parts: Sequence[Part], extras: Mapping[str, Tensor]) -> None:
        self.parts, self.extras = tuple(parts), dict(extras)
        self.offsets = np.concatenate([[0], np.cumsum([len(part.pack) for part in parts])]).astype(np.int64)
        self.sample_ids = tuple(f"{part.prefix}{name}" for part in parts for name in part.pack.sample_ids)
        for name, values in self.extras.items():
            if len(values) != len(self):
                raise ValueError(f"{name} has {len(values)} entries for {len(self)} samples")
        packs = [part.pack for part in parts if isinstance(part.pack, Pack)]
        self.shelf = Shelf([array for pack in packs for array in pack.mapped.values()])
        self._ends = torch.from_numpy(self.offsets[1:].copy())
        self._tables: dict[tuple[int, torch.device], Tensor] = {}

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def gather(self, indices: np.ndarray | Tensor, *, pin_memory: bool = False) -> Batch:
        """Every array [B, *shape] as stored and every extra of samples, see `SampleSource.gather`.

        Raises:
            ValueError: samples of different sizes are asked for in one batch.
        """
        wanted = torch.as_tensor(indices, dtype=torch.int64)
        batch = {name: from_bits(values) for name, values in self._arrays(wanted, pin_memory).items()}
        extras = {name: values[wanted] for name, values in self.extras.items()}
        return batch | {name: values.pin_memory() if pin_memory else values for name, values in extras.items()}

    def _arrays(self, wanted: Tensor, pin_memory: bool) -> dict[str, Tensor]:
        numbers, owner = [0], wanted
        if len(self.parts) > 1:
            owner = torch.bucketize(wanted, self._ends, right=True)
            numbers = torch.unique(owner).tolist() or [0]
        fields = self.parts[numbers[0]].pack.fields
        if any(self.parts[number].pack.fields != fields for number in numbers):
            raise ValueError("samples of different sizes, such as windows and test crops, cannot be in one batch")
        whole = {name: self.shelf.empty(field, len(wanted), pin_memory) for name, field in fields.items()}
        for number in numbers:
            part = self.parts[number]
            places, rows, found = None, wanted, whole
            if len(numbers) > 1:
                places = torch.nonzero(owner == number)[:, 0]
                rows = wanted[places]
                found = {name: self.shelf.empty(field, len(rows), False) for name, field in fields.items()}
            part.pack.read(onto(rows - int(self.offsets[number]), self.shelf.device), found, self.shelf)
            for name, values in found.items():
                own = self._relabelled(number, values) if name == "mask" else values
                if places is None:
                    whole[name] = own
                else:
                    whole[name][onto(places, values.device)] = own
        return whole

    def _relabelled(self, number: int, mask: Tensor) -> Tensor:
        """A part's mask in the federation's classes; its table is copied to a device once."""
        table, key = self.parts[number].table, (number, mask.device)
        if table is None:
            return mask
        if key not in self._tables:
            self._tables[key] = onto(torch.from_numpy(table), mask.device)
        return self._tables[key][mask.int()]

    def sums(self, indices: np.ndarray, field: str) -> tuple[int, list[list[int]]]:
        """Number of pixels of the samples, and their exact sums and sums of squares by channel.

        Sums are of stored integers, so the order of samples does not matter. Pixels beyond a tile's edge do not count.
        """
        total, sums = 0, [[0] * self.parts[0].pack.fields[field].shape[0] for _ in range(2)]
        for part, _, local in self._by_part(indices):
            total += int(part.pack.pixels(field)[local].sum())
            more = exact_sums(part.pack.moments(field)[local])
            sums = [[old + new for old, new in zip(*rows, strict=True)] for rows in zip(sums, more, strict=True)]
        return total, sums

    def class_pixels(self, indices: np.ndarray, num_classes: int) -> np.ndarray:
        """Pixels of each class in the masks of the samples, and ignored ones last; int64 [K + 1]."""
        result = np.zeros(num_classes + 1, np.int64)
        for part, _, local in self._by_part(indices):
            assert isinstance(part.pack, Pack)
            found = part.pack.tables["counts"][local].sum(axis=0)
            own = np.arange(len(found) - 1) if part.table is None else part.table[: len(found) - 1].astype(np.int64)
            np.add.at(result, np.where(own < num_classes, own, num_classes), found[:-1])
            result[-1] += found[-1]
        return result

    def tiles(self, indices: np.ndarray) -> list[str]:
        """Names `prefix` and tile id of the tiles that the samples are from, in order."""
        names = []
        for part, _, local in self._by_part(indices):
            crops = part.pack.crops
            assert crops is not None
            names += [f"{part.prefix}{crops.tiles[tile]}" for tile in np.unique(crops.tile[local])]
        return names

    def inside(self, indices: np.ndarray) -> list[tuple[int, int]]:
        """Height and width of what is image in each sample: a crop of a small tile is filled up beyond its edge."""
        owner = np.searchsorted(self.offsets, indices, side="right") - 1
        sizes = []
        for number, row in zip(owner, indices - self.offsets[owner], strict=True):
            crops, fields = self.parts[number].pack.crops, self.parts[number].pack.fields
            height, width = next(iter(fields.values())).shape[-2:]
            if crops is not None:
                tile = crops.tile[row]
                height, width = min(height, int(crops.heights[tile])), min(width, int(crops.widths[tile]))
            sizes.append((height, width))
        return sizes

    def stitch(self, predictions: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Whole tiles [height, width] by `prefix` and id, from predictions [B, size, size] of crops `indices` [B].

        Pixels of absent crops are 255.
        """
        result: dict[str, np.ndarray] = {}
        for part, rows, local in self._by_part(indices):
            if len(local):
                assert part.pack.crops is not None
                found = stitch(predictions[rows], part.pack.crops, local)
                result |= {f"{part.prefix}{name}": tile for name, tile in found.items()}
        return result

    def _by_part(self, indices: np.ndarray) -> list[tuple[Part, np.ndarray, np.ndarray]]:
        """Each part with the places of its samples in `indices`, and their rows in it."""
        found = []
        for part, first, stop in zip(self.parts, self.offsets, self.offsets[1:], strict=False):
            rows = np.flatnonzero((indices >= first) & (indices < stop))
            found.append((part, rows, indices[rows] - first))
        return found
