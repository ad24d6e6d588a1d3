"""Square crops of tiles: where they lie, which pixels each one owns, and how tiles are put together again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedrs_lightning.data.rasters.class_tables import IGNORE


def starts(side: int, size: int, overlap: int = 0) -> np.ndarray:
    """First pixels of crops along one side: a regular grid whose last crop is shifted inward, int64.

    Args:
        side: of the tile, >= 1.
        size: of a crop; a smaller tile gets one crop, to be padded.
        overlap: of neighbouring crops, in [0, size).
    """
    if not 0 <= overlap < size:
        raise ValueError(f"overlap must be in [0, {size}), got {overlap}")
    if side <= size:
        return np.zeros(1, dtype=np.int64)
    step = size - overlap
    return np.minimum(np.arange(-(-(side - size) // step) + 1) * step, side - size)


def owned(first: np.ndarray, side: int, size: int) -> np.ndarray:
    """Crop that owns each pixel along one side: that with the nearest centre, ties to the lower number; int64 [side].

    On a grid the nearest centre in the plane is the nearest row and the nearest column, so two such lists own a tile.
    """
    # Twice the distance from centre to pixel, in whole numbers: centres lie on half pixels.
    distance = np.abs(2 * np.arange(side)[:, None] + 1 - (2 * first[None] + min(size, side)))
    return distance.argmin(axis=1)


@dataclass(frozen=True)
class CropIndex:
    """Where the crops of a pack lie.

    Attributes:
        tiles: ids of the tiles.
        heights, widths: of the tiles, int64 [T].
        tile: number of each crop's tile, int64 [N]; crops of a tile lie together, row by row.
        row, column: first of each crop, int64 [N].
        size: side of a crop.
        overlap: of neighbouring crops.
    """

    tiles: tuple[str, ...]
    heights: np.ndarray
    widths: np.ndarray
    tile: np.ndarray
    row: np.ndarray
    column: np.ndarray
    size: int
    overlap: int = 0

    def __len__(self) -> int:
        return len(self.tile)

    @property
    def ids(self) -> list[str]:
        """`tile/row_column` of each crop."""
        where = zip(self.tile.tolist(), self.row.tolist(), self.column.tolist(), strict=True)
        return [f"{self.tiles[tile]}/{row}_{column}" for tile, row, column in where]

    def owned_box(self, crop: int) -> tuple[int, int, int, int]:
        """The rectangle that a crop owns, in the tile: first row, last row + 1, first column, last column + 1."""
        tile = int(self.tile[crop])
        spans = []
        for first, side in ((self.row[crop], self.heights[tile]), (self.column[crop], self.widths[tile])):
            grid = starts(int(side), self.size, self.overlap)
            mine = np.flatnonzero(owned(grid, int(side), self.size) == np.searchsorted(grid, first))
            spans += [int(mine[0]), int(mine[-1]) + 1]
        return spans[0], spans[1], spans[2], spans[3]


def crop_index(tiles: Iterable[tuple[str, int, int]], size: int, overlap: int = 0) -> CropIndex:
    """Crops on a regular grid of each tile, which are given as (id, height, width)."""
    known = list(tiles)
    places = [np.empty((0, 3), dtype=np.int64)]
    for number, (_, height, width) in enumerate(known):
        grid = np.meshgrid(number, starts(height, size, overlap), starts(width, size, overlap), indexing="ij")
        places.append(np.stack(grid, axis=-1).reshape(-1, 3))
    sides = np.asarray([own[1:] for own in known], dtype=np.int64).reshape(-1, 2)
    heights, widths, tile, row, column = map(np.ascontiguousarray, (*sides.T, *np.concatenate(places).T))
    return CropIndex(tuple(own[0] for own in known), heights, widths, tile, row, column, size, overlap)


def stitch(predictions: np.ndarray, index: CropIndex, crops: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Put crops together to tiles [height, width] by id: each pixel from the crop that owns it.

    Args:
        predictions: one value a pixel of each crop, [N, size, size], in the order of `crops`.
        index: of the pack.
        crops: which crops are given, int [N]; None means all. Pixels of absent crops are 255.
    """
    chosen = np.arange(len(index)) if crops is None else np.asarray(crops)
    if predictions.shape != (len(chosen), index.size, index.size):
        wanted = [len(chosen), index.size, index.size]
        raise ValueError(f"predictions must be {wanted}, got {list(predictions.shape)}")
    result: dict[str, np.ndarray] = {}
    for values, crop in zip(predictions, chosen.tolist(), strict=True):
        number = int(index.tile[crop])
        shape = (int(index.heights[number]), int(index.widths[number]))
        tile = result.setdefault(index.tiles[number], np.full(shape, IGNORE, dtype=predictions.dtype))
        top, bottom, left, right = index.owned_box(crop)
        row, column = int(index.row[crop]), int(index.column[crop])
        tile[top:bottom, left:right] = values[top - row : bottom - row, left - column : right - column]
    return result
