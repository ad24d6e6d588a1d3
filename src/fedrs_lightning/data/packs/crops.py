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
    """Which crop owns each pixel along one side: the one with the nearest centre, ties to the lower number; int64
    [side].

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
        heights: of the tiles, int64 [T].
        widths: of the tiles, int64 [T].
        tile: number of each crop's tile, int64 [N]; crops of a tile lie together, row by row.
        row: first row of each crop, int64 [N].
        column: first column of each crop, int64 [N].
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
    """Crops on a regular grid of each tile.

    Args:
        tiles: (id, height, width).
        size: side of a crop.
        overlap: of neighbouring crops.
    """
    known = list(tiles)
    tile, row, column = [], [], []
    for number, (_, height, width) in enumerate(known):
        rows, columns = starts(height, size, overlap), starts(width, size, overlap)
        tile.append(np.full(len(rows) * len(columns), number, dtype=np.int64))
        row.append(np.repeat(rows, len(columns)))
        column.append(np.tile(columns, len(rows)))
    empty = [np.empty(0, dtype=np.int64)]
    return CropIndex(
        tuple(name for name, _, _ in known),
        np.asarray([height for _, height, _ in known], dtype=np.int64),
        np.asarray([width for _, _, width in known], dtype=np.int64),
        np.concatenate(empty + tile),
        np.concatenate(empty + row),
        np.concatenate(empty + column),
        size,
        overlap,
    )


def stitch(predictions: np.ndarray, index: CropIndex, crops: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Put crops together: each pixel of a tile from the crop that owns it.

    Args:
        predictions: one value a pixel of each crop, [N, size, size], in the order of `crops`.
        index: of the pack.
        crops: which crops are given, int [N]; None means all. Pixels of absent crops are 255.

    Returns:
        Tile id to [height, width].
    """
    chosen = np.arange(len(index)) if crops is None else np.asarray(crops)
    if predictions.shape != (len(chosen), index.size, index.size):
        raise ValueError(
            f"predictions must be [{len(chosen)}, {index.size}, {index.size}], got {list(predictions.shape)}"
        )
    result: dict[str, np.ndarray] = {}
    for values, crop in zip(predictions, chosen.tolist(), strict=True):
        number = int(index.tile[crop])
        shape = (int(index.heights[number]), int(index.widths[number]))
        tile = result.setdefault(index.tiles[number], np.full(shape, IGNORE, dtype=predictions.dtype))
        top, bottom, left, right = index.owned_box(crop)
        row, column = int(index.row[crop]), int(index.column[crop])
        tile[top:bottom, left:right] = values[top - row : bottom - row, left - column : right - column]
    return result
