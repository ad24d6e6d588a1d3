"""Which pixels of your own images are used, and to what size they are brought."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from fedrs_lightning.data.rasters.declared import code_fault
from fedrs_lightning.data.rasters.rows import Rows, open_rows
from fedrs_lightning.errors import DataError

RESIZE = "bilinear on float32, antialiased when it shrinks, align_corners=False, rounded to the pixel type"


@dataclass(frozen=True)
class ImageFormat:
    """What every image must be like.

    Attributes:
        channels: number of bands that are used.
        bands: which ones, from 1; None takes an image's own, which must be as many.
        pixel_type: `uint8` or `uint16`.
        image_size: side to which images are resized; None needs images of one size.
    """

    channels: int
    bands: tuple[int, ...] | None
    pixel_type: str
    image_size: int | None

    def size(self, first: Path) -> tuple[int, int]:
        """Height and width of all images, by the first one where they are not resized.

        Raises:
            DataError: it cannot be read.
        """
        if self.image_size is not None:
            return self.image_size, self.image_size
        with open_rows(first) as raster:
            return raster.height, raster.width

    def decode(self, path: Path, size: tuple[int, int]) -> np.ndarray:
        """The bands that are used, [C, H, W]; masked, with 0, where the file declares no data.

        Raises:
            DataError: the file cannot be decoded, or has other bands, pixels or another size; names it.
        """
        with open_rows(path) as raster:
            self.judge(raster, path, size)
            order = self._order(raster)
            pixels = raster.rows(0, raster.height)[list(order)]
            gone = raster.nothing(0, raster.height, order, every=False) if raster.declares(order) else None
        if gone is not None and gone.any():
            return _with_gaps(pixels, gone, size)
        return pixels if pixels.shape[1:] == size else resized(pixels, size)

    def _order(self, raster: Rows) -> tuple[int, ...]:
        return tuple(range(raster.bands)) if self.bands is None else tuple(number - 1 for number in self.bands)

    def judge(self, raster: Rows, path: Path, size: tuple[int, int]) -> None:
        """Compare an opened image's header with what every image must be like.

        Raises:
            DataError: it has other bands, pixels or another size; names the file.
        """
        if coded := code_fault(raster):
            raise DataError(f"{path}: {coded}")
        if raster.dtype not in ("uint8", "uint16"):
            convert = "convert it to an 8- or 16-bit integer type (gdal_translate -ot UInt16 -scale)"
            raise DataError(f"{path}: pixels are {raster.dtype}, not {self.pixel_type}; {convert}")
        if raster.dtype != self.pixel_type:
            kind = f"pixels are {raster.dtype}, not {self.pixel_type}"
            raise DataError(f"{path}: {kind}; set pixel_type: {raster.dtype}, or convert the file")
        there = f"{path}: has {raster.bands} bands"
        if self.bands is None and raster.bands != self.channels:
            raise DataError(f"{there}, not in_channels={self.channels}; say with bands which are wanted")
        if self.bands is not None and raster.bands < max(self.bands):
            raise DataError(f"{there}, so there is no band {max(self.bands)}; correct bands")
        if self.image_size is None and (raster.height, raster.width) != size:
            sizes = f"is {raster.width} x {raster.height} pixels, the first image is {size[1]} x {size[0]}"
            raise DataError(f"{path}: {sizes}; correct the odd one, or set image_size to resize all")


def _with_gaps(pixels: np.ndarray, gone: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """As `resized`, from the pixels that are there alone; masked where fewer than half of those it is made of are."""
    there = (~gone).astype(np.float32)
    if pixels.shape[1:] != size:
        wide = torch.from_numpy(np.concatenate([pixels * there, there[None]]).astype(np.float32))[None]
        found = F.interpolate(wide, size=size, mode="bilinear", align_corners=False, antialias=True)[0].numpy()
        gone, limits = found[-1] < 0.5, np.iinfo(pixels.dtype)
        values = np.rint(found[:-1] / np.where(gone, 1, found[-1]))
        pixels = np.clip(values, limits.min, limits.max).astype(pixels.dtype)
    masked = np.ma.MaskedArray(pixels, np.broadcast_to(gone, pixels.shape), fill_value=0)
    masked.data[masked.mask] = 0
    return masked


def resized(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """[C, h, w] to [C, *size], see `RESIZE`."""
    wide = torch.from_numpy(pixels.astype(np.float32))[None]
    result = F.interpolate(wide, size=size, mode="bilinear", align_corners=False, antialias=True)[0].round()
    limits = np.iinfo(pixels.dtype)
    return result.clamp(limits.min, limits.max).numpy().astype(pixels.dtype)
