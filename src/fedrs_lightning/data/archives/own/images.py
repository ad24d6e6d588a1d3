"""Your own labelled images as a classification data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedrs_lightning.data.archives.own.image_format import RESIZE, ImageFormat, decoder
from fedrs_lightning.data.archives.own.listing import Samples, scan_folders, scan_table
from fedrs_lightning.data.archives.tiles import one_of, synthetic_facts
from fedrs_lightning.data.clients.federated import ClientSplit, FederatedDataset, Federation, describe_split, hash_ids
from fedrs_lightning.data.clients.normalisation import Sums, statistics
from fedrs_lightning.data.clients.partition import Dirichlet, Partition, Shards, attribute_partition
from fedrs_lightning.data.clients.splits import divide
from fedrs_lightning.data.packs.fields import Field
from fedrs_lightning.data.packs.folders import cache_folder
from fedrs_lightning.data.packs.samples import PackedSource, PackSpec, fingerprint, pack, pack_folder
from fedrs_lightning.data.transforms.images import ImageTransform
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.seeding import numpy_stream


@dataclass(frozen=True)
class _Deal:
    clients: tuple[ClientSplit, ...]
    test: np.ndarray
    validation: np.ndarray
    rule: dict[str, Any]


class FolderClassification(FederatedDataset):
    """Your own images (GeoTIFF, PNG or JPEG) with one class each, or several (`multi_label`).

    Without `table`, `root` holds one folder a class. A table has a row for each image, with columns `path` and `label`
    (or `labels`), and, where wanted, `client` and `split` (`train`, `validation`, `test`); further columns are
    attributes for the partition `ByAttribute`. Georeference is not used. The data are never written to.

    Args:
        root: folder of the images; relative paths, also that of the table, start from it.
        classes: names of the classes, in the order of class numbers.
        in_channels: bands of an image that are used.
        partition: how training images are dealt to clients; null where a table's column `client` says it.
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
        normalise: `federated` uses mean and deviation of all clients' training pixels, from sums that clients upload
            before round 1; `per_client` gives every client its own, and needs clients from the table; `given` uses
            `mean` and `std`.
        mean: of each band after `scale`, for `normalise: given`.
        std: deviation of each band after `scale`, for `normalise: given`.
        train_fraction: share of the images that is not for testing, where no column `split` says it. With clients from
            the table, each client's images are divided.
        stratify: draw test and validation images within each class; not with `multi_label`.
        validation_fraction: share of the training images held out for choosing a round, where no column `split` says
            it.
        min_samples: fewest training images of a client; fewer is an error.
        augment: random flips and quarter turns in training; needs square images.
        cache_dir: where decoded images are packed; null means `$FEDRS_CACHE` or the platform's cache folder.
        seed: seed of split and partition; null takes the run's.
    """

    def __init__(
        self,
        root: str,
        classes: list[str],
        in_channels: int,
        partition: Partition | None = None,
        table: str | None = None,
        multi_label: bool = False,
        separator: str = ";",
        bands: list[int] | None = None,
        band_names: list[str] | None = None,
        pixel_type: Literal["uint8", "uint16"] = "uint8",
        scale: float | None = None,
        image_size: int | None = None,
        normalise: Literal["federated", "per_client", "given"] = "federated",
        mean: list[float] | None = None,
        std: list[float] | None = None,
        train_fraction: float = 0.8,
        stratify: bool = False,
        validation_fraction: float = 0.0,
        min_samples: int = 1,
        augment: bool = True,
        cache_dir: str | None = None,
        seed: int | None = None,
    ) -> None:
        one_of("pixel_type", pixel_type, ("uint8", "uint16"))
        one_of("normalise", normalise, ("federated", "per_client", "given"))
        if not classes or len(set(classes)) != len(classes) or not all(name == name.strip() != "" for name in classes):
            raise ConfigError(f"classes must be distinct names without spaces around them, got {classes}")
        if in_channels < 1 or (bands is not None and (len(bands) != in_channels or min(bands) < 1)):
            raise ConfigError(f"bands must name in_channels={in_channels} bands, numbered from 1, got {bands}")
        if band_names is not None and (len(band_names) != in_channels or len(set(band_names)) != in_channels):
            raise ConfigError(f"band_names must be in_channels={in_channels} distinct names, got {band_names}")
        if multi_label and (table is None or stratify or isinstance(partition, (Dirichlet, Shards))):
            raise ConfigError(
                "multi_label needs a table, and neither stratify nor a partition by class, as an image has no single "
                "class"
            )
        if not separator.strip():
            raise ConfigError("separator must be a visible character or word, as class names may hold spaces")
        if (normalise == "given") != (mean is not None and std is not None) or (mean is None) != (std is None):
            raise ConfigError("mean and std belong to normalise: given, and it needs both")
        if (
            mean is not None
            and std is not None
            and (len(mean) != in_channels or len(std) != in_channels or min(std) <= 0)
        ):
            raise ConfigError(
                f"mean and std need in_channels={in_channels} numbers, and std above 0, got {mean} and {std}"
            )
        if normalise == "per_client" and partition is not None:
            raise ConfigError(
                "normalise: per_client needs clients from the table, since the test images of a partition belong to "
                "nobody"
            )
        if partition is None and table is None:
            raise ConfigError(
                "partition is missing; it deals the images to clients, unless a table has a column 'client'"
            )
        if not 0 < train_fraction <= 1 or not 0 <= validation_fraction < 1:
            raise ConfigError(
                f"train_fraction must be in (0, 1] and validation_fraction in [0, 1), got {train_fraction} and "
                f"{validation_fraction}"
            )
        if image_size is not None and image_size < 1:
            raise ConfigError(f"image_size must be at least 1 pixel or null, got {image_size}")
        if scale is not None and not scale > 0:
            raise ConfigError(f"scale must be above 0 or null, got {scale}")
        self.root, self.partition, self.table, self.multi_label, self.separator = (
            root,
            partition,
            table,
            multi_label,
            separator,
        )
        self.bands, self.pixel_type, self.image_size = None if bands is None else tuple(bands), pixel_type, image_size
        self.scale = scale if scale is not None else 1 / 255 if pixel_type == "uint8" else 1.0
        self.normalise, self.mean, self.std = normalise, mean, std
        self.train_fraction, self.stratify, self.validation_fraction = train_fraction, stratify, validation_fraction
        self.min_samples, self.augment, self.cache_dir, self.seed = min_samples, augment, cache_dir, seed
        self._classes, self._channels = tuple(classes), in_channels
        self._names = tuple(band_names or (f"band {number}" for number in self.bands or range(1, in_channels + 1)))
        self._format = ImageFormat(in_channels, self.bands, pixel_type, image_size)
        self._samples: Samples | None = None

    @property
    def num_classes(self) -> int:
        """Number of `classes`."""
        return len(self._classes)

    @property
    def in_channels(self) -> int:
        """As given."""
        return self._channels

    @property
    def class_names(self) -> tuple[str, ...]:
        """As given."""
        return self._classes

    def band_names(self, domain: str = "") -> dict[str, tuple[str, ...]]:
        """As given, numbers otherwise."""
        return {"image": self._names}

    def prepare(self) -> None:
        """List the images, decode and pack them; a pack that exists is used as it is."""
        self._samples = self._scan()
        self._owned(self._samples)
        pack(self._spec(self._samples), cache_folder(self.cache_dir))

    def federation(self, seed: int) -> Federation:
        """Split, deal to clients, and open the pack. See `FederatedDataset.federation`."""
        samples, used = self._samples or self._scan(), seed if self.seed is None else self.seed
        dealt = self._deal(samples, used)
        folder = pack_folder(self._spec(samples), cache_folder(self.cache_dir))
        if not folder.is_dir():
            raise DataError(
                f"{folder}: not packed yet, or the images changed; call prepare() first, and on several nodes share "
                "cache_dir"
            )
        extras = {"label": torch.from_numpy(samples.labels)}
        if self.normalise == "per_client":
            extras["group"] = torch.from_numpy(self._groups(samples, dealt))
        source = PackedSource(folder, extras)
        mean, std, setup, described = self._statistics(source, dealt)
        manifest = self._manifest(samples, source, dealt, used) | {"normalisation": described}
        return Federation(
            source,
            dealt.clients,
            dealt.test,
            dealt.validation,
            ImageTransform(mean, std, self.scale, None, self.augment),
            manifest,
            source.sample_ids,
            headline="personal_own" if any(client.test is not None for client in dealt.clients) else None,
            setup_bytes=setup,
        )

    def check_deal(self, samples: Samples, seed: int) -> None:
        """Deal the samples to clients as a run does, without their pixels.

        Raises:
            ConfigError: the partition cannot deal them.
            DataError: a client gets too few; names it.
        """
        self._deal(samples, seed if self.seed is None else self.seed)

    def _scan(self) -> Samples:
        if self.table is None:
            return scan_folders(self.root, self._classes)
        return scan_table(self.root, self.table, self._classes, self.multi_label, self.separator)

    def _owned(self, samples: Samples) -> bool:
        """Whether a column says whose the images are."""
        if (samples.clients is None) == (self.partition is None):
            table = Path(self.root).expanduser() / str(self.table)
            raise DataError(
                f"{table}: has no column 'client'; add one, or set partition"
                if samples.clients is None
                else f"{table}: its column 'client' says whose the images are; leave partition out, or rename the "
                "column"
            )
        return samples.clients is not None

    def _spec(self, samples: Samples) -> PackSpec:
        size = self._format.size(samples.paths[0], self.augment)
        return PackSpec(
            name="folder-classification",
            ids=samples.ids,
            fields={"image": Field((self._channels, *size), self.pixel_type)},
            settings={
                "dataset": "FolderClassification",
                "bands": self.bands,
                "image_size": self.image_size,
                "decoder": decoder(),
            },
            source=lambda: fingerprint(zip(samples.ids, samples.paths, strict=True)),
            decode=lambda number: {"image": self._format.decode(samples.paths[number], size)},
        )

    def _deal(self, samples: Samples, seed: int) -> _Deal:
        owned, labels = self._owned(samples), _single(samples.labels)
        indices = np.arange(len(samples.ids))
        if samples.splits is not None:
            train, validation, test = (indices[samples.splits == name] for name in ("train", "validation", "test"))
            rule: dict[str, Any] = {"rule": "column split"}
        else:
            groups = (
                np.unique(samples.clients, return_inverse=True)[1]
                if samples.clients is not None
                else np.zeros_like(labels)
            )
            strata = groups * (labels.max() + 1) + labels if self.stratify else groups
            train, test = divide(indices, strata, self.train_fraction, True, numpy_stream(seed, "folder", "split"))
            train, validation = divide(
                train, strata, 1 - self.validation_fraction, True, numpy_stream(seed, "folder", "validation")
            )
            rule = {"rule": "seeded" + (", within each client" if owned else ""), "train_fraction": self.train_fraction}
            rule |= {"stratify": self.stratify, "validation_fraction": self.validation_fraction}
        clients = self._columns(samples, train, test) if owned else self._dealt(samples, labels, train, seed)
        for client in clients:
            if len(client.train) < max(1, self.min_samples):
                place = Path(self.root) / (self.table or "")
                raise DataError(
                    f"{place}: client {client.id} ({client.name}) has {len(client.train)} training images, fewer than "
                    f"min_samples={max(1, self.min_samples)}; give it more, leave it out, or change split or partition"
                )
        return _Deal(clients, test, validation, rule)

    def _columns(self, samples: Samples, train: np.ndarray, test: np.ndarray) -> tuple[ClientSplit, ...]:
        """One client for each value of the column, with its own test images."""
        assert samples.clients is not None
        nobody = train[samples.clients[train] == ""]
        if len(nobody):
            raise DataError(f"{samples.where[nobody[0]]}: a training image without client; name one")
        named = attribute_partition(samples.clients[samples.clients != ""])
        own = [np.flatnonzero(samples.clients == name) for name in named]
        tests = [np.intersect1d(mine, test) for mine in own]
        pairs = zip(named, own, tests, strict=True)
        return tuple(
            ClientSplit(number, name, np.intersect1d(mine, train), tested if len(tested) else None)
            for number, (name, mine, tested) in enumerate(pairs)
        )

    def _dealt(self, samples: Samples, labels: np.ndarray, train: np.ndarray, seed: int) -> tuple[ClientSplit, ...]:
        assert self.partition is not None
        attributes: Mapping[str, np.ndarray] = {name: values[train] for name, values in samples.attributes.items()}
        shares = self.partition.split(labels[train], attributes, numpy_stream(seed, "folder", "partition"))
        return tuple(ClientSplit(number, name, train[share]) for number, (name, share) in enumerate(shares.items()))

    def _groups(self, samples: Samples, dealt: _Deal) -> np.ndarray:
        """Whose statistics normalise each sample, int64 [N]."""
        assert samples.clients is not None
        nobody = np.flatnonzero(samples.clients == "")
        if len(nobody):
            raise DataError(
                f"{samples.where[nobody[0]]}: an image without client, whose statistics normalise: per_client needs; "
                "name one"
            )
        place = {client.name: client.id for client in dealt.clients}
        return np.asarray([place[name] for name in samples.clients.tolist()], dtype=np.int64)

    def _statistics(self, source: PackedSource, dealt: _Deal) -> tuple[Any, Any, dict[str, int], dict[str, Any]]:
        """Mean and deviation after `scale`, what it costs to know them, and how they came about."""
        if self.normalise == "given":
            assert self.mean is not None
            assert self.std is not None
            described = {
                "statistics": "given",
                "rule": "mean and std of the config",
                "scale": self.scale,
                "mean": self.mean,
                "std": self.std,
            }
            return self.mean, self.std, {"up": 0, "down": 0}, described
        sums = {}
        for client in dealt.clients:
            count, (first, second) = source.sums(client.train)
            sums[client.name] = Sums((count,) * self._channels, tuple(first), tuple(second))
        found = statistics(self.normalise, ((), ()), sums, self._names)
        mean, std = ([[self.scale * value for value in row] for row in rows] for rows in (found.mean, found.std))
        return (
            mean,
            std,
            found.setup_bytes,
            found.described | {"scale": self.scale, "unit": "mean and std of stored values, before scale"},
        )

    def _manifest(self, samples: Samples, source: PackedSource, dealt: _Deal, seed: int) -> dict[str, Any]:
        def describe(indices: np.ndarray) -> dict[str, Any]:
            return describe_split(indices, source.sample_ids, samples.labels, self.num_classes)

        height, width = source.about["image"].shape[1:]
        top = Path(self.root).expanduser()
        partition = None if self.partition is None else {"class": type(self.partition).__name__, **vars(self.partition)}
        return {
            "dataset": "FolderClassification",
            "root": str(top.resolve()),
            "table": self.table,
            "synthetic": synthetic_facts(top),
            "multi_label": self.multi_label,
            "bands": list(self.bands or range(1, self._channels + 1)),
            "band_names": list(self._names),
            "pixel_type": self.pixel_type,
            "decoder": decoder(),
            "image_size": [height, width],
            "resize": None if self.image_size is None else RESIZE,
            "augmentation": "flips and quarter turns" if self.augment else None,
            "seed": seed,
            "split": dealt.rule,
            "partition": partition or "column client",
            "class_names": list(self._classes),
            "num_samples": len(source),
            "images_sha256": source.digest,
            "labels_sha256": hash_ids(
                [f"{name}: {label}" for name, label in zip(samples.ids, samples.labels.tolist(), strict=True)]
            ),
            "clients": [
                {"id": client.id, "name": client.name, "train": describe(client.train)}
                | ({} if client.test is None else {"test": describe(client.test)})
                for client in dealt.clients
            ],
            "test": describe(dealt.test),
            "validation": describe(dealt.validation),
        }


def _single(labels: np.ndarray) -> np.ndarray:
    """Class of each sample; of several classes the number of their combination, int64 [N]."""
    return labels if labels.ndim == 1 else np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)
