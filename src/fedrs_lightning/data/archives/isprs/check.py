"""What a Potsdam or Vaihingen folder holds, for `fedrs data check`."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

from fedrs_lightning.data.archives.folders import walk
from fedrs_lightning.data.archives.isprs import potsdam, vaihingen
from fedrs_lightning.data.archives.isprs.files import ConvertedFiles
from fedrs_lightning.data.check.listing import HINT, Job, Listing
from fedrs_lightning.data.check.rasters import Look
from fedrs_lightning.data.check.report import Report
from fedrs_lightning.data.rasters.class_tables import ISPRS, ISPRS_CONVERTED
from fedrs_lightning.data.rasters.rows import GEOTIFF
from fedrs_lightning.errors import DataError

BLENDED = (
    "in some copies of 5_Labels_all this label is the mask blended over the photo; put the one of "
    "5_Labels_for_participants "
    "into the folder, or set skip_tiles: ['4_12']"
)
PARTICIPANTS = "participants"  # folders of the training labels alone, beside the complete ones


def list_potsdam(root: str, skip: Collection[str] = ()) -> Listing:
    """Tiles of a Potsdam folder, without those to skip.

    Raises:
        DataError: nothing to look at.
    """
    found = potsdam.list_files(root)
    if found.converted is not None:
        return _converted(found.folder, found.converted, potsdam.TRAIN, potsdam.TEST, "", skip)
    listing = Listing(
        found.folder, [], ISPRS.names, (6000, 6000), views=("RGB", "IRRG", "RGBIR", "full label", "eroded label")
    )
    _unknown(listing, found.unknown, "the 38 Potsdam tiles")
    imaged = {tile for files in found.images.values() for tile in files}
    for tile in sorted((imaged | {tile for files in found.labels.values() for tile in files}) - {*skip}):
        images = {
            potsdam.SUFFIX[name]: (files[tile], len(potsdam.ORDER[name]))
            for name, files in found.images.items()
            if tile in files
        }
        hint = BLENDED if tile == potsdam.BLENDED else HINT
        labels = {
            f"{kind} label": (files[tile][0], ISPRS, hint) for kind, files in found.labels.items() if tile in files
        }
        _pair(listing, Job(tile, "train" if tile in potsdam.TRAIN else "test", images, labels))
        for kind, files in found.labels.items():
            twice = [path for path in files.get(tile, [])[1:] if PARTICIPANTS not in files[tile][0].parent.name]
            _twice(listing, twice, files[tile][0] if twice else None, f"the {kind} label of tile {tile}")
    for path in walk(found.folder, potsdam.DEPTH):
        match = re.fullmatch(r"top_potsdam_(\d+_\d+)_(RGBIR|RGB|IRRG)", path.stem)
        if match and path.suffix.lower() in GEOTIFF:
            first = found.images[match[2].lower()].get(match[1])
            if first is not None and first != path:
                _twice(listing, [path], first, f"the {match[2]} image of tile {match[1]}")
    listing.after = _irrg
    return listing


def list_vaihingen(root: str, skip: Collection[str] = ()) -> Listing:
    """Areas of a Vaihingen folder, without those to skip.

    Raises:
        DataError: nothing to look at.
    """
    found = vaihingen.list_files(root)
    if found.converted is not None:
        return _converted(found.folder, found.converted, vaihingen.TRAIN, vaihingen.TEST, "area", skip)
    listing = Listing(found.folder, [], ISPRS.names, None, views=("IRRG", "full label", "eroded label"))
    _unknown(listing, found.unknown, "the 33 Vaihingen areas")
    known = {*vaihingen.TRAIN, *vaihingen.TEST}
    labelled = {area for files in found.labels.values() for area in files}
    for area in sorted(labelled - known):
        path = next(files[area] for files in found.labels.values() if area in files)
        listing.findings.append(
            ("note", f"{path}: is a label of area {area}, which has no image; such labels are not read")
        )
    for area in sorted((set(found.images) | labelled) & known - {*skip}):
        images = {"IRRG": (found.images[area], 3)} if area in found.images else {}
        labels = {f"{kind} label": (files[area], ISPRS, HINT) for kind, files in found.labels.items() if area in files}
        _pair(listing, Job(area, "train" if area in vaihingen.TRAIN else "test", images, labels))
    taken = {
        *found.images.values(),
        *found.unknown,
        *(path for files in found.labels.values() for path in files.values()),
    }
    for path in walk(found.folder, vaihingen.DEPTH):
        match = re.fullmatch(r"top_mosaic_09cm_area(\d+)(_noBoundary)?", path.stem)
        if match is None or path.suffix.lower() not in GEOTIFF or path in taken or PARTICIPANTS in path.parent.name:
            continue
        kind = "eroded label" if match[2] else "image or full label"
        first = found.labels["eroded"].get(match[1]) if match[2] else found.images.get(match[1])
        _twice(listing, [path], first, f"the {kind} of area {match[1]}")
    listing.after = _vegetation
    return listing


def _unknown(listing: Listing, paths: Sequence[Path], what: str) -> None:
    by_tile: dict[str, list[Path]] = {}
    for path in paths:
        by_tile.setdefault("".join(re.findall(r"\d+_?\d*", path.stem)[-1:]), []).append(path)
    for same in by_tile.values():
        more = f" (and {len(same) - 1} more files of it)" if len(same) > 1 else ""
        listing.findings.append(
            ("error", f"{same[0]}{more}: is none of {what}; rename it or move it out of the folder")
        )


def _twice(listing: Listing, paths: Sequence[Path], first: Path | None, what: str) -> None:
    for path in paths:
        also = f", also as {first}" if first is not None else ""
        listing.findings.append(("error", f"{path}: {what} is there twice{also}; remove one of them"))


def _pair(listing: Listing, job: Job) -> None:
    if not job.labels:
        path, _ = next(iter(job.images.values()))
        listing.findings.append(
            (
                "error",
                f"{path}: image of tile {job.id} has no label; unpack the ground truth, or add '{job.id}' to "
                "skip_tiles",
            )
        )
    if not job.images:
        path, _, _ = next(iter(job.labels.values()))
        listing.findings.append(
            ("error", f"{path}: label of tile {job.id} has no image; unpack the images, or remove the label")
        )
    listing.jobs.append(job)


def _converted(
    folder: Path, found: ConvertedFiles, train: Sequence[str], test: Sequence[str], prefix: str, skip: Collection[str]
) -> Listing:
    listing = Listing(folder, [], ISPRS.names, None, views=("image", "label"))
    for path in found.orphans:
        other = "ann_dir" if "img_dir" in path.parts else "img_dir"
        listing.findings.append(("error", f"{path}: has no counterpart in {other}; convert it again, or remove it"))
    hint = "not a converted index PNG (0 boundary, 1 to 6); convert it again"
    for name, pieces in found.pieces.items():
        tile = name.removeprefix(prefix)
        if tile in skip:
            continue
        if tile not in (*train, *test):
            _unknown(listing, [next(iter(pieces.values()))[0]], "the official tiles")
            continue
        for image, label in pieces.values():
            part = "train" if tile in train else "test"
            listing.jobs.append(
                Job(
                    image.stem.removeprefix(prefix),
                    part,
                    {"image": (image, 3)},
                    {"label": (label, ISPRS_CONVERTED, hint)},
                )
            )
    return listing


def _irrg(report: Report, seen: Sequence[tuple[Job, dict[str, Look]]], deep: bool) -> None:
    """Compare IRRG files with the RGB or RGBIR file of the tile: are they IR, R, G?"""
    wrong: list[Path] = []
    for job, looks in seen:
        reference = next(
            (job.images[name][0] for name in ("RGB", "RGBIR") if name in job.images and looks[name].photo), None
        )
        if reference is None or "IRRG" not in job.images or not looks["IRRG"].photo:
            continue
        try:
            order: Literal["IR, R, G", "IR, G, B", "unclear"] = potsdam.irrg_order(job.images["IRRG"][0], reference)
        except DataError:
            continue  # of another size, which is reported already
        if order == "IR, G, B":
            wrong.append(job.images["IRRG"][0])
    if wrong:
        more = f" (and {len(wrong) - 1} more tiles)" if len(wrong) > 1 else ""
        report.add(
            "error",
            f"{wrong[0]}{more}: its channels are IR, G, B and not IR, R, G; set irrg_from: rgbir, which needs "
            "4_Ortho_RGBIR, "
            "or irrg_order: accept",
        )


def _vegetation(report: Report, seen: Sequence[tuple[Job, dict[str, Look]]], deep: bool) -> None:
    """Vegetation is brightest in near infrared: warn where the first channel is not."""
    if not deep or report.synthetic:
        return  # the spectral shift of a sample may take it far from any camera
    from fedrs_lightning.data.rasters.rows import read_whole

    for job, looks in seen:
        name = next((name for name in ("full label", "eroded label") if name in job.labels), "")
        if "IRRG" not in job.images or not name or not looks["IRRG"].photo or looks[name].photo is not False:
            continue
        if looks["IRRG"].size != looks[name].size:
            continue
        ids, _ = ISPRS.decode(read_whole(job.labels[name][0])[:3])
        green = (ids == 2) | (ids == 3)
        if green.sum() < 1000:
            continue
        means = read_whole(job.images["IRRG"][0])[:3, green].mean(axis=1)
        if means[0] < max(means[1:]):
            report.add(
                "warning",
                f"{job.images['IRRG'][0]}: vegetation is not brightest in the first channel, so the bands may not be "
                "IR, R, G; "
                "compare it with the archive",
            )
