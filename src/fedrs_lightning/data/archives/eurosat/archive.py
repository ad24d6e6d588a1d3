"""EuroSAT: land-cover classes of Sentinel-2 tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import PIL
from PIL import features

from fedrs_lightning.data.archives.archive import ImageArchive, ImageListing, Statistics
from fedrs_lightning.data.archives.eurosat import files as layout
from fedrs_lightning.data.archives.eurosat.lists import read_attributes, read_split_lists
from fedrs_lightning.data.archives.folders import synthetic_facts
from fedrs_lightning.data.packs.fields import Field
from fedrs_lightning.data.rasters.faults import has_end_mark
from fedrs_lightning.data.rasters.geotiff import gdal_version
from fedrs_lightning.data.rasters.png_jpeg import open_picture
from fedrs_lightning.data.rasters.rows import open_rows
from fedrs_lightning.errors import DataError, one_of

if TYPE_CHECKING:
    from fedrs_lightning.data.check.report import Report

RGB: Statistics = (0.344, 0.380, 0.408), (0.204, 0.137, 0.115)
"""Widely quoted statistics of the 27,000 JPEGs, in 0..1."""

ALL: Statistics = (
    (1354.41, 1118.24, 1042.93, 947.63, 1199.47, 1999.79, 2369.22, 2296.83, 732.08, 12.11, 1819.01, 1118.92, 2594.14),
    (245.72, 333.01, 395.09, 593.75, 566.42, 861.18, 1086.63, 1117.98, 404.92, 4.78, 1002.59, 761.30, 1231.59),
)
"""Widely quoted statistics of the 27,000 GeoTIFFs in the order of `BANDS`, reflectance x 10000 (as in TorchGeo)."""

PLAIN = 3.0  # grey levels; a tile that varies less shows nothing


class EuroSAT(ImageArchive):
    """Ten land-cover classes of 64 x 64 Sentinel-2 tiles at 10 m.

    Helber et al., 2019, doi:10.1109/JSTARS.2019.2918242. 27,000 tiles, MIT licence, contains Copernicus Sentinel data.
    Classes 0 to 9: AnnualCrop, Forest, HerbaceousVegetation, Highway, Industrial, Pasture, PermanentCrop, Residential,
    River, SeaLake. The folder is one that you downloaded; any layout with the ten class folders up to two levels below
    `root` is read. It is never written to.

    Args:
        root: folder of the unpacked archive.
        bands: `rgb` reads the 8-bit JPEGs; `all` reads the 13-band GeoTIFFs (uint16, top-of-atmosphere reflectance
            x 10000, order B01 to B08, B09, B10, B11, B12, B8A). The JPEGs are a contrast stretch of bands 4, 3, 2 and
            not the same values.
        lists: folder of published split lists (`eurosat-train.txt`, `-val.txt`, `-test.txt`, one file name a line), or
            the start of their paths, such as `lists/eurosat-spatial`; null where there are none.
        attributes: CSV with a column `file` (file name) and one column an attribute, for `ByAttribute`. Attributes
            `class_name` and `number` always exist.
    """

    name, stored_side, class_names = "eurosat", layout.SIDE, layout.CLASSES
    folders = ("root", "lists", "attributes")

    def __init__(
        self,
        root: str = ".",
        bands: Literal["rgb", "all"] = "rgb",
        lists: str | None = None,
        attributes: str | None = None,
    ) -> None:
        one_of("bands", bands, layout.SUFFIXES)
        self.root, self.bands, self.lists, self.attributes = root, bands, lists, attributes
        self.dtype, self.published = ("uint8", RGB) if bands == "rgb" else ("uint16", ALL)

    @property
    def band_names(self) -> tuple[str, ...]:
        """Colours for `rgb`, Sentinel-2's names for `all`."""
        return ("red", "green", "blue") if self.bands == "rgb" else layout.BANDS

    def settings(self) -> dict[str, Any]:
        """See `Archive.settings`."""
        jpeg = f"pillow {PIL.__version__}, jpeg {features.version('jpg')}"  # decoders differ by a few grey levels
        return super().settings() | {"decoder": jpeg if self.bands == "rgb" else gdal_version()}

    def listing(self) -> ImageListing:
        """See `ImageArchive.listing`; checks names and kinds of all files."""
        folder, files = layout.scan(self.root, self.bands)
        ids = [file.id for file in files]
        splits, facts = None, dict[str, Any](lists=self.lists)
        if self.lists is not None:
            splits, facts["lists"] = read_split_lists(self.lists, "eurosat", ids)
        attributes = {"number": np.asarray([int(file.path.stem.rpartition("_")[2]) for file in files])}
        if self.attributes is not None:
            attributes |= read_attributes(Path(self.attributes).expanduser(), ids)
        facts["synthetic"] = synthetic_facts(folder, layout.LEVELS)
        return replace(listed(folder, files), splits=splits, attributes=attributes, facts=facts)

    def _check(self, report: Report, sample: int | None, seed: int) -> None:
        from fedrs_lightning.data.archives.eurosat.check import check_eurosat

        check_eurosat(report, self, sample, seed)

    def fields(self, listing: ImageListing) -> dict[str, Field]:
        """Known without decoding."""
        return {"image": Field((len(self.band_names), layout.SIDE, layout.SIDE), self.dtype)}

    def check_header(self, path: Path) -> bool:
        """Kind, size, and whether the file is whole."""
        if self.bands == "all":
            with open_rows(path) as raster:
                layout.check_geotiff(raster, path)
                raster.rows(layout.SIDE - 1, layout.SIDE)  # fails where the end of the file is missing
            return True
        with open_picture(path) as image:
            layout.check_jpeg(image, path)
        if not has_end_mark(path, b"\xff\xd9"):
            raise DataError(f"{path}: is truncated (no end-of-image mark); replace it from the archive")
        return True

    def decode(self, path: Path) -> np.ndarray:
        """See `ImageArchive.decode`."""
        return layout.decode_rgb(path) if self.bands == "rgb" else layout.decode_all(path)

    def is_plain(self, pixels: np.ndarray) -> bool:
        """Tiles of open water are nearly plain, and equal ones do occur among the JPEGs."""
        return self.bands == "rgb" and bool(pixels.std(axis=(1, 2)).max() < PLAIN)


def listed(folder: Path, files: Sequence[layout.SourceFile]) -> ImageListing:
    """Found images, without split and attributes."""
    labels = np.asarray([file.label for file in files], dtype=np.int64)
    return ImageListing(folder, [file.id for file in files], labels, [file.path for file in files])
