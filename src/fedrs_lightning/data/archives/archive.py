"""What lies on disk: samples with labels or masks, and how one is decoded. An archive knows nothing about clients.

A data set of your own is a subclass of `ImageArchive` (images with one class or several) or of `TileArchive` (large
images with masks, cut into crops): docs/add-a-dataset.md writes one. Constructors do no I/O.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedrs_lightning.data.packs.fields import Field
from fedrs_lightning.data.packs.pack import fingerprint
from fedrs_lightning.data.rasters.tiles import Tile

if TYPE_CHECKING:
    from fedrs_lightning.data.check.report import Report

Split = Literal["official", "by_position"]
Statistics = tuple[Sequence[float], Sequence[float]]

IMAGENET: Statistics = (123.675 / 255, 116.28 / 255, 103.53 / 255), (58.395 / 255, 57.12 / 255, 57.375 / 255)
"""Customary normalisation of the aerial benchmarks (also that of the LoveDA authors)."""


class Archive(ABC):
    """What lies on disk.

    Attributes:
        name: names packs and random streams; that of the class in lower case where an archive gives none.
        root: the user's folder, never written to.
        folders: names of the attributes that hold folders.
        class_names: of the classes 0, 1, ...
        band_names: of the bands that a network takes, in its order. Names such as `red` or `B04` say what they show.
        unscored: classes that are trained on but left out of a mean over classes, such as clutter.
        dtype: of a stored pixel, `uint8` or `uint16`.
        published: customary mean and deviation of each band, after `scale`; None where there are none.
        stored_side: side of the stored images in pixels, where it is known without touching the disk.
    """

    name: str = ""
    root: str
    folders: tuple[str, ...] = ("root",)
    unscored: tuple[str, ...] = ()
    dtype: str = "uint8"
    published: Statistics | None = None
    stored_side: int | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    @property
    @abstractmethod
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes 0, 1, ..."""

    @property
    @abstractmethod
    def band_names(self) -> tuple[str, ...]:
        """Names of the bands that a network takes, in its order."""

    @property
    def scale(self) -> float:
        """Factor on stored pixels before normalisation: 1/255 for uint8, 1 for uint16, whose range says nothing."""
        return 1 / 255 if self.dtype == "uint8" else 1.0

    def settings(self) -> dict[str, Any]:
        """Everything that decides a decoded value, as plain JSON values."""
        return {"archive": type(self).__name__, "bands": list(self.band_names)}

    def below(self, base: str) -> Archive:
        """The same archive with relative folders taken from `base`."""
        moved = copy.copy(self)
        for name in self.folders:
            given = getattr(self, name)
            if given is not None:
                setattr(moved, name, str(Path(base).expanduser() / Path(given).expanduser()))
        return moved

    def prepare(self, cache: Path) -> None:  # noqa: B027  most archives have nothing to do
        """Compute and keep what decoding needs."""

    @abstractmethod
    def listing(self) -> ImageListing | TileListing:
        """List what is there, see `ImageArchive` and `TileArchive`."""

    def check(self, deep: bool = False, sample: int | None = None, seed: int = 0) -> Report:
        """Look for faults of the files, each with its remedy.

        Args:
            deep: decode every file, instead of reading headers and a few rows.
            sample: look into the files of this many samples, drawn at random, instead of all.
            seed: of that draw.
        """
        from fedrs_lightning.data.check.report import Report

        report = Report(type(self).__name__, str(self.root), "deep" if deep else "header")
        with report.refusals():
            self._check(report, sample, seed)
        return report

    @abstractmethod
    def _check(self, report: Report, sample: int | None, seed: int) -> None:
        """Add to a report what is wrong; its mode says how closely to look."""


@dataclass(frozen=True)
class ImageListing:
    """Samples of an archive of images, in an order that does not change.

    Attributes:
        folder: where they lie.
        ids: of the samples, such as their paths below `folder`.
        labels: class of each, int [N]; or 1 for each class it has, [N, C].
        paths: file of each sample; may be empty where the archive decodes in its own way.
        splits: published split of each, `train`, `validation` or `test`, or empty for none; str [N]. None where nothing
            is published.
        clients: published owner of each, such as a country; str [N], empty for nobody's. None where there is none.
        binding: whether a partition may not give the samples to others, since the user named their owners.
        client_order: the owners in the order of client ids; None sorts them.
        attributes: other facts of each sample, name to [N], for the partition `ByAttribute`.
        where: for messages: the file, or the row of a table; empty takes `ids`.
        facts: plain JSON values for the manifest.
    """

    folder: Path
    ids: Sequence[str]
    labels: np.ndarray
    paths: Sequence[Path] = ()
    splits: np.ndarray | None = None
    clients: np.ndarray | None = None
    binding: bool = True
    client_order: tuple[str, ...] | None = None
    attributes: Mapping[str, np.ndarray] = field(default_factory=dict)
    where: Sequence[str] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", np.asarray(self.labels))


class ImageArchive(Archive):
    """Images with one class each, or several."""

    gaps: bool = False
    """Whether `decode` may give masked arrays, for pixels that are no data."""
    kernel: Literal["torch", "rsim"] = "torch"
    """How stored bands of two resolutions come onto one grid, see `Transform`."""

    @property
    def stored_bands(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the stored bands of each array of a sample; one array `image` unless resolutions differ."""
        return {"image": self.band_names}

    @abstractmethod
    def listing(self) -> ImageListing:
        """List the samples without decoding an image.

        Raises:
            DataError: names the folder, file or row, and a remedy.
        """

    def fields(self, listing: ImageListing) -> Mapping[str, Field]:
        """Shape and type of each array of a sample; by default those of the first one."""
        return {name: Field(found.shape, str(found.dtype)) for name, found in self.decode_sample(listing, 0).items()}

    def decode(self, path: Path) -> np.ndarray:
        """Pixels of a file, [C, H, W] in the archive's type; a masked array where some of them are no data.

        Raises:
            DataError: names the file and a remedy.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither decode nor decode_sample")

    def decode_sample(self, listing: ImageListing, number: int) -> Mapping[str, np.ndarray]:
        """The arrays of a sample by name. Called from many threads."""
        return {"image": self.decode(listing.paths[number])}

    def check_header(self, path: Path) -> bool:
        """Refuse a file whose header shows that it is wrong; False where headers say nothing, so that it is decoded.

        Raises:
            DataError: names the file and a remedy.
        """
        return False

    def is_plain(self, pixels: np.ndarray) -> bool:
        """Whether an array shows nothing, so that another sample may well be equal; by default one value a band."""
        return all(int(np.ptp(band)) == 0 for band in pixels)

    def fingerprint(self, listing: ImageListing) -> str:
        """A text that changes when the files do."""
        return fingerprint(zip(listing.ids, listing.paths, strict=True))

    def acquired(self, sample_id: str) -> date | None:
        """Day on which a sample was acquired, where its id says so."""
        return None

    def _check(self, report: Report, sample: int | None, seed: int) -> None:
        from fedrs_lightning.data.check.archives import check_images

        check_images(report, self, sample, seed)


@dataclass
class TileListing:
    """Tiles of an archive.

    Attributes:
        folder: against which file paths are named.
        train: tiles to train on.
        test: tiles to test on; never shares pixels with `train`.
        facts: plain JSON values for the manifest: variant found, tiles left out and why, native resolution.
    """

    folder: Path
    train: list[Tile]
    test: list[Tile]
    facts: dict[str, Any] = field(default_factory=dict)


class TileArchive(Archive):
    """Large images with masks, which are cut into crops."""

    @property
    def published(self) -> Statistics | None:  # type: ignore[override]
        """ImageNet's statistics for three bands of 8 bits, as is customary."""
        return IMAGENET if len(self.band_names) == 3 and self.dtype == "uint8" else None

    @property
    def ground(self) -> str:
        """Names the terrain: tiles of the same id in archives of the same ground show the same place."""
        return f"{self.name} {Path(self.root).expanduser().resolve()}"

    @abstractmethod
    def listing(self) -> TileListing:
        """List the tiles, reading headers only.

        Raises:
            DataError: names the folder or file, and a remedy.
        """

    def _check(self, report: Report, sample: int | None, seed: int) -> None:
        from fedrs_lightning.data.check.archives import check_tiles

        check_tiles(report, self, sample, seed)
