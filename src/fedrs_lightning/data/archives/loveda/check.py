"""What a LoveDA folder holds, for `fedrs data check`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedrs_lightning.data.archives.loveda.archive import RANGES, VALUES_HINT, list_files
from fedrs_lightning.data.check.listing import Job, Listing
from fedrs_lightning.data.check.rasters import Look
from fedrs_lightning.data.check.report import Report
from fedrs_lightning.data.rasters.class_tables import LOVEDA

MANY = 4  # masks without agriculture that make a shift likely


def list_loveda(root: str) -> Listing:
    """Images of a LoveDA folder.

    Raises:
        DataError: nothing to look at, or one id twice in the same part.
    """
    found = list_files(root)
    listing = Listing(found.folder, [], LOVEDA.names, (1024, 1024), views=("image", "mask"), after=_shifted)
    for path in found.odd:
        listing.findings.append(("error", f"{path}: is not named <id>.png; rename it or move it out of the folder"))
    for path in found.orphans():
        kind = "image" if {"masks_png", "ann_dir"} & set(path.parts) else "mask"
        listing.findings.append(
            ("error", f"{path}: has no {kind} of the same id; unpack the archive again, or remove it")
        )
    for path in found.misplaced:
        listing.findings.append(
            (
                "warning",
                f"{path}: its id is outside the official range of its folder; was it moved, or renamed by a "
                "conversion?",
            )
        )
    places: dict[int, Path] = {}
    for part, area in RANGES:
        images, masks = found.images[part, area], found.masks[part, area]
        for number in sorted({*images, *masks}):
            if number in images:
                if number in places:
                    listing.findings.append(
                        (
                            "error",
                            f"{images[number]}: id {number} is there twice, also as {places[number]}; ids are unique, "
                            "remove one",
                        )
                    )
                places.setdefault(number, images[number])
            listing.jobs.append(
                Job(
                    str(number),
                    f"{part}/{area}",
                    {"image": (images[number], 3)} if number in images else {},
                    {"mask": (masks[number], LOVEDA, VALUES_HINT)} if number in masks else {},
                )
            )
    return listing


def _shifted(report: Report, seen: Sequence[tuple[Job, dict[str, Look]]], deep: bool) -> None:
    """Masks that hold 0 to 6 and never 7 were probably shifted by one."""
    counted = [looks["mask"] for _, looks in seen if "mask" in looks and looks["mask"].pixels is not None]
    total = sum(look.pixels for look in counted if look.pixels is not None)
    if len(counted) >= MANY and not isinstance(total, int) and total[6] == 0 and total[-1] > 0:
        report.add(
            "warning",
            f"{counted[0].path}: this and the other {len(counted) - 1} masks hold 0 to 6 and never 7; if they were "
            "shifted by one, "
            "set mask_values: shifted, or replace them from the archive",
        )
