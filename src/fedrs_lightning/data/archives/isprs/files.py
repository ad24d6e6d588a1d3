"""Files of Potsdam and Vaihingen folders, and MMSegmentation's converted trees."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

from fedrs_lightning.data.archives.folders import entries
from fedrs_lightning.data.rasters.faults import check_pair
from fedrs_lightning.data.rasters.rows import Mosaic, open_rows, read_whole
from fedrs_lightning.data.rasters.tiles import Box, OpenTile, Reading, Tile
from fedrs_lightning.errors import DataError

ByTile = dict[str, list[Path]]


@dataclass
class ConvertedFiles:
    """Pieces of tiles in a converted tree.

    Attributes:
        pieces: tile id to {(row, column, height, width): (image, label)}.
        orphans: images without label and labels without image.
    """

    pieces: dict[str, dict[Box, tuple[Path, Path]]] = field(default_factory=lambda: defaultdict(dict))
    orphans: list[Path] = field(default_factory=list)


@dataclass
class ISPRSFiles:
    """Files of a Potsdam or Vaihingen folder.

    Attributes:
        folder: the root.
        images: kind of image, such as `IRRG`, to tile to its files; the first one is read.
        labels: `full` and `eroded` to tile to its files, in order of preference.
        converted: pieces of MMSegmentation's converted form, instead of the above.
        unknown: files named like tiles that the data set does not have.
        unclear: files in no telling folder whose content decided, with what they were taken for.
    """

    folder: Path
    images: dict[str, ByTile]
    labels: dict[str, ByTile] = field(default_factory=lambda: {kind: defaultdict(list) for kind in ("full", "eroded")})
    converted: ConvertedFiles | None = None
    unknown: list[Path] = field(default_factory=list)
    unclear: dict[str, str] = field(default_factory=dict)

    def labelled(self) -> set[str]:
        """Tiles that have a label of any kind."""
        return {tile for files in self.labels.values() for tile in files}


def converted_tree(top: Path, prefix: str, pattern: str) -> ConvertedFiles | None:
    """Files of `img_dir/{train,val}` and `ann_dir/{train,val}`, or None where there is no such tree.

    Args:
        top: root, or the folder above.
        prefix: of a tile id in a file name.
        pattern: of a tile id in a file name, such as `\\d+_\\d+`; the name goes on with _x0_y0_x1_y1.
    """
    kinds, found = ("img_dir", "ann_dir"), ConvertedFiles()
    place = next((base for base in (top, *entries(top)) if all((base / kind).is_dir() for kind in kinds)), None)
    if place is None:
        return None
    for part in ("train", "val"):
        listed = [entries(place / kind / part) if (place / kind / part).is_dir() else [] for kind in kinds]
        images, labels = ({path.stem: path for path in paths if path.suffix.lower() == ".png"} for paths in listed)
        found.orphans += [{**images, **labels}[stem] for stem in sorted(images.keys() ^ labels.keys())]
        for stem in sorted(images.keys() & labels.keys()):
            match = re.fullmatch(rf"{prefix}({pattern})_(\d+)_(\d+)_(\d+)_(\d+)", stem)
            if match is None:
                named = "is not named <tile>_<x0>_<y0>_<x1>_<y1>.png as the converter does"
                raise DataError(f"{images[stem]}: {named}; move it out of the folder")
            left, upper, right, lower = map(int, match.groups()[1:])
            found.pieces[match[1]][upper, left, lower - upper, right - left] = (images[stem], labels[stem])
    return found


def converted_tile(name: str, pieces: dict[Box, tuple[Path, Path]], reading: Reading) -> Tile:
    """A tile put together from the pieces of a converted tree; reads headers.

    Raises:
        DataError: a piece has another size than its name says, colours, or other bands; names the file.
    """
    for (_, _, height, width), (image_path, label_path) in pieces.items():
        with open_rows(image_path) as image, open_rows(label_path, numbers=True) as label:
            check_pair(image_path, image, label_path, label, 3, reading.table)
            if (image.height, image.width) != (height, width):
                there = f"is {image.height} x {image.width}, but its name says {height} x {width}"
                raise DataError(f"{image_path}: {there}; convert it again")
    size = reading.size(max(box[0] + box[2] for box in pieces), max(box[1] + box[3] for box in pieces))
    files = tuple(path for pair in pieces.values() for path in pair)
    return Tile(name, files, partial(_open_converted, name, pieces, reading), size)


@contextmanager
def _open_converted(name: str, pieces: dict[Box, tuple[Path, Path]], reading: Reading) -> Iterator[OpenTile]:
    cache = lru_cache(maxsize=max(8, 2 * round(len(pieces) ** 0.5) + 4))  # about two rows of pieces
    read = cache(lambda path: read_whole(path)[:3])
    decoders = {label: reading.decoder(label) for _, label in pieces.values()}
    decode = cache(lambda path: decoders[path](read_whole(path, numbers=True)))
    images = [(*box, partial(read, image)) for box, (image, _) in pieces.items()]
    labels = [(*box, partial(decode, label)) for box, (_, label) in pieces.items()]
    image, ids = (Mosaic(parts, bands, "uint8", f"tile {name}") for parts, bands in ((images, 3), (labels, 1)))
    yield reading.opened(image, ids, list(decoders.values()))
