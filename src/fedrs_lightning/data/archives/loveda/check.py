"""The check of LoveDA."""

from __future__ import annotations

from pathlib import Path

from fedrs_lightning.data.archives.loveda.archive import RANGES, VALUES_HINT, LoveDA, list_files
from fedrs_lightning.data.check.report import Report
from fedrs_lightning.data.check.tile_files import Examined, FilesOfTile, check_tile_files
from fedrs_lightning.data.rasters.class_tables import LOVEDA

MANY = 4  # masks without agriculture that make a shift likely


def check_loveda(report: Report, archive: LoveDA, sample: int | None, seed: int) -> None:
    """Check a LoveDA folder, both areas, see `Archive.check`."""
    report.unit = "pixels"
    found = list_files(archive.root)
    report.found(found.folder)
    report.add("error", *found.faults())
    for path in found.misplaced:
        remedy = "was it moved, or renamed by a conversion?"
        report.add("warning", f"{path}: its id is outside the official range of its folder; {remedy}")
    places: dict[int, Path] = {}
    tiles = []
    for part, area in RANGES:
        images, masks = found.images[part, area], found.masks[part, area]
        for number in sorted({*images, *masks}):
            photo = {"image": (images[number], 3)} if number in images else {}
            mask = {"mask": (masks[number], LOVEDA, VALUES_HINT)} if number in masks else {}
            if number in images and places.setdefault(number, images[number]) != images[number]:
                also = f"also as {places[number]}; ids are unique, remove one"
                report.add("error", f"{images[number]}: id {number} is there twice, {also}")
            tiles.append(FilesOfTile(str(number), f"{part}/{area}", photo, mask))
    tiles.sort(key=lambda tile: (tile.part, int(tile.id)))
    kinds = ("image", "mask")
    _judge_values(report, check_tile_files(report, tiles, LOVEDA.names, kinds, sample, seed, (1024, 1024)))


def _judge_values(report: Report, examined: Examined) -> None:
    """Masks that hold 0 to 6 and never 7 were probably shifted by one."""
    masks = [files["mask"] for _, files in examined if "mask" in files]
    counted = [(mask.path, mask.pixels) for mask in masks if mask.pixels is not None]
    last, nothing = (sum(int(pixels[place]) for _, pixels in counted) for place in (6, -1))
    if len(counted) >= MANY and last == 0 and nothing > 0:
        remedy = "if they were shifted by one, set mask_values: shifted, or replace them from the archive"
        what = f"this and the other {len(counted) - 1} masks hold 0 to 6 and never 7"
        report.add("warning", f"{counted[0][0]}: {what}; {remedy}")
