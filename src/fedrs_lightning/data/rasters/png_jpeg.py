"""PNG and JPEG files. Bit depth and colours are those of the file, whatever the library turns them into."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from fedrs_lightning.data.rasters.declared import RasterFile, readable, refuse_size
from fedrs_lightning.data.rasters.geotiff import GeoTIFF, opened
from fedrs_lightning.errors import DataError

PNG = b"\x89PNG\r\n\x1a\n"
_KINDS: dict[bytes, Any] = {
    PNG: PngImageFile,
    b"\xff\xd8": JpegImageFile,
    b"II*\0": TiffImageFile,
    b"MM\0*": TiffImageFile,
}
_MODES = {"L": 1, "RGB": 3}  # of a JPEG
_BANDS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a PNG's colour type
_GREY, _PALETTE, _ALPHA = 0, 3, (4, 6)
_BROKEN = (OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, OverflowError, struct.error, zlib.error)


class Picture(RasterFile):
    """A PNG or JPEG, decoded as a whole at the first read.

    Args:
        path: of the file.
        numbers: see `open_rows`.

    Raises:
        DataError: see `open_picture`; another format or colour model; or too large to be decoded as a whole.
    """

    _colours: int | None

    def __init__(self, path: Path, numbers: bool) -> None:
        self.path = path
        self._pixels: np.ndarray | None = None
        self._key: tuple[int, ...] | None = None
        self._factor = 1
        with open_picture(path) as image:
            (self.width, self.height), self.mode = image.size, image.mode
            if isinstance(image, TiffImageFile):
                raise DataError(f"{path}: is a TIFF file with another ending; name it .tif")
            self._depth, self._colours = 8, None
            if isinstance(image, PngImageFile):
                self._depth, self._colours = _png_header(path)
            key = image.info.get("transparency")
        if self._colours is None:
            if self.mode not in _MODES:
                raise DataError(f"{path}: is of mode {self.mode}; save it as grey or RGB, or as a GeoTIFF")
            self.bands = _MODES[self.mode]
        else:
            self.bands = _BANDS[self._colours]
            self.alpha = self.bands - 1 if self._colours in _ALPHA else None
            self.coded = "palette" if self._colours == _PALETTE else ""
        self.dtype = "uint16" if self._depth == 16 else "uint8"
        if self._colours == _GREY and self._depth < 8 and not numbers:
            self._factor = 255 // (2**self._depth - 1)
        if self._colours in (0, 2) and key is not None:
            self._key = tuple(value * self._factor for value in ((key,) if isinstance(key, int) else key))
            self.no_data = float(self._key[0]) if len(self._key) == 1 else None
        size = self.height * np.dtype(self.dtype).itemsize
        refuse_size(path, self, size, "save it as a GeoTIFF, which is read in parts, or cut it into tiles")

    def rows(self, start: int, stop: int) -> np.ndarray:
        """See `Rows.rows`."""
        if self._pixels is None:
            self._pixels = self._decoded()
        return np.ascontiguousarray(self._pixels[:, start:stop])

    def nothing(self, start: int, stop: int, bands: Sequence[int], every: bool) -> np.ndarray:
        """See `RasterFile.nothing`. The transparent colour of a PNG is one of all its bands."""
        pixels, gone = self.rows(start, stop), np.zeros((stop - start, self.width), dtype=bool)
        if self._key is not None:
            gone |= (pixels == np.asarray(self._key)[:, None, None]).all(axis=0)
        if self.alpha is not None and self.alpha not in bands:
            gone |= pixels[self.alpha] == 0
        return gone

    def declares(self, bands: Sequence[int]) -> bool:
        """See `RasterFile.declares`."""
        return self._key is not None or super().declares(bands)

    def _decoded(self) -> np.ndarray:
        if self._depth == 16 and self._colours != _GREY:  # Pillow drops the low byte of these
            with opened(self.path, "PNG") as raster:
                return GeoTIFF(self.path, raster, True).rows(0, self.height)
        with open_picture(self.path) as image:
            pixels = np.asarray(image)
        if self._colours == _GREY and self._depth < 8:  # stretched by Pillow, but for one bit, which is a bool
            stretch = 1 if self._depth == 1 else 255 // (2**self._depth - 1)
            pixels = pixels.astype(np.uint8) // np.uint8(stretch) * np.uint8(self._factor)
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


@contextmanager
def open_picture(path: Path) -> Iterator[Image.Image]:
    """Open a PNG or JPEG with Pillow, whatever its size; a TIFF too, for messages about files with a wrong ending.

    Other formats are not tried: some of them start other programs.

    Raises:
        DataError: missing, unreadable, truncated or no picture; names the file and a remedy.
    """
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise DataError("PIL.ImageFile.LOAD_TRUNCATED_IMAGES is on, which hides broken images; switch it off")
    readable(path)
    try:
        with path.open("rb") as file:
            head = file.read(8)
            kind = next((kind for magic, kind in _KINDS.items() if head.startswith(magic)), None)
            if kind is None:
                raise DataError(f"{path}: not an image; replace it from the archive")
            file.seek(0)
            with kind(file, str(path)) as image:  # not Image.open, whose limit on sizes is not ours
                yield image
    except PermissionError:
        raise DataError(f"{path}: no permission to read it; run chmod u+r on it") from None
    except _BROKEN as error:
        raise DataError(f"{path}: cannot be decoded ({error}); replace it from the archive") from None


def _png_header(path: Path) -> tuple[int, int]:
    """Bits of a sample and colour type."""
    with path.open("rb") as file:
        head = file.read(26)
    depth, colours = head[24], head[25]
    if head[12:16] != b"IHDR" or colours not in _BANDS or depth not in (1, 2, 4, 8, 16):
        raise DataError(f"{path}: cannot be decoded (its header is damaged); replace it from the archive")
    return depth, colours
