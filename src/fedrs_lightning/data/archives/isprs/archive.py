"""What the two ISPRS data sets share: settings, official tile lists, label sets, and the way from files to tiles."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedrs_lightning.data.archives.archive import Split, TileArchive, TileListing
from fedrs_lightning.data.archives.folders import existing_folder, nothing_found, numeric, synthetic_facts, walk
from fedrs_lightning.data.archives.isprs.files import ISPRSFiles, converted_tile, converted_tree
from fedrs_lightning.data.rasters.class_tables import ISPRS, ISPRS_CONVERTED, without
from fedrs_lightning.data.rasters.rows import GEOTIFF
from fedrs_lightning.data.rasters.tiles import Mix, Reading, Tile, by_position
from fedrs_lightning.errors import ConfigError, DataError, one_of

if TYPE_CHECKING:
    from fedrs_lightning.data.check.report import Report

Clutter = Literal["ignore", "class"]
LabelSet = Literal["auto", "full", "eroded"]
DEPTH = 3  # levels below the root at which files may lie: zips sometimes nest a second folder of the same name
LABEL_HINT = "this is a photo, not a label, or a label blended over one; are image and label interchanged?"
CONVERTED_HINT = "not a converted index PNG (0 boundary, 1 to 6)"


class ISPRSArchive(TileArchive):
    """Base of Potsdam and Vaihingen.

    Attributes:
        title: of the data set.
        official: training and test tiles.
        kinds: of images, with the number of their bands.
        side: height and width of all official tiles; None where they vary.
        unit: what a tile is called, in the plural.
        named: name of a file without its ending; the first group is the tile.
        prefix: of a tile's id in the names of a converted tree.
        numbered: pattern of a tile's id.
        example: how an id looks.
        expected: what the folder should hold, for the error.
    """

    title: str
    official: tuple[tuple[str, ...], tuple[str, ...]]
    kinds: Mapping[str, int]
    side: tuple[int, int] | None = None
    unit = "tiles"
    named: str
    prefix = ""
    numbered: str
    example: str
    expected: str

    def _keep(
        self, labels_train: LabelSet, labels_eval: LabelSet, clutter: Clutter, skip: list[str] | None, split: Split
    ) -> None:
        """Check and store the common settings."""
        one_of("labels_train", labels_train, ("auto", "full", "eroded"))
        one_of("labels_eval", labels_eval, ("auto", "full", "eroded"))
        one_of("clutter", clutter, ("ignore", "class"))
        one_of("split", split, ("official", "by_position"))
        self.labels_train, self.labels_eval, self.clutter, self.split = labels_train, labels_eval, clutter, split
        self.skip_tiles = tuple(skip or ())
        for tile in self.skip_tiles:
            if tile not in self.known:
                like = f"which are named like {self.example}"
                raise ConfigError(f"skip_tiles: '{tile}' is not one of {self.all_tiles}, {like}")

    @property
    def class_names(self) -> tuple[str, ...]:
        """Five, or six with clutter."""
        return ISPRS.names if self.clutter == "class" else ISPRS.names[:5]

    @property
    def unscored(self) -> tuple[str, ...]:  # type: ignore[override]
        """Clutter, where it is a class."""
        return self.class_names[5:]

    @property
    def known(self) -> tuple[str, ...]:
        """Ids of all official tiles."""
        return self.official[0] + self.official[1]

    @property
    def all_tiles(self) -> str:
        """The official tiles in words."""
        return f"the {len(self.known)} {self.title} {self.unit}"

    def settings(self) -> dict[str, Any]:
        """See `Archive.settings`."""
        labels = {"train": self.labels_train, "eval": self.labels_eval}
        return super().settings() | {"clutter": self.clutter, "labels": labels, "split": self.split}

    def files(self) -> ISPRSFiles:
        """Find images and labels by their names, wherever they lie up to three levels below the root.

        Raises:
            DataError: no such folder, or nothing in it; archives that are still packed are named.
        """
        top = existing_folder(self.root, self.title)
        found = ISPRSFiles(top, {kind: defaultdict(list) for kind in self.kinds})
        for path in walk(top, DEPTH):
            match = re.fullmatch(self.named, path.stem)
            if match is not None and path.suffix.lower() in GEOTIFF:
                self._place(found, path, match[1], match[2])
        if not any(found.images.values()) and not found.unknown:
            found.converted = converted_tree(top, self.prefix, self.numbered)
            if found.converted is None or not found.converted.pieces:
                part = re.match(r"\d_Ortho|\d_Labels|img_dir|ann_dir", top.name)
                hint = f" (set root to the folder above, {top.parent}?)" if part else ""
                raise nothing_found(top, f"{self.expected}, or img_dir/ and ann_dir/ of a converted set{hint}", DEPTH)
        return found

    def listing(self) -> TileListing:
        """See `TileArchive.listing`."""
        found = self.files()
        if found.unknown:
            raise DataError(f"{found.unknown[0]}: is none of {self.all_tiles}; rename it or move it out of the folder")
        train, test, facts = self._converted(found) if found.converted else self._from_files(found)
        facts |= {"skipped": list(self.skip_tiles), "synthetic": synthetic_facts(found.folder)}
        if self.split == "by_position":
            train, test = by_position(sorted([*train, *test], key=lambda tile: numeric(tile.id)))
        if not train:
            wanted = f"none of the {len(self.official[0])} training {self.unit} is there"
            raise DataError(f"{found.folder}: {wanted}; see skip_tiles and root")
        return TileListing(found.folder, train, test, facts)

    def _check(self, report: Report, sample: int | None, seed: int) -> None:
        from fedrs_lightning.data.archives.isprs.check import check_isprs

        check_isprs(report, self, sample, seed)

    @abstractmethod
    def _place(self, found: ISPRSFiles, path: Path, tile: str, kind: str | None) -> None:
        """Put a file where it belongs; `kind` is the second group of `named`."""

    @abstractmethod
    def _facts(self, found: ISPRSFiles) -> dict[str, Any]:
        """Facts about the images that are read; refuses wrong ones."""

    @property
    def _source(self) -> str:
        """Kind of image that is read."""
        return next(iter(self.kinds))

    @property
    @abstractmethod
    def _order(self) -> tuple[int, ...]:
        """Bands of an image file to keep."""

    @property
    def _factor(self) -> float:
        return 1.0

    def _mix(self) -> Mix:
        return None

    def label_hint(self, tile: str) -> str:
        """Remedy for a label file that holds something else."""
        return LABEL_HINT

    def _from_files(self, found: ISPRSFiles) -> tuple[list[Tile], list[Tile], dict[str, Any]]:
        facts, images = self._facts(found), found.images[self._source]
        facts |= {"variant": "official", "labels_without_image": sorted(found.labelled() - images.keys(), key=numeric)}
        parts = {}
        for part, official, wanted in zip(
            ("train", "eval"), self.official, (self.labels_train, self.labels_eval), strict=True
        ):
            present = [tile for tile in official if tile in images and tile not in self.skip_tiles]
            eroded = bool(present) and all(tile in found.labels["eroded"] for tile in present)
            kind = ("eroded" if eroded else "full") if wanted == "auto" else wanted
            facts[f"labels_{part}"] = kind if present else None
            facts[f"absent_{part}"] = [tile for tile in official if tile not in images]
            parts[part] = [self._tile(found, images[tile][0], kind, tile) for tile in present]
        return parts["train"], parts["eval"], facts

    def _tile(self, found: ISPRSFiles, image: Path, kind: str, tile: str) -> Tile:
        if tile not in found.labels[kind]:
            other = "eroded" if kind == "full" else "full"
            remedy = f"unpack the labels, or add '{tile}' to skip_tiles"
            if tile in found.labels[other]:
                remedy = f"set labels_train and labels_eval to {other}"
            raise DataError(f"{image}: has no {kind} label; {remedy}")
        return self._reading(ISPRS, self.label_hint(tile)).tile(tile, image, found.labels[kind][tile][0])

    def _reading(self, table: Any, hint: str) -> Reading:
        table = table if self.clutter == "class" else without(table, "clutter")
        return Reading(self._order, table, hint, mix=self._mix(), factor=self._factor, fourth_is_data=True)

    def _converted(self, found: ISPRSFiles) -> tuple[list[Tile], list[Tile], dict[str, Any]]:
        assert found.converted is not None
        pieces = found.converted.pieces
        for path in found.converted.orphans:
            other = "ann_dir" if "img_dir" in path.parts else "img_dir"
            raise DataError(f"{path}: has no counterpart in {other}; convert it again")
        for tile in sorted(pieces.keys() - set(self.known)):
            first = next(iter(pieces[tile].values()))[0]
            raise DataError(f"{first}: {tile} is none of {self.all_tiles}; move its pieces out of the folder")
        reading = self._reading(ISPRS_CONVERTED, CONVERTED_HINT)
        there = [[tile for tile in tiles if tile in pieces and tile not in self.skip_tiles] for tiles in self.official]
        train, test = ([converted_tile(tile, pieces[tile], reading) for tile in tiles] for tiles in there)
        as_is = {"labels": "as converted", "bands": "as converted, not checked"}
        return train, test, {"variant": "converted by MMSegmentation"} | as_is
