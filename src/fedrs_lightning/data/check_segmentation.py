"""`fedrs data check` for Potsdam, Vaihingen and LoveDA: what is paired with what, and what is wrong with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np

from fedrs_lightning.data.check_isprs import list_potsdam, list_vaihingen
from fedrs_lightning.data.check_listing import Job, Listing
from fedrs_lightning.data.check_loveda import list_loveda
from fedrs_lightning.data.check_rasters import Look, look_at_image, look_at_label
from fedrs_lightning.data.check_report import Report, drawn
from fedrs_lightning.data.tiles import numeric, synthetic_marker
from fedrs_lightning.errors import DataError
from fedrs_lightning.progress import tracked

SegmentationName = Literal["potsdam", "vaihingen", "loveda"]


def check_segmentation(
    dataset: SegmentationName,
    root: str,
    deep: bool = False,
    sample: int | None = None,
    seed: int = 0,
    skip: Collection[str] = (),
) -> Report:
    """Check a folder of a segmentation data set.

    Args:
        dataset: which one.
        root: as for the reader.
        deep: decode every image and label. Without it headers are read, and of GeoTIFFs a strip of rows.
        sample: look into the files of this many tiles, drawn at random, instead of all.
        seed: of the sample.
        skip: Potsdam tiles or Vaihingen areas that are not looked at.
    """
    title = {"potsdam": "Potsdam", "vaihingen": "Vaihingen", "loveda": "LoveDA"}[dataset]
    report = Report(title, str(root), mode="deep" if deep else "header", unit="pixels")
    try:
        listing = (
            list_loveda(root)
            if dataset == "loveda"
            else {"potsdam": list_potsdam, "vaihingen": list_vaihingen}[dataset](root, skip)
        )
    except DataError as error:
        report.add("error", str(error))
        return report
    report.folder = str(listing.folder)
    for severity, message in listing.findings:
        report.add(severity, message)
    jobs = sorted(listing.jobs, key=lambda job: (job.part, numeric(job.id)))
    _count_files(report, listing, jobs)
    report.note_synthetic(synthetic_marker(listing.folder))
    seen = _look(drawn(jobs, sample, seed), deep)
    _judge(report, listing, seen, deep)
    return report


def _count_files(report: Report, listing: Listing, jobs: Sequence[Job]) -> None:
    for part in dict.fromkeys(job.part for job in jobs):
        inside = [job for job in jobs if job.part == part]
        counts = {"tiles": len(inside)}
        for view in listing.views:
            counts[view] = sum(view in job.images or view in job.labels for job in inside)
        report.files[part] = counts


def _look(jobs: Sequence[Job], deep: bool) -> list[tuple[Job, dict[str, Look]]]:
    def look(job: Job) -> dict[str, Look]:
        seen = {name: look_at_image(path, bands, deep) for name, (path, bands) in job.images.items()}
        return seen | {name: look_at_label(path, table, deep, hint) for name, (path, table, hint) in job.labels.items()}

    with ThreadPoolExecutor() as pool:
        return list(zip(jobs, tracked(pool.map(look, jobs), "checking", len(jobs)), strict=True))


def _judge(report: Report, listing: Listing, seen: Sequence[tuple[Job, dict[str, Look]]], deep: bool) -> None:
    by_fingerprint: dict[tuple[str, str], list[tuple[Job, Look]]] = defaultdict(list)
    pixels = np.zeros(len(listing.classes) + 1, dtype=np.int64)
    unusual: list[Look] = []
    for job, looks in seen:
        report.checked += len(looks)
        images, labels = [looks[name] for name in job.images], [looks[name] for name in job.labels]
        if not _interchanged(report, images, labels):
            for look in looks.values():
                report.findings += look.findings
            _sizes(report, images, labels)
        unusual += [look for look in images[:1] if listing.usual and look.size not in (None, listing.usual)]
        for name in job.images:
            if looks[name].fingerprint:
                by_fingerprint[name, looks[name].fingerprint].append((job, looks[name]))
        counted = [look.pixels for look in labels if look.pixels is not None]
        if counted:
            pixels += counted[0]
    _duplicates(report, by_fingerprint)
    if unusual and listing.usual:
        high, wide = listing.usual
        report.add(
            "note",
            f"{unusual[0].path}: is {_size(unusual[0])}, official tiles are {high} x {wide}; so are {len(unusual)} of "
            f"{len(seen)} tiles",
        )
    if deep:
        report.counts = dict(zip((*listing.classes, "none of them"), pixels.tolist(), strict=True))
    if listing.after is not None:
        listing.after(report, seen, deep)


def _interchanged(report: Report, images: Sequence[Look], labels: Sequence[Look]) -> bool:
    swapped = [look for look in images if look.photo is False]
    photos = [look for look in labels if look.photo]
    if not swapped or not photos:
        for look in swapped:
            if look.findings:
                continue  # its type says so already
            look.add("error", "holds few colours, so it is a label, not an image; replace it from the archive")
        return False
    report.add(
        "error",
        f"{swapped[0].path}: holds a label and {photos[0].path} holds a photo; image and label are interchanged, swap "
        "them",
    )
    return True


def _sizes(report: Report, images: Sequence[Look], labels: Sequence[Look]) -> None:
    sized = [look for look in (*images, *labels) if look.size is not None]
    for look in sized[1:]:
        if look.size != sized[0].size:
            report.add(
                "error",
                f"{look.path}: is {_size(look)}, but {sized[0].path.name} of the same tile is {_size(sized[0])}; "
                "replace both from the archive",
            )


def _duplicates(report: Report, by_fingerprint: dict[tuple[str, str], list[tuple[Job, Look]]]) -> None:
    told: set[tuple[str, ...]] = set()
    for same in by_fingerprint.values():
        tiles = tuple(f"{job.part} {job.id}" for job, _ in same)
        if len(same) == 1 or tiles in told:
            continue
        told.add(tiles)  # the other views of a tile are the same too
        both = " in training and test data" if len({job.part.split("/")[0] for job, _ in same}) > 1 else ""
        names = ", ".join(str(look.path) for _, look in same[1:])
        report.add(
            "error",
            f"{names}: the same content as {same[0][1].path}{both}; replace it from the archive, or remove all but one",
        )


def _size(look: Look) -> str:
    return "of unknown size" if look.size is None else f"{look.size[0]} x {look.size[1]}"
