"""GeoTIFFs, and the pictures that only GDAL decodes: the one place where GDAL opens a file.

GDAL guesses what a file is by its content, and some of its formats (VRT and other lists in XML) name further files and
addresses, which it then reads. Here only the named driver may look at a file, nothing beside the file is looked for,
and no format that this driver does not hold is tried.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedrs_lightning.data.rasters.declared import RasterFile, refuse_size
from fedrs_lightning.errors import DataError

CACHE_MB = 64  # of GDAL, whose own default is a twentieth of the machine's memory
ALONE = {
    "GDAL_CACHEMAX": CACHE_MB,
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",  # no .ovr, .msk, .tfw, .aux.xml, ...
    "GDAL_PAM_ENABLED": "NO",
    "GDAL_HTTP_MAX_RETRY": "0",
    "CPL_VSIL_CURL_ALLOWED_EXTENSIONS": ".none",
    "VRT_VIRTUAL_OVERVIEWS": "NO",
}
_INKS = {"cyan", "magenta", "yellow", "black"}
_BLACK_AND_WHITE = {0: (0, 0, 0), 1: (255, 255, 255)}


@contextmanager
def opened(path: Path, driver: Literal["GTiff", "PNG"]) -> Iterator[Any]:
    """The file as a rasterio data set.

    Raises:
        DataError: it is none of this driver, or damaged; names the file and a remedy.
    """
    import rasterio
    from rasterio.errors import NotGeoreferencedWarning, RasterioError

    warnings.filterwarnings("ignore", category=NotGeoreferencedWarning)  # georeference is not used
    try:
        with rasterio.Env(**ALONE), rasterio.open(path.absolute(), driver=driver, sharing=False) as raster:
            yield raster
    except RasterioError as error:
        kind = "GeoTIFF" if driver == "GTiff" else driver
        raise DataError(f"{path}: cannot be read as a {kind} ({short(error)}); replace it from the archive") from None


class GeoTIFF(RasterFile):
    """An opened GeoTIFF, or another raster that GDAL opened.

    Args:
        path: for messages.
        raster: of rasterio.
        numbers: see `open_rows`.
    """

    def __init__(self, path: Path, raster: Any, numbers: bool) -> None:
        self.path, self._raster = path, raster
        self.bands, self.height, self.width = raster.count, raster.height, raster.width
        kinds = set(raster.dtypes)
        self.dtype = kinds.pop() if len(kinds) == 1 else "mixed"
        names = [band.name for band in raster.colorinterp]
        self.alpha = names.index("alpha") if "alpha" in names else None
        self.no_data = None if raster.nodatavals[0] is None else float(raster.nodatavals[0])
        self.mask = any(kind.name == "per_dataset" for kind in raster.mask_flag_enums[0]) and self.alpha is None
        tags = raster.tags(ns="IMAGE_STRUCTURE")
        depth = int(raster.tags(1, ns="IMAGE_STRUCTURE").get("NBITS", 8))
        if tags.get("MINISWHITE") == "YES":
            self.coded = "negative"
        elif "palette" in names:  # GDAL gives one to every raster of one bit
            plain = depth == 1 and {key: value[:3] for key, value in raster.colormap(1).items()} == _BLACK_AND_WHITE
            self.coded = "" if plain else "palette"
        elif _INKS & set(names) or tags.get("SOURCE_COLOR_SPACE") == "CMYK":
            self.coded = "CMYK"
        whole = self.dtype == "uint8" and depth in (1, 2, 4) and not numbers and self.coded != "palette"
        self._factor = 255 // (2**depth - 1) if whole else 1
        item = 8 if self.dtype == "mixed" else np.dtype(self.dtype).itemsize
        refuse_size(path, self, item * raster.block_shapes[0][0])

    def rows(self, start: int, stop: int) -> np.ndarray:
        """See `Rows.rows`."""
        found = self._read(start, stop, None)
        return found if self._factor == 1 else found * np.uint8(self._factor)

    def nothing(self, start: int, stop: int, bands: Sequence[int], every: bool) -> np.ndarray:
        """See `RasterFile.nothing`."""
        gone = np.zeros((stop - start, self.width), dtype=bool)
        if self.no_data is not None:
            pixels = self._read(start, stop, [band + 1 for band in bands])
            same = np.isnan(pixels) if np.isnan(self.no_data) else pixels == self.no_data
            gone |= same.all(axis=0) if every else same.any(axis=0)
        if self.alpha is not None and self.alpha not in bands:
            gone |= self._read(start, stop, [self.alpha + 1])[0] == 0
        if self.mask:
            gone |= self._read(start, stop, [1], masks=True)[0] == 0
        return gone

    def _read(self, start: int, stop: int, bands: list[int] | None, masks: bool = False) -> np.ndarray:
        from rasterio.errors import RasterioError
        from rasterio.windows import Window

        window = Window(0, start, self.width, stop - start)
        try:
            return np.asarray((self._raster.read_masks if masks else self._raster.read)(bands, window=window))
        except RasterioError as error:
            remedy = "it is truncated or damaged, replace it from the archive"
            raise DataError(f"{self.path}: cannot be decoded at row {start} ({short(error)}); {remedy}") from None


def gdal_version() -> str:
    """Library that decodes GeoTIFFs, with its versions."""
    import rasterio

    return f"rasterio {rasterio.__version__}, gdal {rasterio.__gdal_version__}"


def short(error: Exception) -> str:
    """First line of a message."""
    return str(error).splitlines()[0].removesuffix(".") if str(error) else type(error).__name__
