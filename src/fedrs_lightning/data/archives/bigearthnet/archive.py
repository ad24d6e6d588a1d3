"""BigEarthNet-S2 v2.0: several land-cover classes of each Sentinel-2 patch of ten countries."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedrs_lightning.data.archives.archive import ImageArchive, ImageListing, Statistics
from fedrs_lightning.data.archives.bigearthnet import faults
from fedrs_lightning.data.archives.bigearthnet import files as layout
from fedrs_lightning.data.archives.bigearthnet.store import Look, PatchStore, open_store
from fedrs_lightning.data.archives.bigearthnet.tables import Rows, choose, months_of, present_countries, read_tables
from fedrs_lightning.data.archives.folders import synthetic_facts
from fedrs_lightning.data.packs.fields import Field
from fedrs_lightning.data.packs.pack import hash_ids
from fedrs_lightning.data.transforms.transform import Kernel
from fedrs_lightning.errors import ConfigError, DataError, one_of

if TYPE_CHECKING:
    from fedrs_lightning.data.check.report import Report

MEAN = (438.37, 614.06, 588.41, 942.75, 1769.85, 2049.48, 2193.29, 2235.49, 1568.21, 997.72)
STD = (607.03, 603.30, 684.57, 738.30, 1100.46, 1275.84, 1369.37, 1356.75, 1070.80, 814.09)
"""Statistics of the training patches of all seasons at 120 x 120, reflectance x 10000, in the order of `BANDS` (the
authors' ConfigILM).
"""

FIELDS = {"image10": Field((4, 120, 120), "uint16"), "image20": Field((6, 60, 60), "uint16")}
VARIANTS = {"files": "official tree of GeoTIFFs", "lmdb": "LMDB of safetensors (rico-hdl)"}
PLAIN = 60  # reflectance x 10000
MANY = 1000  # ids of left-out patches that are written out


class BigEarthNet(ImageArchive):
    """Nineteen land-cover classes, several a patch, of Sentinel-2 patches of ten countries.

    BigEarthNet-S2 v2.0 (reBEN; Clasen et al., 2025, arXiv:2407.03653): 480,038 patches of 1200 m x 1200 m without snow,
    cloud and shadow, 69,450 with, of 2017 and 2018; four bands at 10 m (120 x 120), six at 20 m (60 x 60), surface
    reflectance x 10000, uint16. Labels are multi-hot, float32 [19]. Licence CDLA-Permissive-1.0; contains Copernicus
    Sentinel data. The folder is one that you downloaded; it is never written to. BigEarthNet v1.0 is recognised and
    refused.

    Every patch belongs to its country, in the order Finland, Ireland, Serbia, Austria, Belgium, Lithuania, Portugal,
    Switzerland, Kosovo, Luxembourg, or in the order of `countries`, unless a partition says otherwise; attributes for
    `ByAttribute` are `country`, `month` and `tile`. The published split is geographic.

    Args:
        root: folder that holds `BigEarthNet-S2`, or that folder itself, or the folder of an LMDB made with rico-hdl.
        metadata: path of `metadata.parquet`; null looks beside the images.
        flagged_metadata: path of the table of patches with snow, cloud or shadow; null looks beside `metadata`.
        season: months of acquisition: `summer` (June, July, August, as in FedMAD), `all`, or a list of months, 1 to 12.
        flagged: also take patches with seasonal snow, cloud or shadow.
        countries: whose patches are taken; null takes every country that has patches in the season.
        missing: what to do with patches of the tables that are not on disk: `error`, or `leave_out` (and record them).
        bands: what a network takes, in its order; null takes B02, B03, B04, B05, B06, B07, B08, B8A, B11, B12.
        resize: how 20 m bands get to 120 x 120, both bicubic: `torch` (`align_corners=False`), or `rsim`
            (`align_corners=True`, as in the authors' own reader).
        fingerprint: how a changed folder is noticed: `files` looks at size and time of every band file, `folders` at
            those of the patch folders, ten times faster, but blind to a file that is overwritten in place.
    """

    name, stored_side, class_names, dtype = "bigearthnet", 120, layout.CLASSES, "uint16"
    folders = ("root", "metadata", "flagged_metadata")

    def __init__(
        self,
        root: str = ".",
        metadata: str | None = None,
        flagged_metadata: str | None = None,
        season: Literal["summer", "all"] | list[int] = "summer",
        flagged: bool = False,
        countries: list[str] | None = None,
        missing: Literal["error", "leave_out"] = "error",
        bands: list[str] | None = None,
        resize: Kernel = "torch",
        fingerprint: Look = "files",
    ) -> None:
        months_of(season)
        one_of("resize", resize, ("torch", "rsim"))
        one_of("missing", missing, ("error", "leave_out"))
        one_of("fingerprint", fingerprint, ("files", "folders"))
        self.bands = tuple(_some_of("bands", bands, layout.BANDS))
        _some_of("countries", countries, layout.COUNTRIES)
        self.root, self.metadata, self.flagged_metadata = root, metadata, flagged_metadata
        self.season, self.flagged, self.countries, self.missing = season, flagged, countries, missing
        self.kernel, self.look = resize, fingerprint
        self._store: PatchStore | None = None

    @property
    def band_names(self) -> tuple[str, ...]:
        """The chosen ones."""
        return self.bands

    @property
    def stored_bands(self) -> dict[str, tuple[str, ...]]:
        """Sentinel-2's names of all ten bands, which are stored whatever a network takes."""
        return {"image10": layout.BANDS_10M, "image20": layout.BANDS_20M}

    @property
    def published(self) -> Statistics:  # type: ignore[override]
        """The authors' statistics of all seasons."""
        places = [layout.BANDS.index(band) for band in self.bands]
        return [MEAN[place] for place in places], [STD[place] for place in places]

    def settings(self) -> dict[str, Any]:
        """All ten bands at native size are decoded, whatever a network takes."""
        decoder = None if self._store is None else self._store.decoder
        stored = {name: list(bands) for name, bands in self.stored_bands.items()}
        return {"archive": "BigEarthNet-S2 v2.0", "bands": stored, "decoder": decoder}

    def acquired(self, sample_id: str) -> date:
        """Day of acquisition, from the patch id."""
        return date.fromisoformat(layout.patch_date(sample_id))

    def listing(self) -> ImageListing:
        """The patches that take part, by country, split, patch id. Reads the tables and lists folders, but no image.

        Raises:
            DataError: folders or tables are missing or faulty, or a filter leaves nothing.
        """
        found = layout.find_layout(self.root, self.metadata, self.flagged_metadata)
        self._store = open_store(found, self.look)
        rows = self._chosen(read_tables(found, self.flagged), found)
        present = self._store.present(rows.patch_ids.tolist())
        missing = rows.patch_ids[~present].tolist()
        if missing and (self.missing == "error" or len(missing) == len(rows)):
            raise DataError(faults.not_on_disk(found.images, missing, len(rows)))
        rows = self._chosen(rows.take(present), found)
        there = present_countries(rows)
        countries = tuple(name for name in self.countries or layout.COUNTRIES if name in there)
        position = np.zeros(len(layout.COUNTRIES), np.int64)
        position[[layout.COUNTRIES.index(name) for name in countries]] = np.arange(len(countries))
        # A client's training samples lie together in the pack, so that reading them stays in one part of the file.
        rows = rows.take(np.lexsort((rows.split, position[rows.country])))
        ids, owner = rows.patch_ids.tolist(), np.asarray(layout.COUNTRIES)[rows.country]
        tiles = np.asarray([name.split("_")[5] for name in ids])
        return ImageListing(
            found.images,
            ids,
            rows.labels,
            splits=np.asarray(layout.SPLITS)[rows.split],
            clients=owner,
            binding=False,
            client_order=countries,
            attributes={"country": owner, "month": rows.month, "tile": tiles},
            facts=self._facts(found, missing),
        )

    def _chosen(self, rows: Rows, found: layout.Layout) -> Rows:
        rule = f"season: {self.season}, {'with' if self.flagged else 'without'} flagged patches"
        chosen = choose(rows, self.season, self.countries, found.metadata, rule)
        for fault in chosen.faults:
            raise DataError(fault)
        return chosen

    def _check(self, report: Report, sample: int | None, seed: int) -> None:
        from fedrs_lightning.data.archives.bigearthnet.check import check_bigearthnet

        check_bigearthnet(report, self, sample, seed)

    def fields(self, listing: ImageListing) -> dict[str, Field]:
        """Ten bands at native size."""
        return dict(FIELDS)

    def decode_sample(self, listing: ImageListing, number: int) -> Mapping[str, np.ndarray]:
        """See `ImageArchive.decode_sample`."""
        assert self._store is not None
        return self._store.decode(listing.ids[number])

    def fingerprint(self, listing: ImageListing) -> str:
        """See `ImageArchive.fingerprint`."""
        assert self._store is not None
        return self._store.fingerprint(listing.ids)

    def _facts(self, found: layout.Layout, missing: list[str]) -> dict[str, Any]:
        return {
            "variant": VARIANTS[found.kind],
            "metadata": str(found.metadata.resolve()),
            "flagged_metadata": str(found.flagged.resolve()) if self.flagged else None,
            "synthetic": synthetic_facts(found.images, 1),
            "season": {"setting": self.season, "months": list(months_of(self.season)), "rule": "month in the patch id"},
            "flagged": self.flagged,
            "bands": list(self.bands),
            "resize": f"20 m bands bicubic on float32, align_corners={self.kernel == 'rsim'}",
            "missing": self.missing,
            "left_out": {"num_samples": len(missing), "sha256": hash_ids(missing), "ids": missing[:MANY]},
            "fingerprint": self.look,
        }

    def is_plain(self, pixels: np.ndarray) -> bool:
        """Patches of open water may span less than `PLAIN` in every band, and then equal ones may occur."""
        return all(int(np.ptp(band)) <= PLAIN for band in pixels)


def _some_of(name: str, values: list[str] | None, valid: tuple[str, ...]) -> list[str]:
    """The values, or all valid ones for None."""
    chosen = list(valid if values is None else values)
    for value in chosen:
        one_of(name, value, valid)
    if not chosen or len(set(chosen)) < len(chosen):
        raise ConfigError(f"{name} must name at least one of {', '.join(valid)}, each once, got {chosen}")
    return chosen
