"""Rows of an image or label raster, read by window, so that a large tile never lies decoded in memory as a whole.

A reader gives [C, n, W] arrays for ascending ranges of rows. Readers are stacked: select bands, decode colours to ids,
resample, cut out a window; whatever is stacked, a row of the file is decoded once.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from fedrs_lightning.errors import DataError

GEOTIFF = (".tif", ".tiff")
PICTURE = (".png", ".jpg", ".jpeg")
CACHE_MB = 64  # of GDAL, whose own default is a twentieth of the machine's memory
_MODES = {"L": "uint8", "P": "uint8", "RGB": "uint8", "RGBA": "uint8", "LA": "uint8", "I;16": "uint16"}


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
def open_rows(path: Path) -> Iterator[Rows]:
    """Open a GeoTIFF (by window) or a PNG or JPEG (decoded at the first read). A palette PNG gives its index array.

    Raises:
        DataError: missing, unreadable, truncated or of an unknown kind; names the file and a remedy.
    """
    if path.suffix.lower() in GEOTIFF:
        with _geotiff(path) as rows:
            yield rows
    elif path.suffix.lower() in PICTURE:
        yield _Picture(path)
    else:
        kinds = ", ".join(GEOTIFF + PICTURE)
        raise DataError(f"{path}: rasters must be {kinds}; convert it or move it out of the folder")


def read_whole(path: Path) -> np.ndarray:
    """All of a raster, [C, H, W]."""
    with open_rows(path) as raster:
        return raster.rows(0, raster.height)


@contextmanager
def _geotiff(path: Path) -> Iterator[Rows]:
    import rasterio
    from rasterio.errors import NotGeoreferencedWarning, RasterioError

    _readable(path)
    warnings.filterwarnings("ignore", category=NotGeoreferencedWarning)  # georeference is not used
    try:
        with rasterio.Env(GDAL_CACHEMAX=CACHE_MB), rasterio.open(path) as raster:
            yield _GeoTIFF(path, raster)
    except RasterioError as error:
        raise DataError(f"{path}: cannot be read as a GeoTIFF ({_short(error)}); replace it from the archive") from None


class _GeoTIFF:
    def __init__(self, path: Path, raster: object) -> None:
        self.path, self._raster = path, raster
        self.bands, self.height, self.width = raster.count, raster.height, raster.width  # type: ignore[attr-defined]
        kinds = set(raster.dtypes)  # type: ignore[attr-defined]
        self.dtype = kinds.pop() if len(kinds) == 1 else "mixed"

    def rows(self, start: int, stop: int) -> np.ndarray:
        from rasterio.errors import RasterioError
        from rasterio.windows import Window as RasterWindow

        try:
            return np.asarray(self._raster.read(window=RasterWindow(0, start, self.width, stop - start)))  # type: ignore[attr-defined]
        except RasterioError as error:
            remedy = "it is truncated or damaged, replace it from the archive"
            raise DataError(f"{self.path}: cannot be decoded at row {start} ({_short(error)}); {remedy}") from None


class _Picture:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._pixels: np.ndarray | None = None
        with open_picture(self.path) as image:
            self.width, self.height = image.size
            self.mode = image.mode
        if self.mode not in _MODES:
            raise DataError(f"{path}: is of mode {self.mode}; save it as grey, palette, RGB or RGBA, or as a GeoTIFF")
        self.bands, self.dtype = Image.getmodebands(self.mode), _MODES[self.mode]

    def rows(self, start: int, stop: int) -> np.ndarray:
        if self._pixels is None:
            with open_picture(self.path) as image:
                pixels = np.asarray(image)
            self._pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(self._pixels[:, start:stop])


@contextmanager
def open_picture(path: Path) -> Iterator[Image.Image]:
    """Open a PNG or JPEG with Pillow.

    Raises:
        DataError: missing, unreadable, truncated or no picture; names the file and a remedy.
    """
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise DataError("PIL.ImageFile.LOAD_TRUNCATED_IMAGES is on, which hides broken images; switch it off")
    _readable(path)
    try:
        with Image.open(path) as image:
            yield image
    except UnidentifiedImageError:
        raise DataError(f"{path}: not an image; replace it from the archive") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: cannot be decoded ({error}); replace it from the archive") from None


def gdal_version() -> str:
    """Library that decodes GeoTIFFs, with its versions."""
    import rasterio

    return f"rasterio {rasterio.__version__}, gdal {rasterio.__gdal_version__}"


def _readable(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"{path}: no such file; unpack the archive again")
    if not os.access(path, os.R_OK):
        raise DataError(f"{path}: no permission to read it; run chmod u+r on it")


def _short(error: Exception) -> str:
    return str(error).splitlines()[0].removesuffix(".") if str(error) else type(error).__name__
