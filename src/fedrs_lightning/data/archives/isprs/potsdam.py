"""ISPRS Potsdam: aerial tiles at 5 cm in RGB, IRRG or RGBIR, with labels of six classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedrs_lightning.data.archives.archive import Split
from fedrs_lightning.data.archives.isprs.archive import LABEL_HINT, Clutter, ISPRSArchive, LabelSet
from fedrs_lightning.data.archives.isprs.files import ISPRSFiles
from fedrs_lightning.data.rasters.rows import open_rows
from fedrs_lightning.data.rasters.tiles import Tile
from fedrs_lightning.errors import ConfigError, DataError, one_of

# fmt: off
TRAIN = (
    "2_10", "2_11", "2_12", "3_10", "3_11", "3_12", "4_10", "4_11", "4_12", "5_10", "5_11", "5_12",
    "6_7", "6_8", "6_9", "6_10", "6_11", "6_12", "7_7", "7_8", "7_9", "7_10", "7_11", "7_12",
)
TEST = (
    "2_13", "2_14", "3_13", "3_14", "4_13", "4_14", "4_15", "5_13", "5_14", "5_15", "6_13", "6_14", "6_15", "7_13",
)
# fmt: on
BLENDED = "4_12"
ORDER_REMEDY = "set irrg_from: rgbir, which needs 4_Ortho_RGBIR, or irrg_order: accept"

Modality = Literal["rgb", "irrg", "rgbir"]


def irrg_order(irrg: Path, reference: Path) -> Literal["IR, R, G", "IR, G, B", "unclear"]:
    """What the channels of an IRRG file are, by comparison with the RGB or RGBIR file of the tile.

    Args:
        irrg: delivered as IR, R, G.
        reference: its first three bands are red, green, blue.
    """
    with open_rows(irrg) as first, open_rows(reference) as second:
        if (first.height, first.width) != (second.height, second.width):
            raise DataError(f"{irrg}: has another size than {reference.name}; replace both from the archive")
        start, stop = first.height // 2, min(first.height // 2 + 64, first.height)
        pixels, colours = (raster.rows(start, stop).astype(np.int16) for raster in (first, second))
    distance = [float(np.abs(pixels[1] - colours[band]).mean()) for band in (0, 1)]
    if max(distance) < 1e-9:
        return "unclear"
    return "IR, R, G" if distance[0] < distance[1] else "IR, G, B"


class Potsdam(ISPRSArchive):
    """ISPRS Potsdam (2D Semantic Labeling Contest): 38 tiles of 6000 x 6000 pixels at 5 cm.

    Research use, on request from ISPRS Commission II; no redistribution. Classes: impervious surfaces, building, low
    vegetation, tree, car; clutter is ignored by default. 24 official training and 14 official test tiles; those of
    them that are in the folder are used.

    Args:
        root: folder with `2_Ortho_RGB/` and so on, or MMSegmentation's converted form. Never written to.
        modality: `rgb`, `irrg` (near infrared, red, green) or `rgbir` (four bands). A converted set has the bands that
            it was converted from, which cannot be seen: say which.
        labels_train: `eroded` leaves a band of three pixels around objects unlabelled, `full` has none; `auto` takes
            eroded labels where they are there.
        labels_eval: the same for test tiles.
        clutter: `ignore` makes clutter 255; `class` makes it a sixth class, which is left out of the mean.
        irrg_from: `file` reads `3_Ortho_IRRG`; `rgbir` builds IR, R, G from `4_Ortho_RGBIR`.
        irrg_order: `check` compares an IRRG file with the RGB or RGBIR one where there is one, and refuses IR, G, B;
            `accept` reads it as it is. Both are recorded.
        skip_tiles: tiles to leave out, such as 4_12 (its label is not a mask in some copies) or 7_10 (wrong in parts).
        split: `official`; or `by_position`, for a few tiles: the first three quarters of each tile for training and
            the last quarter for testing.
    """

    title, official, example, side = "Potsdam", (TRAIN, TEST), "4_12", (6000, 6000)
    kinds, numbered = {"RGB": 3, "IRRG": 3, "RGBIR": 4}, r"\d+_\d+"
    named = r"top_potsdam_(\d+_\d+)_(RGBIR|RGB|IRRG|label|label_noBoundary)"
    expected = "2_Ortho_RGB/top_potsdam_2_10_RGB.tif (or 3_Ortho_IRRG, 4_Ortho_RGBIR)"

    def __init__(
        self,
        root: str = ".",
        modality: Modality = "rgb",
        labels_train: LabelSet = "auto",
        labels_eval: LabelSet = "auto",
        clutter: Clutter = "ignore",
        irrg_from: Literal["file", "rgbir"] = "file",
        irrg_order: Literal["check", "accept"] = "check",
        skip_tiles: list[str] | None = None,
        split: Split = "official",
    ) -> None:
        one_of("modality", modality, ("rgb", "irrg", "rgbir"))
        one_of("irrg_from", irrg_from, ("file", "rgbir"))
        one_of("irrg_order", irrg_order, ("check", "accept"))
        self.root, self.modality, self.irrg_from, self.irrg_order = root, modality, irrg_from, irrg_order
        self._keep(labels_train, labels_eval, clutter, skip_tiles, split)

    @property
    def band_names(self) -> tuple[str, ...]:
        """By the modality."""
        return {"rgb": ("R", "G", "B"), "irrg": ("IR", "R", "G"), "rgbir": ("R", "G", "B", "IR")}[self.modality]

    def settings(self) -> dict[str, Any]:
        """See `Archive.settings`."""
        return super().settings() | {"read_from": self._source, "gsd": "0.05 m"}

    def files(self) -> ISPRSFiles:
        """See `ISPRSArchive.files`."""
        found = super().files()
        for copies in found.labels["full"].values():  # the copy of 4_12 in 5_Labels_all is no mask
            copies.sort(key=lambda path: ("participants" not in path.parent.name, str(path)))
        return found

    @property
    def _source(self) -> str:
        return "RGBIR" if self.modality == "irrg" and self.irrg_from == "rgbir" else self.modality.upper()

    @property
    def _order(self) -> tuple[int, ...]:
        if self.modality == "rgbir":
            return (0, 1, 2, 3)
        return (3, 0, 1) if self._source == "RGBIR" else (0, 1, 2)

    def _place(self, found: ISPRSFiles, path: Path, tile: str, kind: str | None) -> None:
        assert kind is not None
        if tile not in self.known:
            found.unknown.append(path)
        elif kind.startswith("label"):
            found.labels["eroded" if kind.endswith("noBoundary") else "full"][tile].append(path)
        else:
            found.images[kind][tile].append(path)

    def _facts(self, found: ISPRSFiles) -> dict[str, Any]:
        if not found.images[self._source]:
            others = ", ".join(kind for kind, files in found.images.items() if files)
            raise DataError(f"{found.folder}: holds no {self._source} tiles, but {others}; set modality or irrg_from")
        return {"irrg_order": self._channel_order(found) if self._source == "IRRG" else None}

    def _converted(self, found: ISPRSFiles) -> tuple[list[Tile], list[Tile], dict[str, Any]]:
        if self._source == "RGBIR":
            remedy = "set modality to what they were converted from"
            raise ConfigError(f"RGBIR is asked for, but converted PNGs have three bands; {remedy}")
        return super()._converted(found)

    def label_hint(self, tile: str) -> str:
        """See `ISPRSArchive.label_hint`."""
        if tile != BLENDED:
            return LABEL_HINT
        remedy = f"put the one of 5_Labels_for_participants into the folder, or set skip_tiles: ['{BLENDED}']"
        return f"in some copies of 5_Labels_all this label is the mask blended over the photo; {remedy}"

    def _channel_order(self, found: ISPRSFiles) -> str:
        delivered = found.images["IRRG"]
        for reference in ("RGB", "RGBIR"):
            others = found.images[reference]
            tile = next((tile for tile in delivered if tile in others and tile not in self.skip_tiles), None)
            if tile is not None:
                path, other = delivered[tile][0], others[tile][0]
                order = irrg_order(path, other)
                if order == "IR, G, B" and self.irrg_order == "check":
                    what = f"its channels are IR, G, B and not IR, R, G (compared with {other.name})"
                    raise DataError(f"{path}: {what}; {ORDER_REMEDY} to use it as it is")
                return order
        return "not checked: no RGB or RGBIR tile to compare with"
