"""What a raster file says about its own pixels: which are no data, and which are no brightnesses."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedrs_lightning.errors import DataError

MOST_BYTES = 2**30  # that a picture, or one row of blocks of a GeoTIFF, takes in memory
MOST_PIXELS = 2**36


class RasterFile(ABC):
    """An opened file.

    Attributes:
        path: of the file.
        bands, height, width, dtype: see `Rows`.
        coded: what the numbers are where they are no brightnesses: `palette`, `CMYK`, `negative`; else empty.
        alpha: band that says where there is data, from 0; None for none.
        no_data: value that means no data; None for none.
        mask: whether the file holds a mask of its own beside the bands.
    """

    path: Path
    bands: int
    height: int
    width: int
    dtype: str
    coded: str = ""
    alpha: int | None = None
    no_data: float | None = None
    mask: bool = False

    @abstractmethod
    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows start to stop - 1, [bands, stop - start, width]."""

    @abstractmethod
    def nothing(self, start: int, stop: int, bands: Sequence[int], every: bool) -> np.ndarray:
        """Which pixels are no data by what the file declares, bool [stop - start, width].

        Args:
            start: first row.
            stop: row after the last.
            bands: that are used, from 0. An alpha channel among them is taken for a band like others, since GDAL calls
                the fourth of four bands alpha unless it is told otherwise.
            every: a pixel is no data where all of these bands hold the value, as in labels of colours; otherwise where
                any does, as its other bands say too little then.
        """

    def declares(self, bands: Sequence[int]) -> bool:
        """Whether `nothing` can find anything."""
        return self.no_data is not None or self.mask or (self.alpha is not None and self.alpha not in bands)


CODES = {
    "palette": "holds numbers of a palette, which are no brightnesses; save it as RGB",
    "CMYK": "holds CMYK inks, which are no brightnesses; convert it to RGB",
    "negative": "is a negative (0 is white); save it with 0 as black",
}


def code_fault(raster: object) -> str:
    """What is wrong with an image whose numbers are no brightnesses; empty where nothing is."""
    return CODES.get(getattr(raster, "coded", ""), "")


def refuse_size(path: Path, raster: RasterFile, bytes_of_a_column: int, remedy: str = "cut it into tiles") -> None:
    """Refuse a raster of which a part that is decoded at a time, or the number of pixels, is beyond all use.

    Raises:
        DataError: names the file, its size, and the remedy.
    """
    needed = raster.width * raster.bands * bytes_of_a_column
    if needed > MOST_BYTES or raster.width * raster.height > MOST_PIXELS:
        sides = f"{raster.width} x {raster.height} pixels of {raster.bands} band{'s' if raster.bands > 1 else ''}"
        amount = f"{needed / 2**30:.1f} GiB" if needed > MOST_BYTES else f"{raster.width * raster.height:,} pixels"
        most = "1 GiB" if needed > MOST_BYTES else f"{MOST_PIXELS:,}"
        raise DataError(f"{path}: {sides} are {amount}, more than the {most} that are decoded at a time; {remedy}")


def readable(path: Path) -> None:
    """Refuse what is no file, or may not be read.

    Raises:
        DataError: names the file and a remedy.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; unpack the archive again")
    if not os.access(path, os.R_OK):
        raise DataError(f"{path}: no permission to read it; run chmod u+r on it")
