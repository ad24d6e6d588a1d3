"""The check of EuroSAT: every known fault, each with its file and remedy."""

from __future__ import annotations

import hashlib
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from fedrs_lightning.data.archives.eurosat import files as layout
from fedrs_lightning.data.archives.eurosat.archive import EuroSAT
from fedrs_lightning.data.check.report import Item, Report, Seen, drawn, look_into, seen_pixels
from fedrs_lightning.errors import DataError

PLAIN = 3.0  # grey levels: tiles of open water vary less, and equal ones do occur in the real data set


def check_eurosat(archive: EuroSAT, deep: bool, sample: int | None, seed: int) -> Report:
    """Check a EuroSAT folder, see `Archive.check`."""
    report = Report.of(archive, deep, "tiles")
    with report.refusals():
        folder = layout.find_class_folder(archive.root, archive.bands)
        report.folder = str(folder)
        found, faults = layout.survey(folder, archive.bands)
        report.add("error", *faults)
        for path in found.others:
            report.add("warning", f"{path}: is not part of EuroSAT and is not read; move it out of the folder")
        splits = None
        if not faults:
            with report.refusals():  # of its tables; the files are looked into all the same
                splits = archive.listing().splits
        report.count(layout.CLASSES, np.asarray([file.label for file in found.files], np.int64), splits)
        parts = [""] * len(found.files) if splits is None else splits.tolist()
        items = [
            Item(file.path, str(file.path), part, file.label) for file, part in zip(found.files, parts, strict=True)
        ]
        items = drawn(items, sample, seed)
        look = _decoded if deep else _jpeg_header if archive.bands == "rgb" else _geotiff_header
        look_into(report, items, look, None if deep else _decoded)
        report.checked = len(items)
        report.note_synthetic(layout.synthetic_marker(folder))
    return report


def _decoded(path: Path) -> Seen:
    if path.suffix.lower() in layout.SUFFIXES["rgb"]:
        return seen_pixels([layout.decode_rgb(path)], lambda pixels: pixels.std(axis=(1, 2)).max() < PLAIN)
    return seen_pixels([layout.decode_all(path)], lambda pixels: False)


def _jpeg_header(path: Path) -> Seen:
    content = path.read_bytes()
    try:
        with Image.open(BytesIO(content)) as image:
            fault = layout.jpeg_fault(image, path)
    except UnidentifiedImageError:
        fault = f"{path}: not an image; replace the file from the archive"
    if fault is None and b"\xff\xd9" not in content[-64:]:
        fault = f"{path}: is truncated (no end-of-image mark); replace the file from the archive"
    return Seen([fault] if fault else [], hashlib.sha256(content).hexdigest())


def _geotiff_header(path: Path) -> Seen:
    import rasterio
    from rasterio.errors import RasterioError

    try:
        with rasterio.open(path) as raster:
            fault = layout.raster_fault(raster.count, raster.dtypes[0], raster.width, raster.height, path)
            compressed = raster.profile.get("compress") is not None
    except RasterioError as error:
        remedy = "check permissions, or replace the file from the archive"
        raise DataError(f"{path}: cannot be read as a GeoTIFF ({error}); {remedy}") from None
    size = path.stat().st_size
    if fault is None and not compressed and size < len(layout.BANDS) * layout.SIDE**2 * 2:
        fault = f"{path}: is truncated ({size} bytes); replace the file from the archive"
    return Seen([fault] if fault else [])
