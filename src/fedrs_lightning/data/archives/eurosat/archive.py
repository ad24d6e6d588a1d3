"""EuroSAT: land-cover classes of Sentinel-2 tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedrs_lightning.data.archives.eurosat import files as layout
from fedrs_lightning.data.clients.federated import ClientSplit, FederatedDataset, Federation, describe_split
from fedrs_lightning.data.clients.normalisation import setup_bytes
from fedrs_lightning.data.clients.partition import Partition
from fedrs_lightning.data.clients.splits import cut_by_class_shares, divide, read_attributes, read_split_lists
from fedrs_lightning.data.packs.fields import Field
from fedrs_lightning.data.packs.folders import cache_folder
from fedrs_lightning.data.packs.samples import PackedSource, PackSpec, fingerprint, pack, pack_folder
from fedrs_lightning.data.transforms.images import ImageTransform
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.files import read_json
from fedrs_lightning.seeding import numpy_stream

RGB_MEAN, RGB_STD = (0.344, 0.380, 0.408), (0.204, 0.137, 0.115)
"""Widely quoted statistics of the 27,000 JPEGs, in 0..1."""

ALL_MEAN = (
    1354.41,
    1118.24,
    1042.93,
    947.63,
    1199.47,
    1999.79,
    2369.22,
    2296.83,
    732.08,
    12.11,
    1819.01,
    1118.92,
    2594.14,
)
ALL_STD = (245.72, 333.01, 395.09, 593.75, 566.42, 861.18, 1086.63, 1117.98, 404.92, 4.78, 1002.59, 761.30, 1231.59)
"""Widely quoted statistics of the 27,000 GeoTIFFs in the order of `BANDS`, reflectance x 10000 (as in TorchGeo)."""


@dataclass(frozen=True)
class Deal:
    """Who trains, validates and tests on what; index arrays are int64 and sorted.

    Attributes:
        clients: shares of the training data, ids ascending.
        test: common test set.
        validation: held out of training.
        rule: how it came about, for the manifest.
    """

    clients: tuple[ClientSplit, ...]
    test: np.ndarray
    validation: np.ndarray
    rule: dict[str, Any]


class EuroSAT(FederatedDataset):
    """Ten land-cover classes of 64 x 64 Sentinel-2 tiles at 10 m (Helber et al., 2019,
    doi:10.1109/JSTARS.2019.2918242).

    27,000 tiles, MIT licence, contains Copernicus Sentinel data. Classes 0 to 9: AnnualCrop, Forest,
    HerbaceousVegetation, Highway, Industrial, Pasture, PermanentCrop, Residential, River, SeaLake. The folder is one
    that you downloaded; any layout with the ten class folders up to two levels below `root` is read. It is never
    written to.

    Args:
        root: folder of the unpacked archive.
        partition: how training samples are dealt to clients.
        bands: `rgb` reads the 8-bit JPEGs; `all` reads the 13-band GeoTIFFs (uint16, top-of-atmosphere reflectance
            x 10000, order B01 to B08, B09, B10, B11, B12, B8A). The JPEGs are a contrast stretch of bands 4, 3, 2 and
            not the same values.
        image_size: side in pixels that batches are resized to; null keeps 64.
        train_fraction: share of the samples that is not the common test set, for `split: seeded`.
        stratify: draw test and validation samples within each class.
        split: `seeded` permutes the numerically sorted file list. Otherwise the folder of published lists
            (`eurosat-train.txt`, `-val.txt`, `-test.txt`, one file name a line), or the start of their paths, such as
            `lists/eurosat-spatial`.
        validation_fraction: share of the training samples held out for choosing a round. Published lists bring their
            own.
        min_samples: smallest number of training samples of a client; fewer is an error.
        own_test: also give each client own test data: the common test set, cut within each class in proportion to the
            clients' training samples of that class, seeded. This rule is ours; the sources define none.
        normalise: `published` uses the widely quoted statistics; `train` computes them on the training samples, from
            sums that every client sends once.
        attributes: CSV with a column `file` (file name) and one column an attribute, for `ByAttribute`. Attributes
            `class_name` and `number` always exist.
        augment: random flips and quarter turns in training.
        cache_dir: where decoded images are packed; null means `$FEDRS_CACHE` or the platform's cache folder.
        seed: seed of split and partition; null takes the run's.
    """

    stored_side = layout.SIDE

    def __init__(
        self,
        root: str,
        partition: Partition,
        bands: Literal["rgb", "all"] = "rgb",
        image_size: int | None = None,
        train_fraction: float = 0.8,
        stratify: bool = False,
        split: str = "seeded",
        validation_fraction: float = 0.0,
        min_samples: int = 1,
        own_test: bool = False,
        normalise: Literal["published", "train"] = "published",
        attributes: str | None = None,
        augment: bool = True,
        cache_dir: str | None = None,
        seed: int | None = None,
    ) -> None:
        if bands not in layout.SUFFIXES:
            raise ConfigError(f"bands must be rgb or all, got '{bands}'")
        if normalise not in ("published", "train"):
            raise ConfigError(f"normalise must be published or train, got '{normalise}'")
        if not 0 < train_fraction <= 1 or not 0 <= validation_fraction < 1:
            raise ConfigError(
                f"train_fraction must be in (0, 1] and validation_fraction in [0, 1), got {train_fraction} and "
                f"{validation_fraction}"
            )
        if split != "seeded" and validation_fraction > 0:
            raise ConfigError(
                "validation_fraction must be 0 with published lists, which name their own validation samples"
            )
        if image_size is not None and image_size < 1:
            raise ConfigError(f"image_size must be at least 1 pixel or null, got {image_size}")
        self.root, self.partition, self.bands, self.image_size = root, partition, bands, image_size
        self.train_fraction, self.stratify, self.split, self.validation_fraction = (
            train_fraction,
            stratify,
            split,
            validation_fraction,
        )
        self.min_samples, self.own_test, self.normalise, self.attributes = min_samples, own_test, normalise, attributes
        self.augment, self.cache_dir, self.seed = augment, cache_dir, seed
        self._layout: layout.Layout | None = None

    @property
    def num_classes(self) -> int:
        """10."""
        return len(layout.CLASSES)

    @property
    def in_channels(self) -> int:
        """3 for `rgb`, 13 for `all`."""
        return 3 if self.bands == "rgb" else len(layout.BANDS)

    @property
    def class_names(self) -> tuple[str, ...]:
        """In alphabetical order."""
        return layout.CLASSES

    def band_names(self, domain: str = "") -> dict[str, tuple[str, ...]]:
        """Colours for `rgb`, Sentinel-2's names for `all`."""
        return {"image": ("red", "green", "blue") if self.bands == "rgb" else layout.BANDS}

    def prepare(self) -> None:
        """Check names and kinds of all files, decode and pack them; a pack that exists is used as it is."""
        self._layout = layout.scan(self.root, self.bands)
        pack(self._spec(self._layout), cache_folder(self.cache_dir))

    def federation(self, seed: int) -> Federation:
        """Split, deal to clients, and open the pack. See `FederatedDataset.federation`."""
        files = self._layout or layout.scan(self.root, self.bands)
        folder = pack_folder(self._spec(files), cache_folder(self.cache_dir))
        if not folder.is_dir():
            raise DataError(
                f"{folder}: not packed yet, or the images changed; call prepare() first, and on several nodes share "
                "cache_dir"
            )
        labels = np.asarray([file.label for file in files.files], dtype=np.int64)
        source, used = (
            PackedSource(folder, {"label": torch.from_numpy(labels)}),
            seed if self.seed is None else self.seed,
        )
        dealt = self.deal(source.sample_ids, labels, seed)
        mean, std = self._statistics(source, np.concatenate([client.train for client in dealt.clients]))
        scale = 1 / 255 if self.bands == "rgb" else 1.0
        manifest = {
            "dataset": "EuroSAT",
            "root": str(Path(self.root).expanduser().resolve()),
            "folder": str(files.folder.resolve()),
            "synthetic": self._synthetic(files.folder),
            "bands": ["red", "green", "blue"] if self.bands == "rgb" else list(layout.BANDS),
            "decoder": layout.decoder_name(self.bands),
            "image_size": self.image_size or layout.SIDE,
            "resize": None if self.image_size in (None, layout.SIDE) else "bilinear, antialiased, align_corners=False",
            "augmentation": "flips and quarter turns" if self.augment else None,
            "normalisation": {"statistics": self.normalise, "scale": scale, "mean": list(mean), "std": list(std)},
            "seed": used,
            "split": dealt.rule,
            "partition": {"class": type(self.partition).__name__, **vars(self.partition)},
            "own_test": "common test set cut by the clients' class proportions (our rule)" if self.own_test else None,
            "class_names": list(layout.CLASSES),
            "num_samples": len(source),
            "images_sha256": source.digest,
            "clients": [self._describe(client, source, labels) for client in dealt.clients],
            "test": describe_split(dealt.test, source.sample_ids, labels, self.num_classes),
            "validation": describe_split(dealt.validation, source.sample_ids, labels, self.num_classes),
        }
        transform = ImageTransform(mean, std, scale, self.image_size, self.augment)
        sent = setup_bytes(len(dealt.clients) if self.normalise == "train" else 0, self.in_channels)
        return Federation(
            source,
            dealt.clients,
            dealt.test,
            dealt.validation,
            transform,
            manifest,
            source.sample_ids,
            setup_bytes=sent,
        )

    def deal(self, sample_ids: tuple[str, ...], labels: np.ndarray, seed: int) -> Deal:
        """Split the samples and give the training samples to clients, without reading an image.

        Args:
            sample_ids: relative paths, classes in order and numbers ascending.
            labels: class of each, int [N].
            seed: the run's seed.
        """
        used = seed if self.seed is None else self.seed
        train, validation, test, rule = self._splits(sample_ids, labels, used)
        clients = self._clients(labels, train, test, self._attributes(sample_ids, labels), used)
        return Deal(clients, test, validation, rule)

    def _spec(self, files: layout.Layout) -> PackSpec:
        rgb = self.bands == "rgb"
        decode = layout.decode_rgb if rgb else layout.decode_all
        return PackSpec(
            name=f"eurosat-{self.bands}",
            ids=[file.id for file in files.files],
            fields={"image": Field((self.in_channels, layout.SIDE, layout.SIDE), "uint8" if rgb else "uint16")},
            settings={"dataset": "EuroSAT", "bands": self.bands, "decoder": layout.decoder_name(self.bands)},
            source=lambda: fingerprint((file.id, file.path) for file in files.files),
            decode=lambda number: {"image": decode(files.files[number].path)},
        )

    def _splits(
        self, sample_ids: tuple[str, ...], labels: np.ndarray, seed: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if self.split != "seeded":
            train, validation, test, prefix = read_split_lists(self.split, "eurosat", sample_ids)
            left_out = len(sample_ids) - len(train) - len(validation) - len(test)
            return train, validation, test, {"rule": "published lists", "lists": prefix, "left_out": left_out}
        rng = numpy_stream(seed, "eurosat", "split")
        train, test = divide(np.arange(len(labels)), labels, self.train_fraction, self.stratify, rng)
        rng = numpy_stream(seed, "eurosat", "validation")
        train, validation = divide(train, labels, 1 - self.validation_fraction, self.stratify, rng)
        rule = {"rule": "seeded", "train_fraction": self.train_fraction, "stratify": self.stratify}
        return train, validation, test, rule | {"validation_fraction": self.validation_fraction}

    def _clients(
        self, labels: np.ndarray, train: np.ndarray, test: np.ndarray, attributes: Mapping[str, np.ndarray], seed: int
    ) -> tuple[ClientSplit, ...]:
        own = {name: values[train] for name, values in attributes.items()}
        shares = self.partition.split(labels[train], own, numpy_stream(seed, "eurosat", "partition"))
        trains = [train[share] for share in shares.values()]
        for number, (name, indices) in enumerate(zip(shares, trains, strict=True)):
            if len(indices) < max(1, self.min_samples):
                raise ConfigError(
                    f"client {number} ({name}) has {len(indices)} training samples, fewer than "
                    f"min_samples={max(1, self.min_samples)}; "
                    "lower min_samples, or change the partition (fewer clients, larger alpha)"
                )
        tests: list[np.ndarray | None] = [None] * len(trains)
        if self.own_test:
            tests = list(cut_by_class_shares(labels, trains, test, numpy_stream(seed, "eurosat", "own_test")))
        return tuple(ClientSplit(number, name, trains[number], tests[number]) for number, name in enumerate(shares))

    def _attributes(self, sample_ids: tuple[str, ...], labels: np.ndarray) -> dict[str, np.ndarray]:
        found = {
            "class_name": np.asarray(layout.CLASSES)[labels],
            "number": np.asarray([layout.tile_number(name) for name in sample_ids]),
        }
        return (
            found
            if self.attributes is None
            else found | read_attributes(Path(self.attributes).expanduser(), sample_ids)
        )

    def _statistics(self, source: PackedSource, train: np.ndarray) -> tuple[list[float], list[float]]:
        if self.normalise == "published":
            return (list(RGB_MEAN), list(RGB_STD)) if self.bands == "rgb" else (list(ALL_MEAN), list(ALL_STD))
        mean, std = source.mean_std(train)
        unit = 255 if self.bands == "rgb" else 1
        if min(std) <= 0:
            raise DataError(
                "normalise: train found a channel without variation in the training samples; use normalise: published"
            )
        return [value / unit for value in mean], [value / unit for value in std]

    def _synthetic(self, folder: Path) -> dict[str, Any] | None:
        marker = layout.synthetic_marker(folder)
        return None if marker is None else dict(read_json(marker))

    def _describe(self, client: ClientSplit, source: PackedSource, labels: np.ndarray) -> dict[str, Any]:
        described = {
            "id": client.id,
            "name": client.name,
            "train": describe_split(client.train, source.sample_ids, labels, self.num_classes),
        }
        if client.test is not None:
            described["test"] = describe_split(client.test, source.sample_ids, labels, self.num_classes)
        return described
