"""ISPRS Vaihingen: aerial tiles of near infrared, red and green at 9 cm, with labels of six classes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedrs_lightning.data.archives.archive import Split
from fedrs_lightning.data.archives.folders import existing_folder, nothing_found, walk
from fedrs_lightning.data.archives.isprs.archive import ISPRSArchive
from fedrs_lightning.data.archives.isprs.files import Clutter, ConvertedFiles, LabelSet, converted_tree
from fedrs_lightning.data.archives.isprs.pseudo_blue import fitted, pseudo_rgb
from fedrs_lightning.data.rasters.rows import GEOTIFF, open_rows
from fedrs_lightning.errors import ConfigError, DataError, one_of

if TYPE_CHECKING:
    from fedrs_lightning.data.check.report import Report

# fmt: off
TRAIN = (
    "1", "3", "5", "7", "11", "13", "15", "17", "21", "23", "26", "28", "30", "32", "34", "37",
)
TEST = (
    "2", "4", "6", "8", "10", "12", "14", "16", "20", "22", "24", "27", "29", "31", "33", "35", "38",
)
# fmt: on
DEPTH = 3
NATIVE_GSD = 0.09  # metres
FACTOR = 1.8  # 9 cm to 5 cm
LABEL_COLOURS = 10  # a label has at most about this many
EXPECTED = (
    "top/top_mosaic_09cm_area1.tif with labels of the same names elsewhere, or img_dir/ and ann_dir/ of a converted set"
)
NO_RGB = (
    "modality rgb: Vaihingen has no blue band, so there is no true RGB version of it. Choose one of: "
    "potsdam_rgb+vaihingen_irrg (Potsdam modality rgb with Vaihingen modality irrg, real bands); "
    "vaihingen_pseudo_rgb (modality pseudo_rgb, blue estimated from Potsdam RGBIR tiles); "
    "vaihingen_permuted (modality permuted, the same bands in the order R, G, IR)"
)


@dataclass
class VaihingenFiles:
    """Files of a Vaihingen folder.

    Attributes:
        folder: the root.
        images: area to file.
        labels: `full` and `eroded` to area to file.
        converted: pieces of MMSegmentation's converted form, instead of the above.
        unknown: images that are none of the 33 areas.
        unclear: files in no telling folder whose content decided, with what they were taken for.
    """

    folder: Path
    images: dict[str, Path] = field(default_factory=dict)
    labels: dict[str, dict[str, Path]] = field(default_factory=lambda: {"full": {}, "eroded": {}})
    converted: ConvertedFiles | None = None
    unknown: list[Path] = field(default_factory=list)
    unclear: dict[str, str] = field(default_factory=dict)

    def label_copies(self, kind: str, area: str) -> list[Path]:
        """Label file of an area, or nothing; `kind` is full or eroded."""
        return [self.labels[kind][area]] if area in self.labels[kind] else []

    def labelled(self) -> set[str]:
        """Areas that have a label of any kind."""
        return {area for files in self.labels.values() for area in files}


def list_files(root: str | os.PathLike[str]) -> VaihingenFiles:
    """Find images and labels. Both have the same file name: the folder tells them apart, and in doubt the content.

    Raises:
        DataError: no such folder, or nothing in it; archives that are still packed are named.
    """
    top = existing_folder(root, "Vaihingen")
    found = VaihingenFiles(top)
    for path in walk(top, DEPTH):
        match = re.fullmatch(r"top_mosaic_09cm_area(\d+)(_noBoundary)?", path.stem)
        if match is None or path.suffix.lower() not in GEOTIFF:
            continue
        area, folder = match[1], path.parent.name.lower()
        if match[2]:
            found.labels["eroded"].setdefault(area, path)
            continue
        if folder == "top":
            label = False
        elif folder.startswith("gts") or "ground_truth" in folder:
            label = True
        else:
            label = looks_like_label(path)
            found.unclear[str(path.relative_to(top))] = "label" if label else "image"
        if label:
            found.labels["eroded" if "eroded" in folder else "full"].setdefault(area, path)
        elif area in TRAIN + TEST:
            found.images.setdefault(area, path)
        else:
            found.unknown.append(path)
    if not found.images and not found.unknown:
        found.converted = converted_tree(top, r"area\d+")
        if found.converted is None or not found.converted.pieces:
            raise nothing_found(top, EXPECTED, DEPTH)
    return found


def looks_like_label(path: Path) -> bool:
    """Whether the middle rows of a raster hold at most ten colours."""
    with open_rows(path) as raster:
        start = raster.height // 2
        pixels = raster.rows(start, min(start + 32, raster.height))
    return len(np.unique(pixels.reshape(pixels.shape[0], -1), axis=1).T) <= LABEL_COLOURS


class Vaihingen(ISPRSArchive):
    """ISPRS Vaihingen (2D Semantic Labeling Contest): 33 areas of varying size at 9 cm, near infrared, red, green.

    Research use, on request from ISPRS Commission II; no redistribution. Classes: impervious surfaces, building, low
    vegetation, tree, car; clutter is ignored by default. 16 official training and 17 official test areas; those of
    them that are in the folder are used.

    Args:
        root: folder with `top/` and the labels, or MMSegmentation's converted form. Never written to.
        modality: `irrg`, the delivered bands; `pseudo_rgb`, red and green with a blue estimated from near infrared, red
            and green; `permuted`, the delivered bands in the order R, G, IR. `rgb` does not exist, and the error says
            why.
        rgbir_root: Potsdam folder whose RGBIR training tiles fit the blue of `pseudo_rgb`.
        gsd: `5cm` resamples by 1.8 (image bicubic and clipped, label nearest on ids), so that crops cover the same
            ground as those of Potsdam; `native` keeps 9 cm.
        labels_train: as for Potsdam.
        labels_eval: as for Potsdam.
        clutter: as for Potsdam.
        skip_tiles: areas to leave out, such as '11'.
        split: `official`, or `by_position` as for Potsdam.
    """

    title, official, example = "Vaihingen", (TRAIN, TEST), "'11'"
    unit, prefix, folders = "areas", "area", ("root", "rgbir_root")

    def __init__(
        self,
        root: str = ".",
        modality: Literal["irrg", "pseudo_rgb", "permuted", "rgb"] = "irrg",
        rgbir_root: str | None = None,
        gsd: Literal["5cm", "native"] = "5cm",
        labels_train: LabelSet = "auto",
        labels_eval: LabelSet = "auto",
        clutter: Clutter = "ignore",
        skip_tiles: list[str] | None = None,
        split: Split = "official",
    ) -> None:
        if modality == "rgb":
            raise ConfigError(NO_RGB)
        one_of("modality", modality, ("irrg", "pseudo_rgb", "permuted"))
        one_of("gsd", gsd, ("5cm", "native"))
        if (modality == "pseudo_rgb") != (rgbir_root is not None):
            raise ConfigError(
                "rgbir_root is needed for modality pseudo_rgb, and only for it: the Potsdam folder with 4_Ortho_RGBIR"
            )
        self.root, self.modality, self.rgbir_root, self.gsd = root, modality, rgbir_root, gsd
        self._keep(labels_train, labels_eval, clutter, skip_tiles, split)
        self._blue: tuple[float, ...] | None = None

    @property
    def band_names(self) -> tuple[str, ...]:
        """By the modality."""
        known = {"irrg": ("IR", "R", "G"), "permuted": ("R", "G", "IR"), "pseudo_rgb": ("R", "G", "estimated B")}
        return known[self.modality]

    @property
    def honest_name(self) -> str | None:
        """What a result must say about bands that are not the delivered ones."""
        return {"pseudo_rgb": "pseudo-RGB, blue estimated", "permuted": "channel-permuted IRRG", "irrg": None}[
            self.modality
        ]

    def prepare(self, cache: Path) -> None:
        """Fit the blue band of `pseudo_rgb`, or read the fit of an earlier run."""
        if self.rgbir_root is not None:
            self._blue = fitted(self.rgbir_root, cache)

    def settings(self) -> dict[str, Any]:
        """See `Archive.settings`. After `prepare` it holds the coefficients of the blue band."""
        resampling = "image bicubic (a = -0.5) clipped to 0..255, label nearest on ids" if self.gsd == "5cm" else None
        return super().settings() | {
            "honest_name": self.honest_name,
            "blue_from_ir_r_g_1": None if self._blue is None else list(self._blue),
            "gsd": "0.05 m" if self.gsd == "5cm" else "0.09 m",
            "native_gsd": "0.09 m",
            "resampling": resampling,
        }

    def check(self, deep: bool = False, sample: int | None = None, seed: int = 0) -> Report:
        """See `Archive.check`."""
        from fedrs_lightning.data.archives.isprs.check import check_vaihingen

        return check_vaihingen(self, deep, sample, seed)

    def _list(self) -> VaihingenFiles:
        return list_files(self.root)

    def _images(self, found: VaihingenFiles) -> tuple[Mapping[str, Path], dict[str, Any]]:
        return found.images, {"told_apart_by_content": found.unclear}

    @property
    def _order(self) -> tuple[int, ...]:
        return (1, 2, 0) if self.modality == "permuted" else (0, 1, 2)

    @property
    def _factor(self) -> float:
        return FACTOR if self.gsd == "5cm" else 1.0

    def _mix(self) -> Callable[[np.ndarray], np.ndarray] | None:
        if self.modality != "pseudo_rgb":
            return None
        if self._blue is None:
            raise DataError("Vaihingen pseudo_rgb: the blue band is not fitted yet; call prepare() first")
        return pseudo_rgb(self._blue)
