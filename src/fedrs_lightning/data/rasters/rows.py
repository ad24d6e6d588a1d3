"""Rows of an image or label raster, read by window, so that a large tile never lies decoded in memory as a whole.

A reader gives [C, n, W] arrays for ascending ranges of rows. Readers are stacked: select bands, decode colours to ids,
resample, cut out a window; whatever is stacked, a row of the file is decoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from fedrs_lightning.data.rasters.declared import RasterFile, readable
from fedrs_lightning.data.rasters.geotiff import GeoTIFF, opened
from fedrs_lightning.data.rasters.png_jpeg import Picture
from fedrs_lightning.errors import DataError

GEOTIFF = (".tif", ".tiff")
PICTURE = (".png", ".jpg", ".jpeg")


class Rows(Protocol):
    """Rows of a raster; ranges are asked for with starts that do not decrease."""

    bands: int
    height: int
    width: int
    dtype: str

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows start to stop - 1, [bands, stop - start, width]."""
        ...


class Stacked:
    """Base of readers that change what another reader gives; the defaults keep its shape."""

    def __init__(self, inner: Rows) -> None:
        self.inner = inner
        self.bands, self.height, self.width, self.dtype = inner.bands, inner.height, inner.width, inner.dtype

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows start to stop - 1, [bands, stop - start, width]."""
        return self.inner.rows(start, stop)


class Buffered(Stacked):
    """Keeps the last range, so that overlapping ranges read each row once."""

    def __init__(self, inner: Rows) -> None:
        super().__init__(inner)
        self._start = self._stop = 0
        self._kept = np.empty((self.bands, 0, self.width), dtype=self.dtype)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """See `Rows.rows`."""
        if start < self._start:
            raise ValueError(f"rows from {start} asked for after rows from {self._start}")
        kept = self._kept[:, min(start, self._stop) - self._start :]
        first = max(start, self._stop)
        if stop > first:
            fresh = self.inner.rows(first, stop)
            kept = np.concatenate([kept, fresh], axis=1) if start < self._stop else fresh
        self._kept, self._start, self._stop = kept, start, max(stop, self._stop)
        return kept[:, : stop - start]


class Mapped(Stacked):
    """A function of a whole range, such as decoding colours to ids; it may change the number of bands and the type."""

    def __init__(self, inner: Rows, function: Callable[[np.ndarray], np.ndarray], bands: int, dtype: str) -> None:
        super().__init__(inner)
        self.function, self.bands, self.dtype = function, bands, dtype

    def rows(self, start: int, stop: int) -> np.ndarray:
        """See `Rows.rows`."""
        return self.function(self.inner.rows(start, stop))


class Bands(Mapped):
    """Some bands, in the given order (numbers from 0)."""

    def __init__(self, inner: Rows, order: Sequence[int]) -> None:
        chosen = list(order)
        super().__init__(inner, lambda pixels: pixels[chosen], len(chosen), inner.dtype)


class Window(Stacked):
    """A rectangle of another raster, as a raster of its own."""

    def __init__(self, inner: Rows, row: int, column: int, height: int, width: int) -> None:
        super().__init__(inner)
        self.row, self.column, self.height, self.width = row, column, height, width

    def rows(self, start: int, stop: int) -> np.ndarray:
        """See `Rows.rows`."""
        return self.inner.rows(self.row + start, self.row + stop)[:, :, self.column : self.column + self.width]


class Resampled(Stacked):
    """Another size: bicubic rounded and clipped to 0..255 for images, nearest for ids.

    Pixel corners stay aligned with image corners (`align_corners=False`). Bicubic is Keys' kernel with a = -0.5, as in
    GDAL and Pillow, with edge pixels repeated; it is for enlarging, as it does not smooth before it shrinks. A row is a
    function of its source rows alone, so strips join without a seam.
    """

    def __init__(self, inner: Rows, height: int, width: int, nearest: bool) -> None:
        super().__init__(Buffered(inner))
        if not nearest and inner.dtype != "uint8":
            raise ValueError(f"bicubic resampling is for uint8, not {inner.dtype}")
        self.height, self.width, self.nearest = height, width, nearest

    def rows(self, start: int, stop: int) -> np.ndarray:
        """See `Rows.rows`."""
        source = self.inner
        if self.nearest:
            row = (2 * np.arange(start, stop) + 1) * source.height // (2 * self.height)
            column = (2 * np.arange(self.width) + 1) * source.width // (2 * self.width)
            return source.rows(int(row[0]), int(row[-1]) + 1)[:, row - row[0]][:, :, column]
        taps, weights = _cubic(np.arange(start, stop), source.height, self.height)  # [n, 4]
        first, last = int(taps.min()), int(taps.max()) + 1
        strip = source.rows(first, last).astype(np.float32)
        tall = sum(strip[:, taps[:, tap] - first] * weights[:, tap, None] for tap in range(4))
        taps, weights = _cubic(np.arange(self.width), source.width, self.width)
        wide = sum(np.take(tall, taps[:, tap], axis=2) * weights[:, tap] for tap in range(4))
        return np.clip(np.rint(wide), 0, 255).astype(np.uint8)


def _cubic(places: np.ndarray, source: int, target: int) -> tuple[np.ndarray, np.ndarray]:
    """Source pixels and float32 weights of the four taps at some places of a resized side, both [n, 4]."""
    centre = (places + 0.5) * source / target - 0.5
    taps = np.floor(centre).astype(np.int64)[:, None] + np.arange(-1, 3)
    away = np.abs(centre[:, None] - taps)
    near = (1.5 * away - 2.5) * away * away + 1
    far = ((-0.5 * away + 2.5) * away - 4) * away + 2
    return np.clip(taps, 0, source - 1), np.where(away <= 1, near, np.where(away < 2, far, 0)).astype(np.float32)


class Mosaic:
    """A tile put together from overlapping pieces, each a small raster at (row, column).

    Args:
        pieces: (row, column, height, width, reader factory); later pieces win where they overlap, as they are equal.
        bands: of each piece.
        dtype: of each piece.
        name: for errors.
    """

    def __init__(
        self, pieces: Sequence[tuple[int, int, int, int, Callable[[], np.ndarray]]], bands: int, dtype: str, name: str
    ) -> None:
        self.pieces = sorted(pieces, key=lambda piece: piece[:2])
        self.bands, self.dtype, self.name = bands, dtype, name
        self.height = max(row + height for row, _, height, _, _ in pieces)
        self.width = max(column + width for _, column, _, width, _ in pieces)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """See `Rows.rows`."""
        result = np.zeros((self.bands, stop - start, self.width), dtype=self.dtype)
        covered = np.zeros((stop - start, self.width), dtype=bool)
        for row, column, height, width, read in self.pieces:
            first, last = max(row, start), min(row + height, stop)
            if first < last:
                part = read()
                result[:, first - start : last - start, column : column + width] = part[:, first - row : last - row]
                covered[first - start : last - start, column : column + width] = True
        if not covered.all():
            row, column = (int(value) for value in np.argwhere(~covered)[0])
            where = f"no piece covers row {start + row}, column {column}"
            raise DataError(f"{self.name}: {where}; the converted set is incomplete")
        return result


@contextmanager
def open_rows(path: Path, *, numbers: bool = False) -> Iterator[RasterFile]:
    """Open a GeoTIFF (by window) or a PNG or JPEG (decoded at the first read).

    Args:
        path: of the file. A palette gives its numbers.
        numbers: the pixels are class numbers: those of 1, 2 or 4 bits are read as they are stored. Otherwise they are
            brightnesses, and stretched to 8 bits.

    Raises:
        DataError: missing, unreadable, truncated or of an unknown kind; names the file and a remedy.
    """
    if path.suffix.lower() in GEOTIFF:
        readable(path)
        with opened(path, "GTiff") as raster:
            yield GeoTIFF(path, raster, numbers)
    elif path.suffix.lower() in PICTURE:
        yield Picture(path, numbers)
    else:
        kinds = ", ".join(GEOTIFF + PICTURE)
        raise DataError(f"{path}: rasters must be {kinds}; convert it or move it out of the folder")


def read_whole(path: Path, *, numbers: bool = False) -> np.ndarray:
    """All of a raster, [C, H, W], see `open_rows`."""
    with open_rows(path, numbers=numbers) as raster:
        return raster.rows(0, raster.height)
