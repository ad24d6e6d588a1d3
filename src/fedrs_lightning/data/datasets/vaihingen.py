"""ISPRS Vaihingen: aerial tiles of near infrared, red and green at 9 cm, with labels of six classes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedrs_lightning.data.datasets.isprs import (
    AS_CONVERTED,
    FIVE,
    SIX,
    Clutter,
    ConvertedFiles,
    ConvertedTile,
    LabelSet,
    TileFiles,
    converted_tree,
    index_values,
    palette,
    refuse_orphans,
)
from fedrs_lightning.data.datasets.pseudo_blue import fitted, pseudo_rgb
from fedrs_lightning.data.rasters import GEOTIFF, open_rows
from fedrs_lightning.data.tiles import (
    Split,
    Survey,
    Tile,
    TileDataset,
    by_position,
    existing_folder,
    nothing_found,
    numeric,
    one_of,
    synthetic_facts,
    walk,
)
from fedrs_lightning.errors import ConfigError, DataError

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
EXPECTED = "top/top_mosaic_09cm_area1.tif with labels of the same names elsewhere, or img_dir/ and ann_dir/ of a converted set"
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


class Vaihingen(TileDataset):
    """ISPRS Vaihingen (2D Semantic Labeling Contest): 33 areas of varying size at 9 cm, near infrared, red, green.

    Research use, on request from ISPRS Commission II; no redistribution. Classes: impervious surfaces, building, low
    vegetation, tree, car; clutter is ignored by default. 16 official training and 17 official test areas; those of
    them that are in the folder are used.

    Args:
        root: folder with `top/` and the labels, or MMSegmentation's converted form. Never written to.
        modality: `irrg`, the delivered bands; `pseudo_rgb`, red and green with a blue estimated from near infrared, red
            and green; `permuted`, the delivered bands in the order R, G, IR. `rgb` does not exist, and the error says why.
        rgbir_root: Potsdam folder whose RGBIR training tiles fit the blue of `pseudo_rgb`.
        gsd: `5cm` resamples by 1.8 (image bicubic and clipped, label nearest on ids), so that crops cover the same
            ground as those of Potsdam; `native` keeps 9 cm.
        labels_train: as for Potsdam.
        labels_eval: as for Potsdam.
        clutter: as for Potsdam.
        skip_tiles: areas to leave out, such as '11'.
        split: `official`, or `by_position` as for Potsdam.
    """

    folders = ("root", "rgbir_root")

    def __init__(
        self,
        root: str,
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
        one_of("labels_train", labels_train, ("auto", "full", "eroded"))
        one_of("labels_eval", labels_eval, ("auto", "full", "eroded"))
        one_of("clutter", clutter, ("ignore", "class"))
        one_of("split", split, ("official", "by_position"))
        if (modality == "pseudo_rgb") != (rgbir_root is not None):
            raise ConfigError("rgbir_root is needed for modality pseudo_rgb, and only for it: the Potsdam folder with 4_Ortho_RGBIR")
        self.root, self.modality, self.rgbir_root, self.gsd = root, modality, rgbir_root, gsd
        self.labels_train, self.labels_eval, self.clutter, self.split = labels_train, labels_eval, clutter, split
        self.skip_tiles = tuple(skip_tiles or ())
        for area in self.skip_tiles:
            if area not in TRAIN + TEST:
                raise ConfigError(f"skip_tiles: '{area}' is not one of the 33 Vaihingen areas, which are named like '11'")
        self._blue: tuple[float, ...] | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Five, or six with clutter."""
        return SIX if self.clutter == "class" else FIVE

    @property
    def unscored(self) -> tuple[str, ...]:
        """Clutter, where it is a class."""
        return SIX[5:] if self.clutter == "class" else ()

    @property
    def in_channels(self) -> int:
        """3."""
        return 3

    @property
    def ground(self) -> str:
        """The folder."""
        return f"vaihingen {Path(self.root).expanduser().resolve()}"

    @property
    def honest_name(self) -> str | None:
        """What a result must say about bands that are not the delivered ones."""
        return {"pseudo_rgb": "pseudo-RGB, blue estimated", "permuted": "channel-permuted IRRG", "irrg": None}[self.modality]

    def prepare(self, cache: Path) -> None:
        """Fit the blue band of `pseudo_rgb`, or read the fit of an earlier run."""
        if self.rgbir_root is not None:
            self._blue = fitted(self.rgbir_root, cache)

    def settings(self) -> dict[str, Any]:
        """See `TileDataset.settings`. After `prepare` it holds the coefficients of the blue band."""
        bands = {"irrg": ["IR", "R", "G"], "permuted": ["R", "G", "IR"], "pseudo_rgb": ["R", "G", "estimated B"]}[self.modality]
        resampling = "image bicubic (a = -0.5) clipped to 0..255, label nearest on ids" if self.gsd == "5cm" else None
        return {
            "dataset": "Vaihingen",
            "bands": bands,
            "honest_name": self.honest_name,
            "blue_from_ir_r_g_1": None if self._blue is None else list(self._blue),
            "gsd": "0.05 m" if self.gsd == "5cm" else "0.09 m",
            "native_gsd": "0.09 m",
            "resampling": resampling,
            "clutter": self.clutter,
            "labels": {"train": self.labels_train, "eval": self.labels_eval},
            "split": self.split,
        }

    def survey(self) -> Survey:
        """See `TileDataset.survey`."""
        found = list_files(self.root)
        if found.unknown:
            raise DataError(f"{found.unknown[0]}: is none of the 33 Vaihingen areas; rename it or move it out of the folder")
        train, test, facts = self._converted(found.converted) if found.converted else self._official(found)
        facts |= {"skipped": list(self.skip_tiles), "synthetic": synthetic_facts(found.folder)}
        if self.split == "by_position":
            train, test = by_position(sorted([*train, *test], key=lambda tile: numeric(tile.id)))
        if not train:
            raise DataError(f"{found.folder}: none of the 16 training areas is there; see skip_tiles and root")
        return Survey(train, test, found.folder, facts)

    def _official(self, found: VaihingenFiles) -> tuple[list[Tile], list[Tile], dict[str, Any]]:
        facts: dict[str, Any] = {"variant": "official", "told_apart_by_content": found.unclear}
        parts: list[list[Tile]] = []
        for part, areas, wanted in (("train", TRAIN, self.labels_train), ("eval", TEST, self.labels_eval)):
            present = [area for area in areas if area in found.images and area not in self.skip_tiles]
            eroded = bool(present) and all(area in found.labels["eroded"] for area in present)
            kind = ("eroded" if eroded else "full") if wanted == "auto" else wanted
            facts[f"labels_{part}"] = kind if present else None
            facts[f"absent_{part}"] = [area for area in areas if area not in found.images]
            parts.append([self._tile(found, kind, area) for area in present])
        known = {area for files in found.labels.values() for area in files}
        facts["labels_without_image"] = sorted(known - found.images.keys(), key=numeric)
        return parts[0], parts[1], facts

    def _tile(self, found: VaihingenFiles, kind: str, area: str) -> Tile:
        label = found.labels[kind].get(area)
        if label is None:
            other = "eroded" if kind == "full" else "full"
            there = area in found.labels[other]
            hint = f"set labels_train and labels_eval to {other}" if there else f"unpack the ground truth, or add '{area}' to skip_tiles"
            raise DataError(f"{found.images[area]}: has no {kind} label; {hint}")
        return TileFiles(area, found.images[area], label, self._order, palette(self.clutter), self._mix(), self._factor).tile()

    def _converted(self, converted: ConvertedFiles) -> tuple[list[Tile], list[Tile], dict[str, Any]]:
        refuse_orphans(converted)
        unknown = [name for name in converted.pieces if name.removeprefix("area") not in TRAIN + TEST]
        if unknown:
            first = next(iter(converted.pieces[unknown[0]].values()))[0]
            raise DataError(f"{first}: {unknown[0]} is none of the 33 Vaihingen areas; move its pieces out of the folder")
        parts: list[list[Tile]] = []
        for areas in (TRAIN, TEST):
            present = [area for area in areas if f"area{area}" in converted.pieces and area not in self.skip_tiles]
            pieces = {area: [(box, *files) for box, files in converted.pieces[f"area{area}"].items()] for area in present}
            table = index_values(self.clutter)
            parts.append([ConvertedTile(area, pieces[area], table, self._order, self._factor, self._mix()).tile() for area in present])
        return (
            parts[0],
            parts[1],
            dict(AS_CONVERTED),
        )

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
