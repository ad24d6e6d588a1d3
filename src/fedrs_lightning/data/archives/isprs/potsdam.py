"""ISPRS Potsdam: aerial tiles at 5 cm in RGB, IRRG or RGBIR, with labels of six classes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedrs_lightning.data.archives.archive import Split
from fedrs_lightning.data.archives.folders import entries, existing_folder, nothing_found, walk
from fedrs_lightning.data.archives.isprs.archive import ISPRSArchive
from fedrs_lightning.data.archives.isprs.files import LABEL_HINT, Clutter, ConvertedFiles, LabelSet, converted_tree
from fedrs_lightning.data.rasters.rows import GEOTIFF, open_rows
from fedrs_lightning.errors import ConfigError, DataError, one_of

if TYPE_CHECKING:
    from fedrs_lightning.data.check.report import Report

# fmt: off
TRAIN = (
    "2_10", "2_11", "2_12", "3_10", "3_11", "3_12", "4_10", "4_11", "4_12", "5_10", "5_11", "5_12",
    "6_7", "6_8", "6_9", "6_10", "6_11", "6_12", "7_7", "7_8", "7_9", "7_10", "7_11", "7_12",
)
TEST = (
    "2_13", "2_14", "3_13", "3_14", "4_13", "4_14", "4_15", "5_13", "5_14", "5_15", "6_13", "6_14", "6_15", "7_13",
)
# fmt: on
DEPTH = 3  # levels below the root at which files may lie: zips sometimes nest a second folder of the same name
SUFFIX = {"rgb": "RGB", "irrg": "IRRG", "rgbir": "RGBIR"}
ORDER = {"rgb": (0, 1, 2), "irrg": (0, 1, 2), "rgbir": (0, 1, 2, 3)}
BLENDED = "4_12"
EXPECTED = (
    "2_Ortho_RGB/top_potsdam_2_10_RGB.tif (or 3_Ortho_IRRG, 4_Ortho_RGBIR), or img_dir/ and ann_dir/ of a converted set"
)

Modality = Literal["rgb", "irrg", "rgbir"]


@dataclass
class PotsdamFiles:
    """Files of a Potsdam folder.

    Attributes:
        folder: the root.
        images: modality to tile to file.
        labels: `full` and `eroded` to tile to files, in order of preference.
        converted: pieces of MMSegmentation's converted form, instead of the above.
        unknown: files named like tiles that are none of the 38.
    """

    folder: Path
    images: dict[str, dict[str, Path]] = field(default_factory=lambda: {name: {} for name in SUFFIX})
    labels: dict[str, dict[str, list[Path]]] = field(default_factory=lambda: {"full": {}, "eroded": {}})
    converted: ConvertedFiles | None = None
    unknown: list[Path] = field(default_factory=list)

    def label_copies(self, kind: str, tile: str) -> list[Path]:
        """Label files of a tile in order of preference; `kind` is full or eroded."""
        return self.labels[kind].get(tile, [])

    def labelled(self) -> set[str]:
        """Tiles that have a label of any kind."""
        return {tile for files in self.labels.values() for tile in files}


def list_files(root: str | os.PathLike[str]) -> PotsdamFiles:
    """Find images and labels by their names, wherever they lie up to three levels below the root.

    Raises:
        DataError: no such folder, or nothing in it; archives that are still packed are named.
    """
    top = existing_folder(root, "Potsdam")
    found = PotsdamFiles(top)
    for path in walk(top, DEPTH):
        match = re.fullmatch(r"top_potsdam_(\d+_\d+)_(RGBIR|RGB|IRRG|label|label_noBoundary)", path.stem)
        if match is None or path.suffix.lower() not in GEOTIFF:
            continue
        tile, kind = match[1], match[2]
        if tile not in TRAIN + TEST:
            found.unknown.append(path)
        elif kind.startswith("label"):
            found.labels["eroded" if kind.endswith("noBoundary") else "full"].setdefault(tile, []).append(path)
        else:
            found.images[kind.lower()].setdefault(tile, path)
    for copies in found.labels["full"].values():  # the copy of 4_12 in 5_Labels_all is no mask
        copies.sort(key=lambda path: ("participants" not in path.parent.name, str(path)))
    if not any(found.images.values()):
        found.converted = converted_tree(top, r"\d+_\d+")
        if found.converted is None or not found.converted.pieces:
            inside = [
                path
                for path in entries(top.parent)
                if path == top and re.match(r"\d_Ortho|\d_Labels|img_dir|ann_dir", top.name)
            ]
            hint = f" (set root to the folder above, {top.parent}?)" if inside else ""
            raise nothing_found(top, EXPECTED + hint, DEPTH)
    return found


def irrg_order(irrg: Path, reference: Path) -> Literal["IR, R, G", "IR, G, B", "unclear"]:
    """What the channels of an IRRG file are, by comparison with the RGB or RGBIR file of the tile.

    Args:
        irrg: delivered as IR, R, G.
        reference: its first three bands are red, green, blue.
    """
    with open_rows(irrg) as first, open_rows(reference) as second:
        if (first.height, first.width) != (second.height, second.width):
            raise DataError(f"{irrg}: has another size than {reference.name}; replace both from the archive")
        start = first.height // 2
        stop = min(start + 64, first.height)
        pixels, colours = first.rows(start, stop).astype(np.int16), second.rows(start, stop).astype(np.int16)
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

    title, official, example = "Potsdam", (TRAIN, TEST), "4_12"

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
        one_of("modality", modality, SUFFIX)
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
        return super().settings() | {"read_from": SUFFIX[self._source], "gsd": "0.05 m"}

    @property
    def _source(self) -> str:
        return "rgbir" if self.modality == "irrg" and self.irrg_from == "rgbir" else self.modality

    @property
    def _order(self) -> tuple[int, ...]:
        return (3, 0, 1) if self._source != self.modality else ORDER[self.modality]

    def _list(self) -> PotsdamFiles:
        found = list_files(self.root)
        if found.converted and self._source == "rgbir":
            raise ConfigError(
                "RGBIR is asked for, but converted PNGs have three bands; set modality to what they were converted from"
            )
        return found

    def _images(self, found: PotsdamFiles) -> tuple[Mapping[str, Path], dict[str, Any]]:
        images = found.images[self._source]
        if not images:
            others = ", ".join(SUFFIX[name] for name, files in found.images.items() if files)
            raise DataError(
                f"{found.folder}: holds no {SUFFIX[self._source]} tiles, but {others}; set modality or irrg_from"
            )
        return images, {"irrg_order": self._channel_order(found) if self._source == "irrg" else None}

    def check(self, deep: bool = False, sample: int | None = None, seed: int = 0) -> Report:
        """See `Archive.check`."""
        from fedrs_lightning.data.archives.isprs.check import check_potsdam

        return check_potsdam(self, deep, sample, seed)

    def label_hint(self, tile: str) -> str:
        """See `ISPRSArchive.label_hint`."""
        if tile != BLENDED:
            return LABEL_HINT
        return (
            "in some copies of 5_Labels_all this label is the mask blended over the photo; put the one of "
            f"5_Labels_for_participants into the folder, or set skip_tiles: ['{BLENDED}']"
        )

    def _channel_order(self, found: PotsdamFiles) -> str:
        for reference in ("rgb", "rgbir"):
            both = [
                tile for tile in found.images["irrg"] if tile in found.images[reference] and tile not in self.skip_tiles
            ]
            if both:
                path = found.images["irrg"][both[0]]
                order = irrg_order(path, found.images[reference][both[0]])
                if order == "IR, G, B" and self.irrg_order == "check":
                    raise DataError(
                        f"{path}: its channels are IR, G, B and not IR, R, G (compared with "
                        f"{found.images[reference][both[0]].name}); "
                        "set irrg_from: rgbir, which needs 4_Ortho_RGBIR, or irrg_order: accept to use it as it is"
                    )
                return order
        return "not checked: no RGB or RGBIR tile to compare with"
