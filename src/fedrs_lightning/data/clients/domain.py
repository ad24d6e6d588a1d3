"""A domain: an archive with clients of its own, and what it gives to each split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from fedrs_lightning.data.archives.archive import Archive, ImageArchive, ImageListing, TileArchive, TileListing
from fedrs_lightning.data.clients.partition import Partition, Proportional
from fedrs_lightning.data.clients.splits import divide
from fedrs_lightning.data.packs.images import ImagePack
from fedrs_lightning.data.packs.tiles import CropPack
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.seeding import numpy_stream

PADDED = 4  # times the side of the largest tile: a larger crop would be padding for the most part
SPLITS = ("train", "validation", "test")


@dataclass
class Domain:
    """An archive and its clients.

    Args:
        name: for people and results, such as `potsdam_irrg`.
        archive: what lies on disk.
        num_clients: how many clients share its training samples at random, equally.
        partition: how they share them, instead of `num_clients`.
    """

    name: str
    archive: Archive
    num_clients: int | None = None
    partition: Partition | None = None

    def __post_init__(self) -> None:
        if self.num_clients is not None and self.partition is not None:
            raise ConfigError(f"domain {self.name}: num_clients and partition exclude each other; leave one out")
        if self.num_clients is not None:
            self.partition = Proportional(self.num_clients)

    def refuse_unowned_tiles(self) -> None:
        """Raise ConfigError where nothing says whose the tiles are: no archive of tiles does."""
        if self.partition is None:
            raise ConfigError(f"{self.name or 'data'}: nothing says whose the tiles are; set num_clients or partition")


@dataclass(frozen=True)
class SplitRule:
    """How samples of images get into training, validation and test data; see `FederatedDataset`."""

    split: str | None
    train_fraction: float
    validation_fraction: float
    stratify: bool


@dataclass(frozen=True)
class CropRule:
    """Pixels: side of crops, overlap of test crops, and side of training windows (`size` for a fixed grid)."""

    size: int
    test_overlap: int
    window: int


@dataclass
class DomainSamples:
    """Samples of a domain, numbered from 0, before any is decoded.

    Attributes:
        domain: whose.
        listing: what the archive listed.
        packs: how they are packed; the samples of all packs in order.
        train, validation, test: sample numbers, int64, sorted.
        labels: int [N] or multi-hot [N, C] in the archive's classes; None for masks.
        attributes: name to [N].
        rule: how the split came about, for the manifest.
    """

    domain: Domain
    listing: ImageListing | TileListing
    packs: list[ImagePack] | list[CropPack]
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    labels: np.ndarray | None
    attributes: Mapping[str, np.ndarray]
    rule: dict[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many samples there are, those in no split included."""
        return len(next(iter(self.attributes.values()))) if self.labels is None else len(self.labels)

    @property
    def owners(self) -> np.ndarray | None:
        """Published owner of each sample, str [N]."""
        return self.listing.clients if isinstance(self.listing, ImageListing) else None

    def where(self, sample: int) -> str:
        """A sample in words, for messages."""
        assert isinstance(self.listing, ImageListing)
        return str((self.listing.where or self.listing.ids)[sample])


def samples_of(
    domain: Domain, listing: ImageListing | TileListing, rule: SplitRule, crops: CropRule, seed: int
) -> DomainSamples:
    """The samples that an archive listed, split.

    Raises:
        ConfigError: the rule does not suit the archive, or nobody or two say whose the samples are.
        DataError: there is no test tile.
    """
    if isinstance(listing, TileListing):
        domain.refuse_unowned_tiles()
        return _tiles(domain, listing, crops)
    place = f"domain {domain.name}" if domain.name else str(listing.folder)
    if listing.clients is None and domain.partition is None:
        raise ConfigError(f"{place}: nothing says whose the samples are; set partition, or name clients in a table")
    if listing.clients is not None and domain.partition is not None:
        if listing.binding:
            raise ConfigError(f"{place}: the archive says whose the samples are; leave partition out")
        listing = replace(listing, clients=None)
    return _images(domain, listing, rule, seed)


def single_labels(labels: np.ndarray) -> np.ndarray:
    """Class of each sample; of several classes the number of their combination, int64 [N]."""
    return labels if labels.ndim == 1 else np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)


def _images(domain: Domain, listing: ImageListing, rule: SplitRule, seed: int) -> DomainSamples:
    archive = domain.archive
    assert isinstance(archive, ImageArchive)
    if listing.splits is None and rule.split == "published":
        raise ConfigError(f"split: published: {archive.name} has no published split here; set split to seeded")
    indices = np.arange(len(listing.ids))
    if listing.splits is not None and rule.split != "seeded":
        if rule.validation_fraction > 0:
            raise ConfigError("validation_fraction must be 0 with a published split, which names validation samples")
        parts = [indices[np.asarray(listing.splits) == name] for name in SPLITS]
        about: dict[str, Any] = {"rule": "published", "left_out": len(indices) - sum(map(len, parts))}
    else:
        parts = _seeded(archive.name, listing, rule, seed)
        about = {"rule": "seeded" + ("" if listing.clients is None else ", within each client")}
        about |= {"train_fraction": rule.train_fraction, "validation_fraction": rule.validation_fraction}
        about["stratify"] = rule.stratify
    attributes = dict(listing.attributes)
    if listing.labels.ndim == 1:
        attributes.setdefault("class_name", np.asarray(archive.class_names)[listing.labels])
    source, decode = partial(archive.fingerprint, listing), partial(archive.decode_sample, listing)
    pack = ImagePack(
        archive.name, listing.ids, archive.fields(listing), archive.settings(), source, decode, archive.gaps
    )
    train, validation, test = parts
    return DomainSamples(domain, listing, [pack], train, validation, test, listing.labels, attributes, about)


def _seeded(name: str, listing: ImageListing, rule: SplitRule, seed: int) -> list[np.ndarray]:
    if rule.stratify and listing.labels.ndim == 2:
        raise ConfigError("stratify is for one class an image; leave it out where images have several")
    groups = np.zeros(len(listing.ids), np.int64)
    if listing.clients is not None:
        groups = np.unique(listing.clients, return_inverse=True)[1]
    strata = groups * (int(listing.labels.max()) + 1) + listing.labels if rule.stratify else groups
    train, test = divide(np.arange(len(groups)), strata, rule.train_fraction, numpy_stream(seed, name, "split"))
    fraction = 1 - rule.validation_fraction
    train, validation = divide(train, strata, fraction, numpy_stream(seed, name, "validation"))
    return [train, validation, test]


def _tiles(domain: Domain, listing: TileListing, crops: CropRule) -> DomainSamples:
    archive = domain.archive
    assert isinstance(archive, TileArchive)
    if not listing.test:
        whose = f"domain {domain.name}: " if domain.name else ""
        raise DataError(f"{whose}{listing.folder} has no test tile; add one, or set split: by_position")
    largest = max(max(tile.size) for tile in (*listing.train, *listing.test))
    if crops.size > PADDED * largest:
        raise ConfigError(f"crop_size is {crops.size}, but the largest tile has {largest} pixels a side; lower it")
    form = len(archive.band_names), archive.dtype, len(archive.class_names), archive.settings()
    packs = [
        CropPack(archive.name, listing.train, listing.folder, "train", crops.window, 0, *form),
        CropPack(archive.name, listing.test, listing.folder, "test", crops.size, crops.test_overlap, *form),
    ]
    indices = [pack.index() for pack in packs]
    tile = np.concatenate([np.asarray(index.tiles, dtype=object)[index.tile] for index in indices])
    train, none, test = np.split(np.arange(len(tile)), [len(indices[0]), len(indices[0])])
    return DomainSamples(domain, listing, packs, train, none, test, None, {"tile": tile}, {"rule": "published"})
