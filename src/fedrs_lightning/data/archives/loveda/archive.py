"""LoveDA: urban and rural land cover of 0.3 m images in seven classes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedrs_lightning.data.archives.archive import Split, TileArchive, TileListing
from fedrs_lightning.data.archives.folders import entries, existing_folder, nothing_found, synthetic_facts
from fedrs_lightning.data.rasters.class_tables import LOVEDA, LOVEDA_SHIFTED
from fedrs_lightning.data.rasters.tiles import Reading, Tile, by_position
from fedrs_lightning.errors import DataError, one_of

if TYPE_CHECKING:
    from fedrs_lightning.data.check.report import Report

Key = tuple[str, str]
Table = dict[Key, dict[int, Path]]

RANGES: dict[Key, tuple[int, int]] = {
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
    images: Table = field(default_factory=lambda: {key: {} for key in RANGES})
    masks: Table = field(default_factory=lambda: {key: {} for key in RANGES})
    variant: str = "official"
    misplaced: list[Path] = field(default_factory=list)
    odd: list[Path] = field(default_factory=list)

    def numbered(self, folder: Path) -> Iterator[tuple[int, Path]]:
        """Ids and files of a folder; remembers other names as odd."""
        for path in entries(folder) if folder.is_dir() else ():
            if path.suffix.lower() == ".png" and path.stem.isdigit():
                yield int(path.stem), path
            elif path.suffix.lower() == ".png":
                self.odd.append(path)

    def place(self, table: Table, key: Key, number: int, path: Path) -> None:
        """Put a file into a table, and remember whether its id belongs there."""
        first, last = RANGES[key]
        if not first <= number <= last:
            self.misplaced.append(path)
        table[key][number] = path

    def faults(self, areas: Collection[str] = ("Rural", "Urban")) -> Iterator[str]:
        """Odd names, and images without mask and masks without image of some areas."""
        yield from (f"{path}: is not named <id>.png; rename it or move it out of the folder" for path in self.odd)
        for key in RANGES:
            images, masks = self.images[key], self.masks[key]
            for number in sorted(images.keys() ^ masks.keys()) if key[1] in areas else ():
                path, kind = (images[number], "mask") if number in images else (masks[number], "image")
                yield f"{path}: has no {kind} of the same id; unpack the archive again, or remove it"


def list_files(root: str | os.PathLike[str]) -> LoveDAFiles:
    """Find images and masks.

    In the converted form Urban and Rural lie together; the official id ranges tell them apart.

    Raises:
        DataError: no such folder, or nothing in it; archives that are still packed are named.
    """
    top = existing_folder(root, "LoveDA")
    found = LoveDAFiles(top)
    for base in _levels(top, DEPTH):
        for part, area in RANGES:
            for kind, table in (("images_png", found.images), ("masks_png", found.masks)):
                for number, path in found.numbered(base / part / area / kind):
                    if number in table[part, area]:
                        also = f"also as {table[part, area][number]}"
                        raise DataError(f"{path}: id {number} is there twice, {also}; remove one tree")
                    found.place(table, (part, area), number, path)
    for base in _levels(top, 1) if not any(found.images.values()) else ():
        for part, name in (("Train", "train"), ("Val", "val")):
            for kind, table in (("img_dir", found.images), ("ann_dir", found.masks)):
                for number, path in found.numbered(base / kind / name):
                    area = "Rural" if number <= RANGES[part, "Rural"][1] else "Urban"
                    found.place(table, (part, area), number, path)
                    found.variant = "converted by MMSegmentation"
    if not any(found.images.values()):
        if top.name in ("Train", "Val", "Urban", "Rural"):
            raise DataError(f"{top}: is a part of LoveDA; set root to the folder that holds Train and Val")
        raise nothing_found(top, EXPECTED, DEPTH)
    return found


def _levels(top: Path, depth: int) -> Iterator[Path]:
    yield top
    for path in entries(top) if depth else ():
        if path.is_dir() and path.name not in ("images_png", "masks_png", "img_dir", "ann_dir"):
            yield from _levels(path, depth - 1)


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
        chosen = {"area": self.area, "mask_values": self.mask_values, "split": self.split}
        return super().settings() | chosen | {"gsd": "0.3 m"}

    def listing(self) -> TileListing:
        """See `TileArchive.listing`."""
        found = list_files(self.root)
        areas = ["Rural", "Urban"] if self.area == "both" else [self.area.capitalize()]
        for fault in found.faults(areas):
            raise DataError(fault)
        if found.misplaced:
            where = f"{found.misplaced[0]}: its id is outside the official range of its folder"
            warnings.warn(f"{where} ({len(found.misplaced)} files)", stacklevel=2)
        table, wrong = LOVEDA, "values above 7"
        if self.mask_values == "shifted":
            table, wrong = LOVEDA_SHIFTED, "values outside 0 to 6 and 255"
        reading = Reading((0, 1, 2), table, VALUES_HINT, strict=wrong)  # one wrong pixel means a wrong file
        train, test = list[Tile](), list[Tile]()
        for (part, area), images in found.images.items():
            tiles, masks = train if part == "Train" else test, found.masks[part, area]
            if area in areas:
                tiles += [reading.tile(str(number), images[number], masks[number]) for number in sorted(images)]
        if self.split == "by_position":
            train, test = by_position(train)
        if not train:
            raise DataError(f"{found.folder}: no training image of area {self.area}; expected {EXPECTED}")
        facts = {
            "variant": found.variant,
            "test_set": "the last quarter of each training image" if self.split == "by_position" else "Val",
            "outside_official_ranges": len(found.misplaced),
            "synthetic": synthetic_facts(found.folder),
        }
        return TileListing(found.folder, train, test, facts)

    def _check(self, report: Report, sample: int | None, seed: int) -> None:
        from fedrs_lightning.data.archives.loveda.check import check_loveda

        check_loveda(report, self, sample, seed)
