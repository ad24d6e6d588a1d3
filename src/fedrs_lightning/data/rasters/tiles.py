"""Tiles: an image and its label, read row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from fedrs_lightning.data.rasters.class_tables import ClassTable, LabelDecoder, Palette
from fedrs_lightning.data.rasters.declared import RasterFile
from fedrs_lightning.data.rasters.faults import check_no_data, check_pair
from fedrs_lightning.data.rasters.rows import Bands, Mapped, Resampled, Rows, Stacked, Window, open_rows
from fedrs_lightning.errors import DataError

Mix = Callable[[np.ndarray], np.ndarray] | None
Box = tuple[int, int, int, int]


class Valid(Stacked):
    """1 where an image is data, 0 where its file declares that it is none; uint8 [1, n, W]."""

    def __init__(self, file: RasterFile, bands: Sequence[int]) -> None:
        super().__init__(file)
        self.file, self.chosen, self.bands, self.dtype = file, bands, 1, "uint8"

    def rows(self, start: int, stop: int) -> np.ndarray:
        """See `Rows.rows`."""
        return (~self.file.nothing(start, stop, self.chosen, every=False)).astype(np.uint8)[None]


class Labels(Stacked):
    """Class ids of a label file, uint8 [1, n, W]; 255 also where it declares no data."""

    def __init__(self, file: RasterFile, decoder: LabelDecoder) -> None:
        super().__init__(file)
        self.file, self.decoder, self.bands, self.dtype = file, decoder, 1, "uint8"
        self.chosen = range(3) if isinstance(decoder.table, Palette) else range(1)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """See `Rows.rows`."""
        pixels = self.file.rows(start, stop)[: len(self.chosen)]
        declared = self.file.declares(self.chosen)
        return self.decoder(pixels, self.file.nothing(start, stop, self.chosen, every=True) if declared else None)


@dataclass
class OpenTile:
    """An opened tile.

    Attributes:
        image: [C, n, W] rows.
        ids: uint8 [1, n, W] rows of class ids, 255 = ignore.
        valid: uint8 [1, n, W] rows, 0 where the file of the image declares no data; None where it declares none.
        example: an unknown colour or value among the rows that were read; empty for none.
        finish: judges the label after its last row, raising DataError; gives the number of unknown pixels.
    """

    image: Rows
    ids: Rows
    finish: Callable[[], int]
    valid: Rows | None = None
    example: Callable[[], str] = str


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


@dataclass(frozen=True)
class Reading:
    """How the files of a tile become rows of pixels and of class ids.

    Attributes:
        order: bands of the image file to keep.
        table: of the label file.
        hint: remedy for a label file that holds something else; empty for a common one.
        strict: what a wrong label holds, where a single unknown pixel is an error.
        mix: function of the native image rows; None for none.
        factor: resampling factor; 1 keeps the size.
        check: looks at headers, see `check_pair`.
        fourth_is_data: an alpha channel is none, but a band that is not used, such as the infrared of four bands.
    """

    order: tuple[int, ...]
    table: ClassTable
    hint: str = ""
    strict: str = ""
    mix: Mix = None
    factor: float = 1.0
    check: Callable[[Path, Rows, Path, Rows, int, ClassTable], None] = check_pair
    fourth_is_data: bool = False

    def tile(self, name: str, image_path: Path, label_path: Path) -> Tile:
        """The tile of an image and a label file; reads headers.

        Raises:
            DataError: wrong type, bands or sizes; names the file.
        """
        with open_rows(image_path) as image, open_rows(label_path, numbers=True) as label:
            self.check(image_path, image, label_path, label, max(self.order) + 1, self.table)
            check_no_data(label_path, label, self.table)
            size = self.size(image.height, image.width)
        return Tile(name, (image_path, label_path), partial(self._open, image_path, label_path), size)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Sides after resampling, rounded to the nearest pixel."""
        return round(height * self.factor), round(width * self.factor)

    def decoder(self, path: Path) -> LabelDecoder:
        """Decodes a label file, and counts what it did not know."""
        return LabelDecoder(self.table, path, self.hint, self.strict)

    def opened(self, image: Rows, ids: Rows, decoders: Sequence[LabelDecoder]) -> OpenTile:
        """Bands chosen, mixed and resampled: bicubic images, nearest ids."""
        valid: Rows | None = None
        if isinstance(image, RasterFile) and image.declares(self._spoken_for(image)):
            valid = Valid(image, self._spoken_for(image))
        image = Bands(image, self.order)
        if self.mix is not None:
            image = Mapped(image, self.mix, len(self.order), "uint8")
        if self.factor != 1.0:
            size = self.size(image.height, image.width)
            image, ids = Resampled(image, *size, nearest=False), Resampled(ids, *size, nearest=True)
            valid = None if valid is None else Resampled(valid, *size, nearest=True)
        example = (decoder.example for decoder in decoders if decoder.example)
        return OpenTile(image, ids, lambda: sum(own.finish() for own in decoders), valid, lambda: next(example, ""))

    def _spoken_for(self, image: RasterFile) -> tuple[int, ...]:
        """Bands that are data: those that are used, and for `fourth_is_data` all."""
        return tuple(range(image.bands)) if self.fourth_is_data else self.order

    @contextmanager
    def _open(self, image_path: Path, label_path: Path) -> Iterator[OpenTile]:
        with open_rows(image_path) as image, open_rows(label_path, numbers=True) as label:
            decoder = self.decoder(label_path)
            yield self.opened(image, Labels(label, decoder), [decoder])


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
        cut = max(height, width) * 3 // 4
        tall = (0, 0, cut, width), (cut, 0, height - cut, width)
        wide = (0, 0, height, cut), (0, cut, height, width - cut)
        for name, box, kept in zip(("first", "last"), tall if height >= width else wide, (first, last), strict=True):
            kept.append(replace(tile, id=f"{tile.id}-{name}", open=partial(_windowed, tile, box), size=box[2:]))
    return first, last


@contextmanager
def _windowed(tile: Tile, box: Box) -> Iterator[OpenTile]:
    """A rectangle of a tile. Its label is judged on the rows that were read."""
    with tile.open() as whole:
        valid = None if whole.valid is None else Window(whole.valid, *box)
        yield OpenTile(Window(whole.image, *box), Window(whole.ids, *box), whole.finish, valid, whole.example)
