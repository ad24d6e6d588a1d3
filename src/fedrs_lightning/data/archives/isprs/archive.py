"""What the two ISPRS data sets share: settings, official tile lists, label sets, and the way from files to tiles."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedrs_lightning.data.archives.archive import Split, TileArchive, TileListing
from fedrs_lightning.data.archives.folders import numeric, synthetic_facts
from fedrs_lightning.data.archives.isprs.files import (
    AS_CONVERTED,
    FIVE,
    LABEL_HINT,
    SIX,
    Clutter,
    ConvertedFiles,
    ConvertedTile,
    LabelSet,
    TileFiles,
    index_values,
    palette,
    refuse_orphans,
)
from fedrs_lightning.data.rasters.tiles import Tile, by_position
from fedrs_lightning.errors import ConfigError, DataError, one_of


class Found(Protocol):
    """What listing a folder gives."""

    folder: Path
    unknown: list[Path]
    converted: ConvertedFiles | None

    def label_copies(self, kind: str, tile: str) -> list[Path]:
        """Label files of a tile in order of preference; `kind` is full or eroded."""
        ...

    def labelled(self) -> set[str]:
        """Tiles that have a label of any kind."""
        ...


class ISPRSArchive(TileArchive):
    """Base of Potsdam and Vaihingen.

    Attributes:
        title: of the data set.
        official: training and test tiles.
        unit: what a tile is called, in the plural.
        prefix: of a tile's id in the names of a converted tree.
        example: how an id looks.
    """

    title: str
    official: tuple[tuple[str, ...], tuple[str, ...]]
    unit = "tiles"
    prefix = ""
    example: str

    def _keep(
        self,
        labels_train: LabelSet,
        labels_eval: LabelSet,
        clutter: Clutter,
        skip_tiles: list[str] | None,
        split: Split,
    ) -> None:
        """Check and store the common settings."""
        one_of("labels_train", labels_train, ("auto", "full", "eroded"))
        one_of("labels_eval", labels_eval, ("auto", "full", "eroded"))
        one_of("clutter", clutter, ("ignore", "class"))
        one_of("split", split, ("official", "by_position"))
        self.labels_train, self.labels_eval, self.clutter, self.split = labels_train, labels_eval, clutter, split
        self.skip_tiles = tuple(skip_tiles or ())
        for tile in self.skip_tiles:
            if tile not in self._known:
                raise ConfigError(
                    f"skip_tiles: '{tile}' is not one of {self._all}, which are named like {self.example}"
                )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Five, or six with clutter."""
        return SIX if self.clutter == "class" else FIVE

    @property
    def unscored(self) -> tuple[str, ...]:  # type: ignore[override]
        """Clutter, where it is a class."""
        return SIX[5:] if self.clutter == "class" else ()

    def settings(self) -> dict[str, Any]:
        """See `Archive.settings`."""
        return super().settings() | {
            "clutter": self.clutter,
            "labels": {"train": self.labels_train, "eval": self.labels_eval},
            "split": self.split,
        }

    def listing(self) -> TileListing:
        """See `TileArchive.listing`."""
        found = self._list()
        if found.unknown:
            raise DataError(f"{found.unknown[0]}: is none of {self._all}; rename it or move it out of the folder")
        train, test, facts = self._converted(found.converted) if found.converted else self._from_files(found)
        facts |= {"skipped": list(self.skip_tiles), "synthetic": synthetic_facts(found.folder)}
        if self.split == "by_position":
            train, test = by_position(sorted([*train, *test], key=lambda tile: numeric(tile.id)))
        if not train:
            raise DataError(
                f"{found.folder}: none of the {len(self.official[0])} training {self.unit} is there; see skip_tiles "
                "and root"
            )
        return TileListing(found.folder, train, test, facts)

    @abstractmethod
    def _list(self) -> Found:
        """Find the files."""

    @abstractmethod
    def _images(self, found: Any) -> tuple[Mapping[str, Path], dict[str, Any]]:
        """Image of each tile, and facts about them."""

    @property
    @abstractmethod
    def _order(self) -> tuple[int, ...]:
        """Bands of an image file to keep."""

    @property
    def _factor(self) -> float:
        return 1.0

    def _mix(self) -> Callable[[np.ndarray], np.ndarray] | None:
        return None

    def label_hint(self, tile: str) -> str:
        """Remedy for a label file that holds something else."""
        return LABEL_HINT

    @property
    def _known(self) -> tuple[str, ...]:
        return self.official[0] + self.official[1]

    @property
    def _all(self) -> str:
        return f"the {len(self._known)} {self.title} {self.unit}"

    def _from_files(self, found: Found) -> tuple[list[Tile], list[Tile], dict[str, Any]]:
        images, facts = self._images(found)
        facts |= {"variant": "official", "labels_without_image": sorted(found.labelled() - images.keys(), key=numeric)}
        parts: list[list[Tile]] = []
        for part, official, wanted in zip(
            ("train", "eval"), self.official, (self.labels_train, self.labels_eval), strict=True
        ):
            present = [tile for tile in official if tile in images and tile not in self.skip_tiles]
            eroded = bool(present) and all(found.label_copies("eroded", tile) for tile in present)
            kind = ("eroded" if eroded else "full") if wanted == "auto" else wanted
            facts |= {
                f"labels_{part}": kind if present else None,
                f"absent_{part}": [tile for tile in official if tile not in images],
            }
            parts.append([self._tile(found, images[tile], kind, tile) for tile in present])
        return parts[0], parts[1], facts

    def _tile(self, found: Found, image: Path, kind: str, tile: str) -> Tile:
        copies = found.label_copies(kind, tile)
        if not copies:
            other = "eroded" if kind == "full" else "full"
            there = bool(found.label_copies(other, tile))
            remedy = (
                f"set labels_train and labels_eval to {other}"
                if there
                else f"unpack the labels, or add '{tile}' to skip_tiles"
            )
            raise DataError(f"{image}: has no {kind} label; {remedy}")
        mix, factor, hint = self._mix(), self._factor, self.label_hint(tile)
        return TileFiles(tile, image, copies[0], self._order, palette(self.clutter), mix, factor, hint).tile()

    def _converted(self, converted: ConvertedFiles) -> tuple[list[Tile], list[Tile], dict[str, Any]]:
        refuse_orphans(converted)
        pieces = {name.removeprefix(self.prefix): files for name, files in converted.pieces.items()}
        for tile in sorted(pieces.keys() - set(self._known)):
            first = next(iter(pieces[tile].values()))[0]
            raise DataError(f"{first}: {tile} is none of {self._all}; move its pieces out of the folder")
        parts: list[list[Tile]] = []
        for official in self.official:
            present = [tile for tile in official if tile in pieces and tile not in self.skip_tiles]
            sources = {tile: [(box, *files) for box, files in pieces[tile].items()] for tile in present}
            table = index_values(self.clutter)
            parts.append(
                [
                    ConvertedTile(tile, sources[tile], table, self._order, self._factor, self._mix()).tile()
                    for tile in present
                ]
            )
        return parts[0], parts[1], dict(AS_CONVERTED)
