"""LoveDA: urban and rural land cover of 0.3 m images in seven classes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedrs_lightning.data.archives.archive import Split, TileArchive, TileListing
from fedrs_lightning.data.archives.folders import entries, existing_folder, nothing_found, synthetic_facts
from fedrs_lightning.data.archives.isprs.files import check_image, check_sizes
from fedrs_lightning.data.rasters.class_tables import LOVEDA, LOVEDA_SHIFTED, LabelDecoder
from fedrs_lightning.data.rasters.rows import Bands, Mapped, Rows, open_rows
from fedrs_lightning.data.rasters.tiles import OpenTile, Tile, by_position
from fedrs_lightning.errors import DataError, one_of

if TYPE_CHECKING:
    from fedrs_lightning.data.check.report import Report

RANGES = {
    ("Train", "Rural"): (0, 1365),
    ("Train", "Urban"): (1366, 2521),
    ("Val", "Rural"): (2522, 3513),
    ("Val", "Urban"): (3514, 4190),
}
"""First and last official id."""

DEPTH = 3
EXPECTED = (
    "Train/Urban/images_png and masks_png, Train/Rural, Val/Urban, Val/Rural; or a converted img_dir/ and ann_dir/"
)
VALUES_HINT = "LoveDA masks hold 0 (no-data) to 7; replace it from the archive"


@dataclass
class LoveDAFiles:
    """Files of a LoveDA folder.

    Attributes:
        folder: the root.
        images: (Train or Val, Urban or Rural) to id to file.
        masks: the same for masks.
        variant: `official` or `converted by MMSegmentation`.
        misplaced: files whose id is outside the official range of their folder.
        odd: PNGs whose names are not ids.
    """

    folder: Path
    images: dict[tuple[str, str], dict[int, Path]] = field(default_factory=lambda: {key: {} for key in RANGES})
    masks: dict[tuple[str, str], dict[int, Path]] = field(default_factory=lambda: {key: {} for key in RANGES})
    variant: str = "official"
    misplaced: list[Path] = field(default_factory=list)
    odd: list[Path] = field(default_factory=list)

    def orphans(self) -> list[Path]:
        """Images without mask and masks without image."""
        found = []
        for key in RANGES:
            images, masks = self.images[key], self.masks[key]
            found += [{**images, **masks}[number] for number in sorted(images.keys() ^ masks.keys())]
        return found


def list_files(root: str | os.PathLike[str]) -> LoveDAFiles:
    """Find images and masks.

    In the converted form Urban and Rural lie together; the official id ranges tell them apart.

    Raises:
        DataError: no such folder, or nothing in it; archives that are still packed are named.
    """
    top = existing_folder(root, "LoveDA")
    found = LoveDAFiles(top)
    for base in _levels(top, DEPTH):
        for (part, area), (first, last) in RANGES.items():
            for kind, table in (("images_png", found.images), ("masks_png", found.masks)):
                for number, path in _numbered(base / part / area / kind, found.odd).items():
                    if not first <= number <= last:
                        found.misplaced.append(path)
                    if number in table[part, area]:
                        raise DataError(
                            f"{path}: id {number} is there twice, also as {table[part, area][number]}; remove one tree"
                        )
                    table[part, area][number] = path
    if not any(found.images.values()):
        _converted(found)
    if not any(found.images.values()):
        if top.name in ("Train", "Val", "Urban", "Rural"):
            raise DataError(f"{top}: is a part of LoveDA; set root to the folder that holds Train and Val")
        raise nothing_found(top, EXPECTED, DEPTH)
    return found


def _levels(top: Path, depth: int) -> Iterator[Path]:
    yield top
    if depth > 0:
        for path in entries(top):
            if path.is_dir() and path.name not in ("images_png", "masks_png", "img_dir", "ann_dir"):
                yield from _levels(path, depth - 1)


def _numbered(folder: Path, odd: list[Path]) -> dict[int, Path]:
    if not folder.is_dir():
        return {}
    pictures = [path for path in entries(folder) if path.suffix.lower() == ".png"]
    odd += [path for path in pictures if not path.stem.isdigit()]
    return {int(path.stem): path for path in pictures if path.stem.isdigit()}


def _converted(found: LoveDAFiles) -> None:
    for base in _levels(found.folder, 1):
        for part, name in (("Train", "train"), ("Val", "val")):
            for kind, table in (("img_dir", found.images), ("ann_dir", found.masks)):
                for number, path in _numbered(base / kind / name, found.odd).items():
                    area = "Rural" if number <= RANGES[part, "Rural"][1] else "Urban"
                    first, last = RANGES[part, area]
                    if not first <= number <= last:
                        found.misplaced.append(path)
                    table[part, area][number] = path
                    found.variant = "converted by MMSegmentation"


def check_mask(path: Path, raster: Rows) -> None:
    """Refuse a mask that is not a single band of class numbers."""
    if raster.bands != 1 or raster.dtype != "uint8":
        raise DataError(
            f"{path}: has {raster.bands} bands of {raster.dtype}; a LoveDA mask is one band of class numbers 0 to 7, "
            "this is a coloured or converted copy, replace it from the archive"
        )


class LoveDA(TileArchive):
    """LoveDA (Wang et al., 2021, doi:10.5281/zenodo.5706578): 1024 x 1024 RGB images at 0.3 m of three Chinese cities.

    CC BY-NC-SA 4.0, academic use; Google Earth terms. Classes: background (scored like any other), building, road,
    water, barren, forest, agriculture; no-data is 255. Test masks are not public: Val is the test set.

    Args:
        root: folder that holds `Train` and `Val`, or MMSegmentation's converted form. Never written to.
        area: `urban`, `rural`, each a domain of its own, or `both`.
        mask_values: `official` reads 0 (no-data), 1 to 7; `shifted` reads masks that were shifted already, 0 to 6 with
            255 for no-data.
        split: `official`, or `by_position`, for a few images: the first three quarters of each training image for
            training and the last quarter for testing.
    """

    class_names, band_names = LOVEDA.names, ("R", "G", "B")  # background is scored like any other class

    def __init__(
        self,
        root: str,
        area: Literal["urban", "rural", "both"] = "both",
        mask_values: Literal["official", "shifted"] = "official",
        split: Split = "official",
    ) -> None:
        one_of("area", area, ("urban", "rural", "both"))
        one_of("mask_values", mask_values, ("official", "shifted"))
        one_of("split", split, ("official", "by_position"))
        self.root, self.area, self.mask_values, self.split = root, area, mask_values, split

    @property
    def ground(self) -> str:
        """The folder and area."""
        return f"{super().ground} {self.area}"

    def settings(self) -> dict[str, Any]:
        """See `Archive.settings`."""
        return super().settings() | {
            "area": self.area,
            "mask_values": self.mask_values,
            "split": self.split,
            "gsd": "0.3 m",
        }

    def listing(self) -> TileListing:
        """See `TileArchive.listing`."""
        found = list_files(self.root)
        areas = ["Rural", "Urban"] if self.area == "both" else [self.area.capitalize()]
        if found.odd:
            raise DataError(f"{found.odd[0]}: is not named <id>.png; rename it or move it out of the folder")
        wrong = [path for path in found.orphans() if set(areas) & set(path.parts) or found.variant != "official"]
        if wrong:
            kind = "image" if {"masks_png", "ann_dir"} & set(wrong[0].parts) else "mask"
            raise DataError(f"{wrong[0]}: has no {kind} of the same id; unpack the archive again, or remove it")
        if found.misplaced:
            warnings.warn(
                f"{found.misplaced[0]}: its id is outside the official range of its folder ({len(found.misplaced)} "
                "files)",
                stacklevel=2,
            )
        parts = {}
        for part in ("Train", "Val"):
            pairs = {(part, area): sorted(found.images[part, area]) for area in areas}
            wanted = [(key, number) for key, ids in pairs.items() for number in ids]
            parts[part] = [
                self._tile(number, found.images[key][number], found.masks[key][number]) for key, number in wanted
            ]
        train, test = by_position(parts["Train"]) if self.split == "by_position" else (parts["Train"], parts["Val"])
        if not train:
            raise DataError(f"{found.folder}: no training image of area {self.area}; expected {EXPECTED}")
        facts = {
            "variant": found.variant,
            "test_set": "the last quarter of each training image" if self.split == "by_position" else "Val",
            "outside_official_ranges": len(found.misplaced),
            "synthetic": synthetic_facts(found.folder),
        }
        return TileListing(found.folder, train, test, facts)

    def check(self, deep: bool = False, sample: int | None = None, seed: int = 0) -> Report:
        """See `Archive.check`."""
        from fedrs_lightning.data.archives.loveda.check import check_loveda

        return check_loveda(self, deep, sample, seed)

    def _tile(self, number: int, image_path: Path, mask_path: Path) -> Tile:
        with open_rows(image_path) as image, open_rows(mask_path) as mask:
            check_image(image_path, image, 3, 3)
            check_mask(mask_path, mask)
            check_sizes(image_path, image, mask_path, mask)
            size = (image.height, image.width)
        return Tile(str(number), (image_path, mask_path), _Pair(image_path, mask_path, self.mask_values), size)


@dataclass(frozen=True)
class _Pair:
    image: Path
    mask: Path
    values: str

    @contextmanager
    def _open(self) -> Iterator[OpenTile]:
        with open_rows(self.image) as image, open_rows(self.mask) as mask:
            decoder = _Strict(LOVEDA if self.values == "official" else LOVEDA_SHIFTED, self.mask, VALUES_HINT)
            yield OpenTile(Bands(image, (0, 1, 2)), Mapped(mask, decoder, 1, "uint8"), decoder.judge)

    def __call__(self):  # type: ignore[no-untyped-def]
        return self._open()


class _Strict(LabelDecoder):
    """A mask has no stray values: one wrong pixel means a wrong file."""

    def judge(self) -> int:
        if self.unknown:
            kind = "above 7" if self.table is LOVEDA else "outside 0 to 6 and 255"
            raise DataError(f"{self.path}: {self.unknown} of {self.pixels} pixels have values {kind}; {self.hint}")
        return 0
