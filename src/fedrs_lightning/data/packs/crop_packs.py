"""Cut tiles into crops once, into memory-mapped arrays of images and masks.

A tile is read row by row and cut as it is read, so a large one never lies decoded in memory as a whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedrs_lightning.data.archives.tiles import Tile
from fedrs_lightning.data.packs.crops import CropIndex, crop_index, owned
from fedrs_lightning.data.packs.fields import Field, moments_of
from fedrs_lightning.data.packs.folders import build
from fedrs_lightning.data.packs.residence import MappedArray
from fedrs_lightning.data.packs.samples import fingerprint
from fedrs_lightning.data.packs.shards import Plan, Put
from fedrs_lightning.data.rasters.class_tables import IGNORE
from fedrs_lightning.data.rasters.rows import Buffered
from fedrs_lightning.errors import DataError, RunError
from fedrs_lightning.files import read_json

FORMAT = 2
THREADS = 4  # tiles at a time: bounds memory

Role = Literal["train", "test"]


@dataclass(frozen=True)
class CropSpec:
    """What is packed, and how.

    Attributes:
        name: start of the pack folder's name.
        tiles: in order.
        folder: against which file paths are named.
        role: `train` keeps whole masks; `test` keeps of each mask the pixels that the crop owns, so that every pixel of
            a tile counts once.
        size: side of a crop in pixels.
        overlap: of neighbouring crops.
        bands: of an image.
        dtype: `uint8` or `uint16`.
        num_classes: ids 0 to num_classes - 1 occur in the masks, and 255.
        settings: everything that decides the decoded values, as plain JSON values.
    """

    name: str
    tiles: Sequence[Tile]
    folder: Path
    role: Role
    size: int
    overlap: int
    bands: int
    dtype: str
    num_classes: int
    settings: dict[str, Any]

    def index(self) -> CropIndex:
        """Where the crops lie."""
        return crop_index(((tile.id, *tile.size) for tile in self.tiles), self.size, self.overlap)

    def source(self) -> str:
        """Fingerprint of all files."""
        return fingerprint((_relative(path, self.folder), path) for tile in self.tiles for path in tile.files)


class CropPack:
    """Crops of a pack.

    Attributes:
        folder: of the pack.
        index: where the crops lie.
        image_rows, mask_rows: the arrays that batches are gathered from.
        images: [N, C, size, size] mapped; 0 beyond the tile's edge.
        masks: uint8 [N, size, size] mapped; 255 beyond the tile's edge.
        moments: int64 [N, 2, C], sum and sum of squares over the pixels inside the tile.
        pixels: int64 [N], number of those.
        counts: int64 [N, K + 1], pixels of each class in the mask, and ignored ones last (beyond the edge included).
        unknown: tile id to pixels whose colour or value was unknown, where there were any.
        digest: SHA-256 of images and masks.
    """

    def __init__(self, folder: Path) -> None:
        try:
            about = read_json(folder / "index.json")
            self.image_rows, self.mask_rows = (MappedArray(folder / f"{name}.npy") for name in ("images", "masks"))
            tables = [
                np.load(folder / f"{name}.npy", allow_pickle=False)
                for name in ("moments", "pixels", "counts", "unknown")
            ]
            bands = about["arrays"]["images"]["shape"][0]
        except (RunError, OSError, ValueError) as error:
            raise DataError(f"{folder}: the pack is damaged ({error}); delete this folder, it is made again") from None
        self.folder, self.digest = folder, str(about["sha256"])
        self.images, self.masks = self.image_rows.array, self.mask_rows.array
        self.moments, self.pixels, self.counts, unknown = tables
        self.index = crop_index(
            [(name, height, width) for name, height, width in about["tiles"]], about["size"], about["overlap"]
        )
        shape = (len(self.index), bands, about["size"], about["size"])
        if (
            self.images.shape != shape
            or self.masks.shape != (shape[0], *shape[2:])
            or any(len(table) != shape[0] for table in tables)
        ):
            raise DataError(
                f"{folder}: the pack is damaged (images {self.images.shape}); delete this folder, it is made again"
            )
        self.unknown = {self.index.tiles[self.index.tile[crop]]: int(unknown[crop]) for crop in np.flatnonzero(unknown)}

    def __len__(self) -> int:
        return len(self.index)


def crops_folder(spec: CropSpec, cache: Path) -> Path:
    """Folder of the pack that belongs to the source as it is now; it may not exist yet."""
    key = {
        "format": FORMAT,
        "source": spec.source(),
        "tiles": [[tile.id, *tile.size] for tile in spec.tiles],
        "crops": [spec.role, spec.size, spec.overlap, spec.bands, spec.dtype, spec.num_classes],
        "settings": spec.settings,
    }
    return (
        cache / f"{spec.name}-{spec.role}-{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]}"
    )


def pack_crops(spec: CropSpec, cache: Path) -> Path:
    """Make the pack if it does not exist yet.

    Returns:
        Its folder.

    Raises:
        DataError: a tile cannot be decoded, or the cache cannot be written; names the file.
    """
    return build(lambda: crops_folder(spec, cache), f"{spec.name} ({spec.role})", _plan(spec), THREADS)


def _plan(spec: CropSpec) -> Plan:
    """One shard a tile."""
    index = spec.index()
    bounds = np.searchsorted(index.tile, np.arange(len(spec.tiles) + 1)).tolist()

    def fill(first: int, stop: int, put: Put) -> dict[str, np.ndarray]:
        return _cut(spec, index, range(first, stop), put)

    return Plan(
        arrays={
            "images": Field((spec.bands, spec.size, spec.size), spec.dtype),
            "masks": Field((spec.size, spec.size), "uint8"),
        },
        tables={
            "moments": Field((2, spec.bands), "int64"),
            "pixels": Field((), "int64"),
            "counts": Field((spec.num_classes + 1,), "int64"),
            "unknown": Field((), "int64"),
        },
        bounds=bounds,
        fill=fill,
        about={
            "format": FORMAT,
            "role": spec.role,
            "size": spec.size,
            "overlap": spec.overlap,
            "settings": spec.settings,
            "tiles": [[tile.id, *tile.size] for tile in spec.tiles],
        },
    )


def _cut(spec: CropSpec, index: CropIndex, crops: range, put: Put) -> dict[str, np.ndarray]:
    """Cut one tile into its crops; gives their tables, with the tile's unknown pixels in the row of its first crop."""
    tile, side, count = spec.tiles[index.tile[crops[0]]], spec.size, len(crops)
    height, width = tile.size
    bottom, right = min(side, height), min(side, width)
    moments, pixels = np.zeros((count, 2, spec.bands), np.int64), np.full(count, bottom * right)
    counts, unknown = np.zeros((count, spec.num_classes + 1), np.int64), np.zeros(count, np.int64)
    with tile.open() as opened:
        images, ids = Buffered(opened.image), Buffered(opened.ids)
        rows = columns = np.empty(0, np.int64)
        if spec.role == "test":
            row_starts, column_starts = np.unique(index.row[crops]), np.unique(index.column[crops])
            rows, columns = (
                row_starts[owned(row_starts, height, side)],
                column_starts[owned(column_starts, width, side)],
            )
        for place, crop in enumerate(crops):
            row, column = int(index.row[crop]), int(index.column[crop])
            image = np.zeros((spec.bands, side, side), dtype=spec.dtype)
            mask = np.full((side, side), IGNORE, dtype=np.uint8)
            image[:, :bottom, :right] = images.rows(row, row + bottom)[:, :, column : column + right]
            mask[:bottom, :right] = ids.rows(row, row + bottom)[0, :, column : column + right]
            if spec.role == "test":
                mine = (rows[row : row + bottom] == row)[:, None] & (columns[column : column + right] == column)
                mask[:bottom, :right][~mine] = IGNORE
            moments[place] = moments_of(image[None, :, :bottom, :right])[0]
            found = np.bincount(mask.ravel(), minlength=256)
            counts[place, :-1], counts[place, -1] = found[: spec.num_classes], found[IGNORE]
            put("images", crop, image)
            put("masks", crop, mask)
        unknown[0] = opened.finish()
    return {"moments": moments, "pixels": pixels, "counts": counts, "unknown": unknown}


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()
