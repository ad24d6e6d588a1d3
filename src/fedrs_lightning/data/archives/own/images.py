"""Your own labelled images."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import PIL

from fedrs_lightning.data.archives.archive import ImageArchive, ImageListing, Statistics
from fedrs_lightning.data.archives.folders import synthetic_facts
from fedrs_lightning.data.archives.own.image_format import RESIZE, ImageFormat
from fedrs_lightning.data.archives.own.listing import scan_folders, scan_table
from fedrs_lightning.data.packs.fields import Field
from fedrs_lightning.data.packs.index import SIDE
from fedrs_lightning.data.rasters.geotiff import gdal_version
from fedrs_lightning.data.rasters.rows import open_rows
from fedrs_lightning.errors import ConfigError, one_of


class OwnImages(ImageArchive):
    """Your own images (GeoTIFF, PNG or JPEG) with one class each, or several (`multi_label`).

    Without `table`, `root` holds one folder a class. A table has a row for each image, with columns `path` and `label`
    (or `labels`), and, where wanted, `client` and `split` (`train`, `validation`, `test`); further columns are
    attributes for the partition `ByAttribute`. Georeference is not used. The data are never written to. Pixels that an
    image declares as no data (a value, a mask inside the file, an alpha channel that is not among the bands) are stored
    as 0 and count in no statistics.

    Args:
        root: folder of the images; relative paths, also that of the table, start from it.
        classes: names of the classes, in the order of class numbers.
        in_channels: bands of an image that are used.
        table: CSV or Parquet file; null where `root` holds one folder a class.
        multi_label: an image may have any number of classes, for MultilabelTask. Needs a table.
        separator: between the classes of one cell of the table; in Parquet the column may hold lists instead.
        bands: which bands, from 1 as in GIS software, in the network's order; null takes an image's own, which must be
            `in_channels`.
        band_names: what they show, such as `[red, green, blue]`; for tables and pictures.
        pixel_type: `uint8` or `uint16`.
        scale: factor on stored pixels before normalisation; null is 1/255 for `uint8`, and 1 for `uint16`.
        image_size: side in pixels to which every image is resized (bilinear, antialiased, proportions are not kept)
            when it is packed; null needs images of one size.
        mean: of each band after `scale`, with `std`, for `normalise: published`.
        std: deviation of each band after `scale`.
    """

    name, gaps = "folder", True

    def __init__(
        self,
        root: str = ".",
        *,
        classes: list[str],
        in_channels: int,
        table: str | None = None,
        multi_label: bool = False,
        separator: str = ";",
        bands: list[int] | None = None,
        band_names: list[str] | None = None,
        pixel_type: Literal["uint8", "uint16"] = "uint8",
        scale: float | None = None,
        image_size: int | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        one_of("pixel_type", pixel_type, ("uint8", "uint16"))
        if not classes or len(set(classes)) != len(classes) or not all(name == name.strip() != "" for name in classes):
            raise ConfigError(f"classes must be distinct names without spaces around them, got {classes}")
        if in_channels < 1 or (bands is not None and (len(bands) != in_channels or min(bands) < 1)):
            raise ConfigError(f"bands must name in_channels={in_channels} bands, numbered from 1, got {bands}")
        if band_names is not None and (len(band_names) != in_channels or len(set(band_names)) != in_channels):
            raise ConfigError(f"band_names must be in_channels={in_channels} distinct names, got {band_names}")
        if multi_label and table is None:
            raise ConfigError("multi_label needs a table, as an image lies in one class folder only")
        if not separator.strip():
            raise ConfigError("separator must be a visible character or word, as class names may hold spaces")
        if (mean is None) != (std is None):
            raise ConfigError("mean and std belong together; set both or neither")
        if mean is not None and std is not None and (not len(mean) == len(std) == in_channels or min(std) <= 0):
            needed = f"mean and std need in_channels={in_channels} numbers, and std above 0"
            raise ConfigError(f"{needed}, got {mean} and {std}")
        if mean is not None and std is not None and not all(map(math.isfinite, (*mean, *std))):
            raise ConfigError(f"mean and std must be finite, got {mean} and {std}")
        if image_size is not None and not 1 <= image_size <= SIDE:
            raise ConfigError(f"image_size must be 1 to {SIDE} pixels or null, got {image_size}")
        if scale is not None and not 0 < scale < math.inf:
            raise ConfigError(f"scale must be above 0 and finite, or null, got {scale}")
        self.root, self.table, self.multi_label, self.separator = root, table, multi_label, separator
        self.bands, self.dtype, self.image_size = None if bands is None else tuple(bands), pixel_type, image_size
        self.format = ImageFormat(in_channels, self.bands, pixel_type, image_size)
        self.published: Statistics | None = None if mean is None or std is None else (mean, std)
        self._classes, self._scale = tuple(classes), scale
        self._names = tuple(band_names or (f"band {number}" for number in self.bands or range(1, in_channels + 1)))
        self._size: tuple[int, int] | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        """As given."""
        return self._classes

    @property
    def band_names(self) -> tuple[str, ...]:
        """As given, numbers otherwise."""
        return self._names

    @property
    def scale(self) -> float:
        """As given."""
        return super().scale if self._scale is None else self._scale

    def settings(self) -> dict[str, Any]:
        """See `Archive.settings`."""
        return super().settings() | {
            "numbers": None if self.bands is None else list(self.bands),
            "pixel_type": self.dtype,
            "image_size": self.image_size,
            "resize": None if self.image_size is None else RESIZE,
            "decoder": f"{gdal_version()}, pillow {PIL.__version__}",
        }

    def listing(self) -> ImageListing:
        """See `ImageArchive.listing`."""
        if self.table is None:
            found = scan_folders(self.root, self._classes)
        else:
            found = scan_table(self.root, self.table, self._classes, self.multi_label, self.separator)
        return replace(found, facts={"table": self.table, "synthetic": synthetic_facts(Path(self.root).expanduser())})

    def fields(self, listing: ImageListing) -> dict[str, Field]:
        """Of the size of the first image, where images are not resized."""
        self._size = self.format.size(listing.paths[0])
        return {"image": Field((len(self._names), *self._size), self.dtype)}

    def check_header(self, path: Path) -> bool:
        """Bands, type and size."""
        with open_rows(path) as raster:
            self.format.judge(raster, path, self._size or self.format.size(path))
        return True

    def decode(self, path: Path) -> np.ndarray:
        """See `ImageArchive.decode`."""
        return self.format.decode(path, self._size or self.format.size(path))
