"""BigEarthNet-S2 v2.0: several land-cover classes of each Sentinel-2 patch, countries as clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedrs_lightning.data.archives.bigearthnet import faults
from fedrs_lightning.data.archives.bigearthnet import files as layout
from fedrs_lightning.data.archives.bigearthnet.store import Look, PatchStore, open_store
from fedrs_lightning.data.archives.bigearthnet.tables import Rows, in_season, months_of, read_tables
from fedrs_lightning.data.clients.federated import ClientSplit, FederatedDataset, Federation, describe_split, hash_ids
from fedrs_lightning.data.clients.normalisation import RULES, Normalisation, Statistics, Sums, statistics
from fedrs_lightning.data.packs.fields import Field, FieldSource
from fedrs_lightning.data.packs.file_source import FileSource
from fedrs_lightning.data.packs.folders import cache_folder
from fedrs_lightning.data.packs.samples import PackedSource, PackSpec, pack, pack_folder
from fedrs_lightning.data.transforms.bands import BandTransform, Kernel
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.files import read_json

MEAN = (438.37, 614.06, 588.41, 942.75, 1769.85, 2049.48, 2193.29, 2235.49, 1568.21, 997.72)
STD = (607.03, 603.30, 684.57, 738.30, 1100.46, 1275.84, 1369.37, 1356.75, 1070.80, 814.09)
"""Statistics of the training patches of all seasons at 120 x 120, reflectance x 10000, in the order of `BANDS` (the
authors' ConfigILM).
"""

FIELDS = {"image10": Field((4, 120, 120), "uint16"), "image20": Field((6, 60, 60), "uint16")}
PROTOCOLS = ("global", "personal_common", "personal_own", "validation")
VARIANTS = {"files": "official tree of GeoTIFFs", "lmdb": "LMDB of safetensors (rico-hdl)"}
SIDE = 120  # pixels
MANY = 1000  # ids of left-out patches that are written out

SCORES = (
    "personal_own is the headline, for every method alike: each country's test patches are scored by that country's "
    "model, then pooled "
    "into one micro mAP; the mean over countries stands beside it, and under global the one model of methods that "
    "have one"
)


@dataclass(frozen=True)
class Selection:
    """The patches that take part, in sample order: by client, split, patch id.

    Attributes:
        found: where everything lies.
        store: gives pixels.
        rows: of the patches.
        clients: countries, position = client id.
        owner: client of each patch, int64 [N].
        missing: patches of the tables that are not on disk and were left out.
    """

    found: layout.Layout
    store: PatchStore
    rows: Rows
    clients: tuple[str, ...]
    owner: np.ndarray
    missing: tuple[str, ...]

    def indices(self, split: str, client: int | None = None) -> np.ndarray:
        """Samples of a split, of one client or of all; int64, sorted."""
        chosen = self.rows.split == layout.SPLITS.index(split)
        return np.flatnonzero(chosen if client is None else chosen & (self.owner == client)).astype(np.int64)


class BigEarthNet(FederatedDataset):
    """Nineteen land-cover classes, several a patch, of Sentinel-2 patches of ten countries (Clasen et al., 2025,
    arXiv:2407.03653).

    BigEarthNet-S2 v2.0 (reBEN): 480,038 patches of 1200 m x 1200 m without snow, cloud and shadow, 69,450 with, of 2017
    and 2018; four bands at 10 m (120 x 120), six at 20 m (60 x 60), surface reflectance x 10000, uint16. Labels are
    multi-hot, float32 [19]. Licence CDLA-Permissive-1.0; contains Copernicus Sentinel data. The folder is one that you
    downloaded; it is never written to. BigEarthNet v1.0 is recognised and refused.

    One client a country, ids in the order Finland, Ireland, Serbia, Austria, Belgium, Lithuania, Portugal, Switzerland,
    Kosovo, Luxembourg, or in the order of `countries`. The official split, which is geographic, is used as it is. A
    client's own test data are the test patches of its country.

    Args:
        root: folder that holds `BigEarthNet-S2`, or that folder itself, or the folder of an LMDB made with rico-hdl.
        metadata: path of `metadata.parquet`; null looks beside the images.
        flagged_metadata: path of the table of patches with snow, cloud or shadow; null looks beside `metadata`.
        season: months of acquisition: `summer` (June, July, August, as in FedMAD), `all`, or a list of months, 1 to 12.
        flagged: also take patches with seasonal snow, cloud or shadow.
        countries: clients, one each; null takes every country that has patches in the season.
        missing: what to do with patches of the tables that are not on disk: `error`, or `leave_out` (and record them).
        bands: what a network takes, in its order; null takes B02, B03, B04, B05, B06, B07, B08, B8A, B11, B12.
        image_size: side in pixels that batches are resized to; null keeps 120.
        resize: how 20 m bands get to 120 x 120, both bicubic: `torch` (`align_corners=False`), or `rsim`
            (`align_corners=True`, as in the authors' own reader).
        normalise: `published` uses the authors' statistics of all seasons; `federated` adds up the clients' sums of
            training pixels, which they upload before round 1; `per_client` gives each client its own statistics.
        augment: random flips and quarter turns in training.
        protocols: what is evaluated beside the loss; null takes `global` and `personal_own`. `personal_common` and
            `validation` score every country's model on the patches of all countries, which takes as many times longer.
        storage: `pack` decodes all patches once into the cache; `files` reads them anew for every batch, slowly.
        fingerprint: how a changed folder is noticed: `files` looks at size and time of every band file, `folders` at
            those of the patch folders, ten times faster, but blind to a file that is overwritten in place.
        cache_dir: where packs are kept; null means `$FEDRS_CACHE` or the platform's cache folder.
    """

    stored_side = SIDE

    def __init__(
        self,
        root: str,
        metadata: str | None = None,
        flagged_metadata: str | None = None,
        season: Literal["summer", "all"] | list[int] = "summer",
        flagged: bool = False,
        countries: list[str] | None = None,
        missing: Literal["error", "leave_out"] = "error",
        bands: list[str] | None = None,
        image_size: int | None = None,
        resize: Kernel = "torch",
        normalise: Normalisation = "published",
        augment: bool = True,
        protocols: list[str] | None = None,
        storage: Literal["pack", "files"] = "pack",
        fingerprint: Look = "files",
        cache_dir: str | None = None,
    ) -> None:
        months_of(season)
        chosen = list(layout.BANDS if bands is None else bands)
        protocols = ["global", "personal_own"] if protocols is None else protocols
        _one_of("resize", resize, ("torch", "rsim"))
        _one_of("normalise", normalise, tuple(RULES))
        _one_of("missing", missing, ("error", "leave_out"))
        _one_of("storage", storage, ("pack", "files"))
        _one_of("fingerprint", fingerprint, ("files", "folders"))
        _some_of("bands", chosen, layout.BANDS)
        _some_of("countries", list(layout.COUNTRIES if countries is None else countries), layout.COUNTRIES)
        _some_of("protocols", protocols, PROTOCOLS)
        if "personal_own" not in protocols:
            raise ConfigError("protocols must name personal_own, the headline")
        if image_size is not None and image_size < 1:
            raise ConfigError(f"image_size must be at least 1 pixel or null, got {image_size}")
        self.root, self.metadata, self.flagged_metadata = root, metadata, flagged_metadata
        self.season, self.flagged, self.countries, self.missing = season, flagged, countries, missing
        self.bands, self.image_size, self.resize, self.normalise, self.augment = (
            tuple(chosen),
            image_size,
            resize,
            normalise,
            augment,
        )
        self.protocols, self.storage, self.fingerprint, self.cache_dir = (
            tuple(protocols),
            storage,
            fingerprint,
            cache_dir,
        )
        self._selection: Selection | None = None
        self._source: str | None = None

    @property
    def num_classes(self) -> int:
        """19."""
        return len(layout.CLASSES)

    @property
    def in_channels(self) -> int:
        """Number of chosen bands."""
        return len(self.bands)

    @property
    def class_names(self) -> tuple[str, ...]:
        """In the order of the authors' label file."""
        return layout.CLASSES

    def band_names(self, domain: str = "") -> dict[str, tuple[str, ...]]:
        """Sentinel-2's names of all ten bands, which are stored whatever a network takes."""
        return {"image10": layout.BANDS_10M, "image20": layout.BANDS_20M}

    def acquired(self, sample_id: str) -> date:
        """Day of acquisition, from the patch id."""
        return date.fromisoformat(layout.patch_date(sample_id))

    def prepare(self) -> None:
        """Read the tables, find the patches, and pack them; a pack that exists is used as it is."""
        self._selection = self.select()
        if self.storage == "pack":
            pack(self.spec(self._selection), cache_folder(self.cache_dir))
        else:
            self._look(self._selection)

    def select(self) -> Selection:
        """The patches that take part. Reads the tables and lists folders, but no image.

        Raises:
            DataError: folders or tables are missing or faulty, or a filter leaves nothing.
        """
        found = layout.find_layout(self.root, self.metadata, self.flagged_metadata)
        store, rows, season = open_store(found, self.fingerprint), read_tables(found, self.flagged), self._season
        if rows.faults:
            raise DataError(rows.faults[0])
        rows = rows.take(in_season(rows, self.season))
        if not len(rows):
            raise DataError(faults.nothing_left(found.metadata, season))
        wanted = layout.COUNTRIES if self.countries is None else tuple(self.countries)
        there = [name for number, name in enumerate(layout.COUNTRIES) if (rows.country == number).any()]
        for name in self.countries or ():
            if name not in there:
                raise DataError(faults.no_patches_of(name, season, there))
        rows = rows.take(np.isin(rows.country, [layout.COUNTRIES.index(name) for name in wanted]))
        present = store.present(rows.patch_ids.tolist())
        missing = tuple(rows.patch_ids[~present].tolist())
        if missing and (self.missing == "error" or len(missing) == len(rows)):
            raise DataError(faults.not_on_disk(found.images, missing, len(rows)))
        rows = rows.take(present)
        clients = tuple(name for name in wanted if layout.COUNTRIES.index(name) in rows.country)
        gone = [name for name in self.countries or () if name not in clients]
        if gone:
            raise DataError(faults.no_patches_of(gone[0], season, clients))
        position = np.zeros(len(layout.COUNTRIES), np.int64)
        position[[layout.COUNTRIES.index(name) for name in clients]] = np.arange(len(clients))
        # A client's training samples lie together in the pack, so that reading them stays in one part of the file.
        rows = rows.take(np.lexsort((rows.split, position[rows.country])))
        return Selection(found, store, rows, clients, position[rows.country], missing)

    def spec(self, selection: Selection) -> PackSpec:
        """How the patches are packed: all ten bands at native size, whatever a network takes."""
        names = tuple(selection.rows.patch_ids.tolist())
        return PackSpec(
            name="bigearthnet",
            ids=names,
            fields=FIELDS,
            settings={"dataset": "BigEarthNet-S2 v2.0", "bands": self.band_names(), "decoder": selection.store.decoder},
            source=lambda: self._look(selection),
            decode=lambda number: selection.store.decode(names[number]),
        )

    def federation(self, seed: int) -> Federation:
        """Countries as clients. Nothing is drawn, so every seed gives the same. See `FederatedDataset.federation`."""
        selection = self._selection or self.select()
        source, digest = self._open(selection)
        clients = []
        for number, name in enumerate(selection.clients):
            test = selection.indices("test", number)
            clients.append(ClientSplit(number, name, selection.indices("train", number), test if len(test) else None))
        sums = (
            {}
            if self.normalise == "published"
            else {client.name: self._sums(source, client.train) for client in clients}
        )
        places = [layout.BANDS.index(band) for band in self.bands]
        normal = statistics(
            self.normalise, ([MEAN[place] for place in places], [STD[place] for place in places]), sums, self.bands
        )
        stored = (layout.BANDS_10M, layout.BANDS_20M)
        return Federation(
            source,
            tuple(clients),
            selection.indices("test"),
            selection.indices("validation"),
            BandTransform(stored, self.bands, normal.mean, normal.std, self.resize, self.image_size, self.augment),
            self._manifest(selection, normal) | {"images_sha256": digest},
            source.sample_ids,
            self.protocols,
            "personal_own",
            normal.setup_bytes,
        )

    def _manifest(self, selection: Selection, normal: Statistics) -> dict[str, Any]:
        """All that decides a number, as plain JSON values."""
        found, marker = selection.found, layout.synthetic_marker(selection.found)
        describe = partial(
            describe_split,
            sample_ids=selection.rows.patch_ids.tolist(),
            labels=selection.rows.labels,
            num_classes=self.num_classes,
        )
        resized = {"20 m bands": f"bicubic on float32, align_corners={self.resize == 'rsim'}", "name": self.resize}
        if self.image_size not in (None, SIDE):
            resized["then"] = "all bands: bilinear, antialiased, align_corners=False"
        splits = [
            {"id": number, "name": name}
            | {split: describe(selection.indices(split, number)) for split in layout.SPLITS}
            for number, name in enumerate(selection.clients)
        ]
        return {
            "dataset": "BigEarthNet-S2 v2.0",
            "root": str(Path(self.root).expanduser().resolve()),
            "folders": {
                "images": str(found.images.resolve()),
                "metadata": str(found.metadata.resolve()),
                "flagged_metadata": str(found.flagged.resolve()) if self.flagged else None,
            },
            "variant": VARIANTS[found.kind],
            "synthetic": None if marker is None else dict(read_json(marker)),
            "decoder": selection.store.decoder,
            "bands": list(self.bands),
            "resize": resized,
            "image_size": self.image_size or SIDE,
            "augmentation": "flips and quarter turns" if self.augment else None,
            "normalisation": normal.described
            | {"scale": 1.0, "unit": "reflectance x 10000, pixels at native resolution"},
            "season": {
                "setting": self.season,
                "months": list(months_of(self.season)),
                "rule": "month of acquisition in the patch id",
            },
            "flagged": self.flagged,
            "split": "official",
            "partition": "one client a country",
            "missing": self.missing,
            "left_out": {
                "num_samples": len(selection.missing),
                "sha256": hash_ids(selection.missing),
                "ids": list(selection.missing[:MANY]),
            },
            "scores": SCORES,
            "protocols": list(self.protocols),
            "class_names": list(layout.CLASSES),
            "num_samples": len(selection.rows),
            "storage": self.storage,
            "fingerprint": self.fingerprint,
            # Of names, sizes and times, so a copy may have another; a pack's bytes say more.
            "source_sha256": self._source if self.storage == "files" else None,
            "labels_sha256": hash_ids(_labelled(selection.rows)),
            "clients": splits,
            "test": describe(selection.indices("test")),
            "validation": describe(selection.indices("validation")),
        }

    @property
    def _season(self) -> str:
        flags = "with" if self.flagged else "without"
        return f"season: {self.season}, {flags} flagged patches"

    def _look(self, selection: Selection) -> str:
        """Fingerprint of the patches as they are now."""
        self._source = selection.store.fingerprint(selection.rows.patch_ids.tolist())
        return self._source

    def _open(self, selection: Selection) -> tuple[FieldSource, str | None]:
        """The samples, and the hash of the pack's bytes where there is one."""
        known = self._source or self._look(selection)
        spec = self.spec(selection)
        extras = {
            "label": torch.from_numpy(selection.rows.labels.astype(np.float32)),
            "group": torch.from_numpy(selection.owner),
        }
        if self.storage == "files":
            return FileSource(spec, extras), None
        folder = pack_folder(replace(spec, source=lambda: known), cache_folder(self.cache_dir))
        if not folder.is_dir():
            raise DataError(
                f"{folder}: not packed yet, or the images changed; call prepare() first, and on several nodes share "
                "cache_dir"
            )
        source = PackedSource(folder, extras)
        return source, source.digest

    def _sums(self, source: FieldSource, indices: np.ndarray) -> Sums:
        """Exact sums of the chosen bands over samples."""
        found: dict[str, tuple[int, int, int]] = {}
        for field, names in self.band_names().items():
            count, (first, second) = source.sums(indices, field)
            found |= {name: (count, one, two) for name, one, two in zip(names, first, second, strict=True)}
        counts, first_sums, second_sums = zip(*(found[band] for band in self.bands), strict=True)
        return Sums(counts, first_sums, second_sums)


def _labelled(rows: Rows) -> list[str]:
    """One line a patch, with its labels."""
    return [
        f"{name}: {''.join(map(str, labels))}"
        for name, labels in zip(rows.patch_ids.tolist(), rows.labels.astype(int).tolist(), strict=True)
    ]


def _one_of(name: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise ConfigError(f"{name} must be one of {', '.join(valid)}, got '{value}'")


def _some_of(name: str, values: list[str], valid: tuple[str, ...]) -> None:
    for value in values:
        _one_of(name, value, valid)
    if not values or len(set(values)) < len(values):
        raise ConfigError(f"{name} must name at least one of {', '.join(valid)}, each once, got {values}")
