"""The check of EuroSAT: every known fault, each with its file and remedy."""

from __future__ import annotations

from dataclasses import replace

from fedrs_lightning.data.archives.eurosat import files as layout
from fedrs_lightning.data.archives.eurosat.archive import EuroSAT, listed
from fedrs_lightning.data.check.archives import look_at_images
from fedrs_lightning.data.check.report import Report


def check_eurosat(report: Report, archive: EuroSAT, sample: int | None, seed: int) -> None:
    """Check a EuroSAT folder, see `Archive.check`."""
    report.unit = "tiles"
    folder = layout.find_class_folder(archive.root, archive.bands)
    files, others, faults = layout.survey(folder, archive.bands)
    report.add("error", *faults)
    for path in others:
        report.add("warning", f"{path}: is not part of EuroSAT and is not read; move it out of the folder")
    listing = listed(folder, files)
    if not faults:
        with report.refusals():  # of its tables; the files are looked into all the same
            listing = replace(listing, splits=archive.listing().splits)
    report.count(layout.CLASSES, listing.labels, listing.splits)
    look_at_images(report, archive, listing, sample, seed)
    report.found(folder, layout.LEVELS)
