"""What Potsdam and Vaihingen share: class names, tiles from image and label files, and MMSegmentation's converted
trees.
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np

from fedrs_lightning.data.archives.folders import entries
from fedrs_lightning.data.rasters.class_tables import (
    ISPRS,
    ISPRS_CONVERTED,
    ClassTable,
    LabelDecoder,
    without,
    without_value,
)
from fedrs_lightning.data.rasters.rows import Bands, Mapped, Mosaic, Resampled, Rows, open_rows, read_whole
from fedrs_lightning.data.rasters.tiles import OpenTile, Tile
from fedrs_lightning.errors import DataError

Clutter = Literal["ignore", "class"]
LabelSet = Literal["auto", "full", "eroded"]
Converted = dict[str, dict[tuple[int, int, int, int], tuple[Path, Path]]]
SIX = ISPRS.names
FIVE = ISPRS.names[:-1]
LABEL_HINT = "this is a photo, not a label, or a label blended over one; are image and label interchanged?"


def palette(clutter: Clutter) -> ClassTable:
    """Colours of a label file; clutter is 255 unless it is a class."""
    return ISPRS if clutter == "class" else without(ISPRS, "clutter")


def index_values(clutter: Clutter) -> ClassTable:
    """Values of a converted index PNG."""
    return ISPRS_CONVERTED if clutter == "class" else without_value(ISPRS_CONVERTED, "clutter")


@dataclass(frozen=True)
class TileFiles:
    """How a tile of one image and one label file is read.

    Attributes:
        id: of the tile.
        image: file.
        label: file.
        order: bands of the image file to keep.
        table: class table of the label file.
        mix: function of the native image rows, with its number of bands; None for none.
        factor: resampling factor; 1 keeps the size.
        hint: remedy for a label file that holds something else.
    """

    id: str
    image: Path
    label: Path
    order: tuple[int, ...]
    table: ClassTable
    mix: Callable[[np.ndarray], np.ndarray] | None = None
    factor: float = 1.0
    hint: str = LABEL_HINT

    def tile(self) -> Tile:
        """The tile; reads headers.

        Raises:
            DataError: wrong type, bands or sizes; names the file.
        """
        with open_rows(self.image) as image, open_rows(self.label) as label:
            check_image(self.image, image, max(self.order) + 1, len(self.order))
            check_colour_label(self.label, label)
            check_sizes(self.image, image, self.label, label)
            size = resampled_size(image.height, image.width, self.factor)
        return Tile(self.id, (self.image, self.label), self.open, size)

    @contextmanager
    def open(self) -> Iterator[OpenTile]:
        """See `Tile.open`."""
        with ExitStack() as stack:
            image: Rows = Bands(stack.enter_context(open_rows(self.image)), self.order)
            if self.mix is not None:
                image = Mapped(image, self.mix, len(self.order), "uint8")
            decoder = LabelDecoder(self.table, self.label, self.hint)
            ids: Rows = Mapped(Bands(stack.enter_context(open_rows(self.label)), (0, 1, 2)), decoder, 1, "uint8")
            yield OpenTile(*resampled(image, ids, self.factor), partial(_finish, decoder))


def _finish(*decoders: LabelDecoder) -> int:
    for decoder in decoders:
        decoder.finish()
    return sum(decoder.unknown for decoder in decoders)


def resampled_size(height: int, width: int, factor: float) -> tuple[int, int]:
    """Sides after resampling, rounded to the nearest pixel."""
    return round(height * factor), round(width * factor)


def resampled(image: Rows, ids: Rows, factor: float) -> tuple[Rows, Rows]:
    """Bicubic image and nearest ids."""
    if factor == 1.0:
        return image, ids
    size = resampled_size(image.height, image.width, factor)
    return Resampled(image, *size, nearest=False), Resampled(ids, *size, nearest=True)


def check_image(path: Path, raster: Rows, needed: int, wanted: int) -> None:
    """Refuse an image of another type or with too few bands; warn once about an alpha channel.

    Args:
        path: of the image.
        raster: opened.
        needed: bands that must be there.
        wanted: bands of the delivered file.
    """
    if raster.dtype != "uint8":
        raise DataError(
            f"{path}: holds {raster.dtype} pixels, a re-export; the delivered tiles are uint8, replace it from the "
            "archive"
        )
    if raster.bands < needed:
        raise DataError(f"{path}: has {raster.bands} bands, {needed} are needed; replace it from the archive")
    if raster.bands > max(needed, wanted):
        _warn_of_alpha(
            f"{path}: has {raster.bands} bands; the first {max(needed, wanted)} are used (a re-saved copy with alpha?)"
        )


def check_colour_label(path: Path, raster: Rows) -> None:
    """Refuse a label that holds no colours; warn once about an alpha channel."""
    if raster.dtype != "uint8":
        raise DataError(
            f"{path}: holds {raster.dtype} pixels; the delivered labels are uint8 colours, replace it from the archive"
        )
    if raster.bands < 3:
        raise DataError(
            f"{path}: has {raster.bands} band, so it holds class numbers where colours are expected; replace it by "
            "the delivered label"
        )
    if raster.bands > 3:
        _warn_of_alpha(f"{path}: has {raster.bands} bands; the first 3 are used (a re-saved copy with alpha?)")


def check_sizes(image_path: Path, image: Rows, label_path: Path, label: Rows) -> None:
    """Refuse a label of another size than its image."""
    if (image.height, image.width) != (label.height, label.width):
        raise DataError(
            f"{label_path}: is {label.height} x {label.width}, but its image {image_path.name} is {image.height} x "
            f"{image.width}; "
            "replace both from the archive"
        )


_warned: list[str] = []


def _warn_of_alpha(message: str) -> None:
    """Once a process is enough: re-saved copies come in whole folders."""
    if not _warned:
        _warned.append(message)
        warnings.warn(message, stacklevel=2)


@dataclass
class ConvertedFiles:
    """Pieces of tiles in a converted tree.

    Attributes:
        pieces: tile id to {(row, column, height, width): (image, label)}.
        orphans: images without label and labels without image.
    """

    pieces: Converted = field(default_factory=dict)
    orphans: list[Path] = field(default_factory=list)


def refuse_orphans(converted: ConvertedFiles) -> None:
    """Raise DataError for the first piece without counterpart."""
    for path in converted.orphans:
        raise DataError(
            f"{path}: has no counterpart in {'ann_dir' if 'img_dir' in path.parts else 'img_dir'}; convert it again"
        )


AS_CONVERTED = {
    "variant": "converted by MMSegmentation",
    "labels": "as converted",
    "bands": "as converted, not checked",
}


def converted_tree(top: Path, pattern: str) -> ConvertedFiles | None:
    """Files of `img_dir/{train,val}` and `ann_dir/{train,val}`, or None where there is no such tree.

    Args:
        top: root, or the folder above.
        pattern: of a tile id in a file name, such as `\\d+_\\d+`; the name goes on with _x0_y0_x1_y1.
    """
    place = next(
        (folder for folder in (top, *entries(top)) if (folder / "img_dir").is_dir() and (folder / "ann_dir").is_dir()),
        None,
    )
    if place is None:
        return None
    found = ConvertedFiles()
    pieces: Converted = defaultdict(dict)
    for part in ("train", "val"):
        both: list[dict[str, Path]] = []
        for kind in ("img_dir", "ann_dir"):
            folder = place / kind / part
            both.append(
                {path.stem: path for path in entries(folder) if path.suffix.lower() == ".png"}
                if folder.is_dir()
                else {}
            )
        images, labels = both
        found.orphans += [{**images, **labels}[stem] for stem in sorted(images.keys() ^ labels.keys())]
        for stem in sorted(images.keys() & labels.keys()):
            match = re.fullmatch(rf"({pattern})_(\d+)_(\d+)_(\d+)_(\d+)", stem)
            if match is None:
                raise DataError(
                    f"{images[stem]}: is not named <tile>_<x0>_<y0>_<x1>_<y1>.png as the converter does; move it out "
                    "of the folder"
                )
            left, upper, right, lower = (int(match[number]) for number in range(2, 6))
            pieces[match[1]][upper, left, lower - upper, right - left] = (images[stem], labels[stem])
    found.pieces = dict(pieces)
    return found


@dataclass(frozen=True)
class ConvertedTile:
    """How a tile is put together from the pieces of a converted tree.

    Attributes:
        id: of the tile.
        pieces: (row, column, height, width), image file, label file.
        table: values of the index PNGs.
        channels: of an image.
        factor: resampling factor.
        mix: function of the native image rows; None for none.
        order: bands to keep.
    """

    id: str
    pieces: Sequence[tuple[tuple[int, int, int, int], Path, Path]]
    table: ClassTable
    order: tuple[int, ...] = (0, 1, 2)
    factor: float = 1.0
    mix: Callable[[np.ndarray], np.ndarray] | None = None

    def tile(self) -> Tile:
        """The tile; reads headers.

        Raises:
            DataError: a piece has another size than its name says, colours, or other bands; names the file.
        """
        for (_, _, height, width), image_path, label_path in self.pieces:
            with open_rows(image_path) as image, open_rows(label_path) as label:
                check_image(image_path, image, 3, 3)
                if label.bands != 1:
                    raise DataError(
                        f"{label_path}: has {label.bands} bands; a converted label holds class numbers 0 to 6, "
                        "convert it again"
                    )
                for path, raster in ((image_path, image), (label_path, label)):
                    if (raster.height, raster.width) != (height, width):
                        raise DataError(
                            f"{path}: is {raster.height} x {raster.width}, but its name says {height} x {width}; "
                            "convert it again"
                        )
        rows = max(row + height for (row, _, height, _), _, _ in self.pieces)
        columns = max(column + width for (_, column, _, width), _, _ in self.pieces)
        files = tuple(path for _, image, label in self.pieces for path in (image, label))
        return Tile(self.id, files, self.open, resampled_size(rows, columns, self.factor))

    @contextmanager
    def open(self) -> Iterator[OpenTile]:
        """See `Tile.open`."""
        cache = lru_cache(maxsize=max(8, 2 * round(len(self.pieces) ** 0.5) + 4))  # about two rows of pieces
        read = cache(lambda path: read_whole(path)[:3])
        decoders = [
            LabelDecoder(self.table, label, "not a converted index PNG (0 boundary, 1 to 6)")
            for _, _, label in self.pieces
        ]
        decode = cache(lambda number: decoders[number](read_whole(self.pieces[number][2])))
        image: Rows = Mosaic(
            [(*box, partial(read, path)) for box, path, _ in self.pieces], 3, "uint8", f"tile {self.id}"
        )
        image = Bands(image, self.order)
        if self.mix is not None:
            image = Mapped(image, self.mix, len(self.order), "uint8")
        ids: Rows = Mosaic(
            [(*box, partial(decode, number)) for number, (box, _, _) in enumerate(self.pieces)],
            1,
            "uint8",
            f"tile {self.id}",
        )
        yield OpenTile(*resampled(image, ids, self.factor), partial(_finish, *decoders))
