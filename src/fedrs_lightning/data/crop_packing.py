"""Cut tiles into crops once, into memory-mapped arrays of images and masks.

A tile is read row by row and cut as it is read, so a large one never lies decoded in memory as a whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedrs_lightning.data.building import build, flush_folder, in_threads
from fedrs_lightning.data.crops import CropIndex, crop_index, owned
from fedrs_lightning.data.field_source import as_bits
from fedrs_lightning.data.packing import fingerprint
from fedrs_lightning.data.palettes import IGNORE
from fedrs_lightning.data.rasters import Buffered
from fedrs_lightning.data.tiles import Tile
from fedrs_lightning.errors import DataError, RunError
from fedrs_lightning.files import read_json

FORMAT = 1
THREADS = 4  # tiles at a time: bounds memory
READ = 32 * 2**20  # bytes

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
        images: [N, C, size, size] memory map; 0 beyond the tile's edge.
        masks: uint8 [N, size, size] memory map; 255 beyond the tile's edge.
        moments: int64 [N, 2, C], sum and sum of squares over the pixels inside the tile.
        pixels: int64 [N], number of those.
        counts: int64 [N, K + 1], pixels of each class in the mask, and ignored ones last (beyond the edge included).
        unknown: tile id to pixels whose colour or value was unknown, where there were any.
        digest: SHA-256 of images and masks.
    """

    def __init__(self, folder: Path) -> None:
        try:
            about = read_json(folder / "index.json")
            arrays = [np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in ("images", "masks")]
            tables = [np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("moments", "pixels", "counts")]
        except (RunError, OSError, ValueError) as error:
            raise DataError(f"{folder}: the pack is damaged ({error}); delete this folder, it is made again") from None
        self.folder, self.digest, self.unknown = folder, str(about["sha256"]), dict(about["unknown"])
        self.images, self.masks = arrays
        self.moments, self.pixels, self.counts = tables
        self.index = crop_index([(name, height, width) for name, height, width in about["tiles"]], about["size"], about["overlap"])
        shape = (len(self.index), about["bands"], about["size"], about["size"])
        if self.images.shape != shape or self.masks.shape != (shape[0], *shape[2:]) or any(len(table) != shape[0] for table in tables):
            raise DataError(f"{folder}: the pack is damaged (images {self.images.shape}); delete this folder, it is made again")
        self.image_bits, self.mask_bits = as_bits(self.images), as_bits(self.masks)

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
    return cache / f"{spec.name}-{spec.role}-{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]}"


def pack_crops(spec: CropSpec, cache: Path) -> Path:
    """Make the pack if it does not exist yet.

    Returns:
        Its folder.

    Raises:
        DataError: a tile cannot be decoded, or the cache cannot be written; names the file.
    """
    return build(crops_folder(spec, cache), spec.name, spec.source, lambda folder: _write(spec, folder))


def _write(spec: CropSpec, folder: Path) -> None:
    index = spec.index()
    count, side = len(index), spec.size
    first = np.searchsorted(index.tile, np.arange(len(spec.tiles) + 1))
    moments, pixels = np.zeros((count, 2, spec.bands), np.int64), np.zeros(count, np.int64)
    counts, unknown = np.zeros((count, spec.num_classes + 1), np.int64), [0] * len(spec.tiles)
    writers = [
        _Writer(folder / "images.npy", np.dtype(spec.dtype), (count, spec.bands, side, side)),
        _Writer(folder / "masks.npy", np.dtype(np.uint8), (count, side, side)),
    ]

    def fill(number: int) -> int:
        tile, crops = spec.tiles[number], range(int(first[number]), int(first[number + 1]))
        height, width = tile.size
        bottom, right = min(side, height), min(side, width)
        with tile.open() as opened:
            images, ids = Buffered(opened.image), Buffered(opened.ids)
            rows = columns = np.empty(0, np.int64)
            if spec.role == "test":
                row_starts, column_starts = np.unique(index.row[crops]), np.unique(index.column[crops])
                rows, columns = row_starts[owned(row_starts, height, side)], column_starts[owned(column_starts, width, side)]
            for crop in crops:
                row, column = int(index.row[crop]), int(index.column[crop])
                image = np.zeros((spec.bands, side, side), dtype=spec.dtype)
                mask = np.full((side, side), IGNORE, dtype=np.uint8)
                image[:, :bottom, :right] = images.rows(row, row + bottom)[:, :, column : column + right]
                mask[:bottom, :right] = ids.rows(row, row + bottom)[0, :, column : column + right]
                if spec.role == "test":
                    mine = (rows[row : row + bottom] == row)[:, None] & (columns[column : column + right] == column)
                    mask[:bottom, :right][~mine] = IGNORE
                wide = image[:, :bottom, :right].astype(np.int64)
                moments[crop, 0], moments[crop, 1] = wide.sum(axis=(1, 2)), np.square(wide).sum(axis=(1, 2))
                pixels[crop] = bottom * right
                found = np.bincount(mask.ravel(), minlength=256)
                counts[crop, :-1], counts[crop, -1] = found[: spec.num_classes], found[IGNORE]
                writers[0].put(crop, image)
                writers[1].put(crop, mask)
            unknown[number] = opened.finish()
        return 1

    try:
        in_threads(fill, range(len(spec.tiles)), THREADS, f"cutting {spec.name} ({spec.role})", len(spec.tiles))
    finally:
        for writer in writers:
            writer.close()
    for name, table in (("moments", moments), ("pixels", pixels), ("counts", counts)):
        np.save(folder / f"{name}.npy", table, allow_pickle=False)
    about = {
        "format": FORMAT,
        "role": spec.role,
        "size": side,
        "overlap": spec.overlap,
        "bands": spec.bands,
        "settings": spec.settings,
        "sha256": _digest(folder / "images.npy", folder / "masks.npy"),
        "tiles": [[tile.id, *tile.size] for tile in spec.tiles],
        "unknown": {tile.id: found for tile, found in zip(spec.tiles, unknown, strict=True) if found},
    }
    (folder / "index.json").write_text(json.dumps(about) + "\n", encoding="utf-8")
    flush_folder(folder)


class _Writer:
    """Entries of a .npy file in any order, by plain writes: dirty pages of a memory map would count as memory."""

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.offset = 0
        if shape[0]:
            array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
            self.offset = int(array.offset)
            del array
        else:
            np.save(path, np.empty(shape, dtype), allow_pickle=False)
        self.bytes = dtype.itemsize * int(np.prod(shape[1:]))
        self._handle = os.open(path, os.O_RDWR)

    def put(self, number: int, entry: np.ndarray) -> None:
        content, place = memoryview(entry.tobytes()), self.offset + number * self.bytes
        while content:
            written = os.pwrite(self._handle, content, place)
            content, place = content[written:], place + written

    def close(self) -> None:
        os.close(self._handle)


def _digest(*paths: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as handle:
            for block in iter(partial(handle.read, READ), b""):
                digest.update(block)
    return digest.hexdigest()


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()
