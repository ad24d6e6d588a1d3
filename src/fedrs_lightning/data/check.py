"""`fedrs data check` for EuroSAT: every known fault, each with its file and remedy."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from fedrs_lightning.data.check_report import Report, drawn
from fedrs_lightning.data.datasets import eurosat_files as layout
from fedrs_lightning.data.datasets.eurosat import EuroSAT
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.progress import tracked

HASHED_BYTES = 64 * 1024  # smaller files are read whole anyway, so duplicates among them cost nothing to find
PLAIN = 3.0  # grey levels: tiles of open water vary less, and equal ones do occur in the real data set


def check_eurosat(
    root: str,
    bands: layout.BandChoice = "rgb",
    deep: bool = False,
    sample: int | None = None,
    seed: int = 0,
    dealer: EuroSAT | None = None,
) -> Report:
    """Check a EuroSAT folder.

    Args:
        root: as for the reader.
        bands: which kind of images to expect.
        deep: decode every image instead of reading headers, and compare decoded pixels for duplicates.
        sample: look into this many files, drawn at random, instead of all.
        seed: of the sample and of the clients.
        dealer: also split the samples and deal them to clients as this data set does, for the table.
    """
    report = Report("EuroSAT", str(root), mode="deep" if deep else "header")
    try:
        folder = layout.find_class_folder(root, bands)
        found, faults = layout.survey(folder, bands)
    except DataError as error:
        report.add("error", str(error))
        return report
    report.folder = str(folder)
    for fault in faults:
        report.add("error", fault)
    for path in found.others:
        report.add("warning", f"{path}: is not part of EuroSAT and is not read; move it out of the folder")
    labels = np.asarray([file.label for file in found.files], dtype=np.int64)
    report.counts = dict(zip(layout.CLASSES, np.bincount(labels, minlength=len(layout.CLASSES)).tolist(), strict=True))
    _check_files(report, drawn(found.files, sample, seed), bands, deep)
    report.note_synthetic(layout.synthetic_marker(folder))
    if dealer is not None and not report.failed:
        _deal(report, dealer, tuple(file.id for file in found.files), labels, seed)
    return report


def _check_files(report: Report, files: Sequence[layout.SourceFile], bands: layout.BandChoice, deep: bool) -> None:
    look = _look_at_jpeg if bands == "rgb" else _look_at_geotiff
    by_content = defaultdict(list)
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda file: look(file.path, deep), files)
        for file, (fault, content) in tracked(zip(files, results, strict=True), "checking", len(files)):
            if fault:
                report.add("error", fault)
            elif content:
                by_content[content].append(file)
    report.checked = len(files)
    for same in by_content.values():
        if len(same) > 1:
            _report_duplicates(report, same, bands)


def _look_at_jpeg(path: Path, deep: bool) -> tuple[str | None, str]:
    """Fault of a JPEG, or the hash of its content."""
    try:
        if deep:
            return None, hashlib.sha256(layout.decode_rgb(path).tobytes()).hexdigest()
        with path.open("rb") as handle:
            content = handle.read(HASHED_BYTES)
            whole = not handle.read(1)
            handle.seek(0)
            with Image.open(handle) as image:
                fault = layout.jpeg_fault(image, path)
        if fault is None and whole and b"\xff\xd9" not in content[-64:]:
            fault = f"{path}: is truncated (no end-of-image mark); replace the file from the archive"
        return fault, hashlib.sha256(content).hexdigest() if whole else ""
    except DataError as error:
        return str(error), ""
    except UnidentifiedImageError:
        return f"{path}: not an image; replace the file from the archive", ""
    except PermissionError:
        return layout.no_permission(path), ""
    except (OSError, SyntaxError, ValueError) as error:
        return f"{path}: cannot be read ({error}); replace the file from the archive", ""


def _look_at_geotiff(path: Path, deep: bool) -> tuple[str | None, str]:
    """Fault of a GeoTIFF, or the hash of its content (`deep` only)."""
    import rasterio
    from rasterio.errors import RasterioError

    try:
        if deep:
            return None, hashlib.sha256(layout.decode_all(path).tobytes()).hexdigest()
        with rasterio.open(path) as raster:
            fault = layout.raster_fault(raster.count, raster.dtypes[0], raster.width, raster.height, path)
            compressed = raster.profile.get("compress") is not None
        if fault is None and not compressed and path.stat().st_size < len(layout.BANDS) * layout.SIDE**2 * 2:
            fault = f"{path}: is truncated ({path.stat().st_size} bytes); replace the file from the archive"
        return fault, ""
    except DataError as error:
        return str(error), ""
    except RasterioError as error:
        return (
            f"{path}: cannot be read as a GeoTIFF ({error}); check permissions, or replace the file from the archive",
            "",
        )


def _report_duplicates(report: Report, same: list[layout.SourceFile], bands: layout.BandChoice) -> None:
    names = ", ".join(str(file.path) for file in same[1:])
    pixels = (layout.decode_rgb if bands == "rgb" else layout.decode_all)(same[0].path)
    if bands == "rgb" and len({file.label for file in same}) == 1 and pixels.std(axis=(1, 2)).max() < PLAIN:
        report.add(
            "note", f"{same[0].path}: the same plain pixels also in {names}; harmless, open water does look alike"
        )
    else:
        report.add(
            "error",
            f"{names}: the same content as {same[0].path}; remove all but one, or training and test data overlap",
        )


def _deal(report: Report, dataset: EuroSAT, sample_ids: tuple[str, ...], labels: np.ndarray, seed: int) -> None:
    try:
        dealt = dataset.deal(sample_ids, labels, seed)
    except (ConfigError, DataError) as error:
        report.add("error", str(error))
        return
    rows = {f"{client.id}: {client.name}": client.train for client in dealt.clients} | {"test": dealt.test}
    report.clients = {
        name: np.bincount(labels[indices], minlength=len(layout.CLASSES)).tolist() for name, indices in rows.items()
    }
