"""ISPRS Vaihingen: aerial tiles of near infrared, red and green at 9 cm, with labels of six classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedrs_lightning.data.archives.archive import Split
from fedrs_lightning.data.archives.isprs.archive import Clutter, ISPRSArchive, LabelSet
from fedrs_lightning.data.archives.isprs.files import ISPRSFiles
from fedrs_lightning.data.archives.isprs.pseudo_blue import fitted, pseudo_rgb
from fedrs_lightning.data.rasters.rows import open_rows
from fedrs_lightning.data.rasters.tiles import Mix
from fedrs_lightning.errors import ConfigError, DataError, one_of

# fmt: off
TRAIN = (
    "1", "3", "5", "7", "11", "13", "15", "17", "21", "23", "26", "28", "30", "32", "34", "37",
)
TEST = (
    "2", "4", "6", "8", "10", "12", "14", "16", "20", "22", "24", "27", "29", "31", "33", "35", "38",
)
# fmt: on
FACTOR = 1.8  # 9 cm to 5 cm
LABEL_COLOURS = 10  # a label has at most about this many
NO_RGB = (
    "modality rgb: Vaihingen has no blue band, so there is no true RGB version of it. Choose one of: "
    "potsdam_rgb+vaihingen_irrg (Potsdam modality rgb with Vaihingen modality irrg, real bands); "
    "vaihingen_pseudo_rgb (modality pseudo_rgb, blue estimated from Potsdam RGBIR tiles); "
    "vaihingen_permuted (modality permuted, the same bands in the order R, G, IR)"
)


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
    unit, prefix, numbered, folders = "areas", "area", r"\d+", ("root", "rgbir_root")
    kinds, named = {"IRRG": 3}, r"top_mosaic_09cm_area(\d+)(_noBoundary)?"
    expected = "top/top_mosaic_09cm_area1.tif with labels of the same names elsewhere"

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
            needed = "rgbir_root is needed for modality pseudo_rgb, and only for it"
            raise ConfigError(f"{needed}: the Potsdam folder with 4_Ortho_RGBIR")
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
        return {"pseudo_rgb": "pseudo-RGB, blue estimated", "permuted": "channel-permuted IRRG"}.get(self.modality)

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

    def _place(self, found: ISPRSFiles, path: Path, tile: str, kind: str | None) -> None:
        """Images and labels have the same file name: the folder tells them apart, and in doubt the content."""
        folder = path.parent.name.lower()
        label = kind is not None or folder.startswith("gts") or "ground_truth" in folder
        if not label and folder != "top":
            label = looks_like_label(path)
            found.unclear[str(path.relative_to(found.folder))] = "label" if label else "image"
        if label:
            found.labels["eroded" if kind or "eroded" in folder else "full"][tile].append(path)
        elif tile in self.known:
            found.images["IRRG"][tile].append(path)
        else:
            found.unknown.append(path)

    def _facts(self, found: ISPRSFiles) -> dict[str, Any]:
        return {"told_apart_by_content": found.unclear}

    @property
    def _order(self) -> tuple[int, ...]:
        return (1, 2, 0) if self.modality == "permuted" else (0, 1, 2)

    @property
    def _factor(self) -> float:
        return FACTOR if self.gsd == "5cm" else 1.0

    def _mix(self) -> Mix:
        if self.modality != "pseudo_rgb":
            return None
        if self._blue is None:
            raise DataError("Vaihingen pseudo_rgb: the blue band is not fitted yet; call prepare() first")
        return pseudo_rgb(self._blue)


def looks_like_label(path: Path) -> bool:
    """Whether the middle rows of a raster hold at most ten colours."""
    with open_rows(path) as raster:
        start = raster.height // 2
        pixels = raster.rows(start, min(start + 32, raster.height))
    return len(np.unique(pixels.reshape(pixels.shape[0], -1), axis=1).T) <= LABEL_COLOURS
