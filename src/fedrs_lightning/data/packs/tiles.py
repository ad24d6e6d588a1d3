"""Packs of crops: tiles cut once into arrays of images and masks.

A tile is read row by row and cut as it is read, so a large one never lies decoded in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedrs_lightning.data.packs.crops import CropIndex, crop_index, owned
from fedrs_lightning.data.packs.fields import Field, moments_of
from fedrs_lightning.data.packs.pack import PackSpec, fingerprint
from fedrs_lightning.data.packs.shards import Plan, Put
from fedrs_lightning.data.rasters.class_tables import IGNORE
from fedrs_lightning.data.rasters.rows import Buffered
from fedrs_lightning.data.rasters.tiles import Tile

THREADS = 4  # tiles at a time: bounds memory


@dataclass(frozen=True)
class CropPack(PackSpec):
    """Crops that are packed: `image` [C, size, size] and `mask` uint8 [size, size]; 0 and 255 beyond the tile's edge
    and where the image is no data.

    Tables of the pack: `image.moments`; `pixels` that are data, int64 [N]; `counts` int64 [N, K + 1], pixels of each
    class in the mask, and ignored ones last; `unknown` int64 [N], pixels of a tile whose colour or value means nothing,
    in the row of its first crop.

    Attributes:
        archive: its name.
        tiles: in order.
        folder_of_files: against which file paths are named.
        role: `train` keeps whole masks; `test` keeps of each mask the pixels that the crop owns, so that every pixel of
            a tile counts once.
        size: side of a crop in pixels.
        overlap: of neighbouring crops.
        bands: of an image.
        dtype: `uint8` or `uint16`.
        num_classes: ids 0 to num_classes - 1 occur in the masks, and 255.
        settings: everything that decides the decoded values, as plain JSON values.
    """

    archive: str
    tiles: Sequence[Tile]
    folder_of_files: Path
    role: Literal["train", "test"]
    size: int
    overlap: int
    bands: int
    dtype: str
    num_classes: int
    settings: dict[str, Any]
    threads = THREADS

    @property
    def name(self) -> str:  # type: ignore[override]
        """Archive and role."""
        return f"{self.archive}-{self.role}"

    def index(self) -> CropIndex:
        """Where the crops lie."""
        return crop_index(((tile.id, *tile.size) for tile in self.tiles), self.size, self.overlap)

    def key(self) -> dict[str, Any]:
        """See `PackSpec.key`."""
        base, files = self.folder_of_files, [path for tile in self.tiles for path in tile.files]
        names = ((path.relative_to(base) if path.is_relative_to(base) else path).as_posix() for path in files)
        return {
            "source": fingerprint(zip(names, files, strict=True)),
            "tiles": [[tile.id, *tile.size] for tile in self.tiles],
            "crops": [self.role, self.size, self.overlap, self.bands, self.dtype, self.num_classes],
            "settings": self.settings,
        }

    def plan(self) -> Plan:
        """One shard a tile."""
        index = self.index()

        side = (self.size, self.size)
        arrays = {"image": Field((self.bands, *side), self.dtype), "mask": Field(side, "uint8")}
        shapes = {"image.moments": (2, self.bands), "pixels": (), "counts": (self.num_classes + 1,), "unknown": ()}
        tables = {name: Field(shape, "int64") for name, shape in shapes.items()}
        bounds = np.searchsorted(index.tile, np.arange(len(self.tiles) + 1)).tolist()
        about: dict[str, Any] = {
            "role": self.role,
            "size": self.size,
            "overlap": self.overlap,
            "settings": self.settings,
        }
        about["tiles"] = [[tile.id, *tile.size] for tile in self.tiles]
        return Plan(arrays, tables, bounds, partial(_cut, self, index), about)


def _cut(spec: CropPack, index: CropIndex, first: int, stop: int, put: Put) -> dict[str, np.ndarray]:
    """Cut one tile into its crops; gives their tables, with the tile's unknown pixels in the row of its first crop."""
    tile, side, count, crops = spec.tiles[index.tile[first]], spec.size, stop - first, range(first, stop)
    height, width = tile.size
    bottom, right = min(side, height), min(side, width)
    moments, pixels = np.zeros((count, 2, spec.bands), np.int64), np.full(count, bottom * right)
    counts, unknown = np.zeros((count, spec.num_classes + 1), np.int64), np.zeros(count, np.int64)
    with tile.open() as opened:
        images, ids = Buffered(opened.image), Buffered(opened.ids)
        valid = None if opened.valid is None else Buffered(opened.valid)
        rows = columns = np.empty(0, np.int64)
        if spec.role == "test":
            rows, columns = np.unique(index.row[crops]), np.unique(index.column[crops])
            rows, columns = rows[owned(rows, height, side)], columns[owned(columns, width, side)]
        for place, crop in enumerate(crops):
            row, column = int(index.row[crop]), int(index.column[crop])
            image = np.zeros((spec.bands, side, side), dtype=spec.dtype)
            mask = np.full((side, side), IGNORE, dtype=np.uint8)
            image[:, :bottom, :right] = images.rows(row, row + bottom)[:, :, column : column + right]
            mask[:bottom, :right] = ids.rows(row, row + bottom)[0, :, column : column + right]
            if valid is not None:
                gone = valid.rows(row, row + bottom)[0, :, column : column + right] == 0
                image[:, :bottom, :right][:, gone] = 0
                mask[:bottom, :right][gone] = IGNORE
                pixels[place] -= np.count_nonzero(gone)
            if spec.role == "test":
                mine = (rows[row : row + bottom] == row)[:, None] & (columns[column : column + right] == column)
                mask[:bottom, :right][~mine] = IGNORE
            moments[place] = moments_of(image[None, :, :bottom, :right])[0]
            found = np.bincount(mask.ravel(), minlength=256)
            counts[place, :-1], counts[place, -1] = found[: spec.num_classes], found[IGNORE]
            put("image", crop, image)
            put("mask", crop, mask)
        unknown[0] = opened.finish()
    return {"image.moments": moments, "pixels": pixels, "counts": counts, "unknown": unknown}
