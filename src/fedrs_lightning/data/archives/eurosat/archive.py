"""EuroSAT: land-cover classes of Sentinel-2 tiles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedrs_lightning.data.archives.archive import ImageArchive, ImageListing, Statistics
from fedrs_lightning.data.archives.eurosat import files as layout
from fedrs_lightning.data.archives.eurosat.lists import read_attributes, read_split_lists
from fedrs_lightning.data.packs.fields import Field
from fedrs_lightning.errors import one_of
from fedrs_lightning.files import read_json

if TYPE_CHECKING:
    from fedrs_lightning.data.check.report import Report

RGB: Statistics = (0.344, 0.380, 0.408), (0.204, 0.137, 0.115)
"""Widely quoted statistics of the 27,000 JPEGs, in 0..1."""

ALL: Statistics = (
    (1354.41, 1118.24, 1042.93, 947.63, 1199.47, 1999.79, 2369.22, 2296.83, 732.08, 12.11, 1819.01, 1118.92, 2594.14),
    (245.72, 333.01, 395.09, 593.75, 566.42, 861.18, 1086.63, 1117.98, 404.92, 4.78, 1002.59, 761.30, 1231.59),
)
"""Widely quoted statistics of the 27,000 GeoTIFFs in the order of `BANDS`, reflectance x 10000 (as in TorchGeo)."""


class EuroSAT(ImageArchive):
    """Ten land-cover classes of 64 x 64 Sentinel-2 tiles at 10 m (Helber et al., 2019, doi:10.1109/JSTARS.2019.2918242).

    27,000 tiles, MIT licence, contains Copernicus Sentinel data. Classes 0 to 9: AnnualCrop, Forest,
    HerbaceousVegetation, Highway, Industrial, Pasture, PermanentCrop, Residential, River, SeaLake. The folder is one
    that you downloaded; any layout with the ten class folders up to two levels below `root` is read. It is never
    written to.

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
        return super().settings() | {"decoder": layout.decoder_name(self.bands)}

    def listing(self) -> ImageListing:
        """See `ImageArchive.listing`; checks names and kinds of all files."""
        found = layout.scan(self.root, self.bands)
        ids = [file.id for file in found.files]
        splits, facts = None, {"lists": self.lists, "synthetic": None}
        if self.lists is not None:
            splits = np.full(len(ids), "", dtype="<U10")
            *parts, facts["lists"] = read_split_lists(self.lists, "eurosat", ids)
            for name, indices in zip(("train", "validation", "test"), parts, strict=True):
                splits[indices] = name
        attributes = {"number": np.asarray([layout.tile_number(name) for name in ids])}
        if self.attributes is not None:
            attributes |= read_attributes(Path(self.attributes).expanduser(), ids)
        marker = layout.synthetic_marker(found.folder)
        facts["synthetic"] = None if marker is None else dict(read_json(marker))
        return ImageListing(
            found.folder,
            ids,
            np.asarray([file.label for file in found.files], dtype=np.int64),
            [file.path for file in found.files],
            splits,
            attributes=attributes,
            facts=facts,
        )

    def check(self, deep: bool = False, sample: int | None = None, seed: int = 0) -> Report:
        """See `Archive.check`."""
        from fedrs_lightning.data.archives.eurosat.check import check_eurosat

        return check_eurosat(self, deep, sample, seed)

    def fields(self, listing: ImageListing) -> dict[str, Field]:
        """Known without decoding."""
        return {"image": Field((len(self.band_names), layout.SIDE, layout.SIDE), self.dtype)}

    def decode(self, path: Path) -> np.ndarray:
        """See `ImageArchive.decode`."""
        return layout.decode_rgb(path) if self.bands == "rgb" else layout.decode_all(path)
