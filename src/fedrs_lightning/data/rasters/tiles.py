"""Tiles: an image and its label, read row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedrs_lightning.data.rasters.rows import Rows, Window
from fedrs_lightning.errors import DataError


@dataclass
class OpenTile:
    """An opened tile.

    Attributes:
        image: [C, n, W] rows.
        ids: uint8 [1, n, W] rows of class ids, 255 = ignore.
        finish: judges the label after its last row, raising DataError; gives the number of unknown pixels.
    """

    image: Rows
    ids: Rows
    finish: Callable[[], int]


@dataclass(frozen=True)
class Tile:
    """One tile of a data set.

    Attributes:
        id: unique within the data set and split.
        files: all files that decide its pixels.
        open: opens it; raises DataError naming the file.
        size: (height, width) after resampling.
    """

    id: str
    files: tuple[Path, ...]
    open: Callable[[], AbstractContextManager[OpenTile]]
    size: tuple[int, int]


def by_position(tiles: Sequence[Tile]) -> tuple[list[Tile], list[Tile]]:
    """Cut each tile across its longer side: the first three quarters, and the last.

    For development on a handful of tiles. Both parts are of one scene, so scores are no benchmark.
    """
    first: list[Tile] = []
    last: list[Tile] = []
    for tile in tiles:
        height, width = tile.size
        if min(height, width) < 4:
            raise DataError(f"{tile.files[0]}: is {height} x {width}, too small to be split by position")
        if height >= width:
            cut = height * 3 // 4
            parts = (0, 0, cut, width), (cut, 0, height - cut, width)
        else:
            cut = width * 3 // 4
            parts = (0, 0, height, cut), (0, cut, height, width - cut)
        for name, box, kept in (("first", parts[0], first), ("last", parts[1], last)):
            kept.append(replace(tile, id=f"{tile.id}-{name}", open=_Windowed(tile, box), size=(box[2], box[3])))
    return first, last


class _Windowed:
    """Opens a rectangle of a tile. Its label is judged on the rows that were read."""

    def __init__(self, tile: Tile, box: tuple[int, int, int, int]) -> None:
        self.tile, self.box = tile, box

    def __call__(self) -> AbstractContextManager[OpenTile]:
        @contextmanager
        def opened() -> Iterator[OpenTile]:
            with self.tile.open() as whole:
                yield OpenTile(Window(whole.image, *self.box), Window(whole.ids, *self.box), whole.finish)

        return opened()
