"""What one image or label raster holds: faults, a hash of its content, and pixels of each class."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedrs_lightning.data.check.report import Finding, Severity
from fedrs_lightning.data.rasters.class_tables import MOST_UNKNOWN, TOLERANCE, ClassTable, Palette, Values
from fedrs_lightning.data.rasters.faults import has_end_mark, image_fault, label_fault, missing_bytes, surplus
from fedrs_lightning.data.rasters.rows import GEOTIFF, Rows, open_rows
from fedrs_lightning.errors import DataError

STRIP = 64  # rows from the middle of a GeoTIFF that are looked at without --deep
_BLOCK = 512  # rows decoded at a time with --deep
_FEW_COLOURS = 10  # a label has at most about this many
_HEAD = 64 * 1024  # bytes of a PNG that make its content without --deep


@dataclass
class RasterFacts:
    """What was found in one file.

    Attributes:
        path: of the file.
        findings: faults and remarks, each naming the file.
        size: (height, width); None where the file cannot be opened.
        photo: whether the pixels are those of a photo and not of a label; None where they were not looked at.
        content: hash of the pixels; empty where there is none.
        pixels: of each class 0, 1, ... and, last, of none, int64; None where they were not counted.
    """

    path: Path
    findings: list[Finding] = field(default_factory=list)
    size: tuple[int, int] | None = None
    photo: bool | None = None
    content: str = ""
    pixels: np.ndarray | None = None

    def add(self, severity: Severity, message: str) -> None:
        """Record a finding about this file."""
        self.findings.append(Finding(severity, f"{self.path}: {message}"))


def image_facts(path: Path, bands: int, deep: bool) -> RasterFacts:
    """Facts of a photo of `bands` 8-bit channels."""
    facts = RasterFacts(path)
    with _refusals(facts), open_rows(path) as raster:
        facts.size = (raster.height, raster.width)
        fault, remark = image_fault(raster, bands), surplus(raster, bands)
        if fault:
            facts.add("error", fault)
            facts.photo = False if raster.dtype == "uint8" and raster.bands == 1 else None
            return facts
        if remark:
            facts.add("warning", remark)
        _scan_image(facts, raster, deep)
    return facts


def label_facts(path: Path, table: ClassTable, deep: bool, hint: str) -> RasterFacts:
    """Facts of a label of colours or class numbers.

    Args:
        path: of the label.
        table: what its colours or values mean.
        deep: read all rows instead of a strip (a GeoTIFF) or none (a PNG).
        hint: remedy for a label with too many unknown pixels.
    """
    facts = RasterFacts(path)
    with _refusals(facts), open_rows(path, numbers=True) as raster:
        facts.size = (raster.height, raster.width)
        fault = label_fault(raster, table)
        if fault:
            facts.add("error", fault)
            facts.photo = True if isinstance(table, Values) and raster.bands >= 3 else None
            return facts
        remark = surplus(raster, 3) if isinstance(table, Palette) else ""
        if remark:
            facts.add("warning", remark)
        if getattr(raster, "mode", "") == "P":
            facts.add("warning", "is a palette PNG; its index array is read, never turn it into grey")
        _scan_label(facts, raster, table, deep, hint)
    return facts


@contextmanager
def _refusals(facts: RasterFacts) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        facts.findings.append(Finding("error", str(error)))


def _scan_image(facts: RasterFacts, raster: Rows, deep: bool) -> None:
    colours: set[int] = set()
    digest = hashlib.sha256()
    for pixels in _blocks(facts, raster, deep):
        digest.update(pixels.tobytes())
        if len(colours) <= _FEW_COLOURS:
            colours |= set(np.unique(_codes(pixels)).tolist())
    if colours:
        facts.content = digest.hexdigest()
        # An empty strip is no label: LoveDA has black margins where the mosaic ends.
        facts.photo = len(colours) > _FEW_COLOURS or len(colours) == 1
    elif facts.path.suffix.lower() not in GEOTIFF:
        with facts.path.open("rb") as handle:
            facts.content = hashlib.sha256(handle.read(_HEAD) + str(facts.path.stat().st_size).encode()).hexdigest()


def _scan_label(facts: RasterFacts, raster: Rows, table: ClassTable, deep: bool, hint: str) -> None:
    pixels = np.zeros(len(table.names) + 1, dtype=np.int64)
    unknown, odd, stray = 0, 0, ""  # odd ones have a colour or value that is not exactly one of the table
    listed = np.asarray([*(table.colours if isinstance(table, Palette) else table.values), *table.ignored])
    known = _codes(listed.T) if isinstance(table, Palette) else listed
    for block in _blocks(facts, raster, deep):
        part = block[:3] if isinstance(table, Palette) else block
        ids, strange = table.decode(part)
        pixels += np.bincount(np.minimum(ids.ravel(), len(pixels) - 1), minlength=len(pixels))
        codes = _codes(part)
        inexact = codes[~np.isin(codes, known)]
        unknown, odd = unknown + strange, odd + inexact.size
        if inexact.size and not stray:
            value = int(inexact[0])
            stray = f"({value >> 16}, {value >> 8 & 255}, {value & 255})" if isinstance(table, Palette) else f"{value}"
    total = int(pixels.sum())
    if not total:
        return
    facts.photo = unknown > 0.5 * total
    facts.pixels = pixels if deep else None
    have = f"{unknown} of {total} pixels have"
    if isinstance(table, Values):
        if unknown:
            facts.add("error", f"{have} values outside {table.span}, such as {stray}; {hint}")
    elif unknown > MOST_UNKNOWN * total:
        facts.add("error", f"{have} colours outside the palette (more than 1 %), such as {stray}; {hint}")
    elif unknown:
        facts.add("warning", f"{have} colours outside the palette, such as {stray}; they are ignored")
    if odd > unknown:
        near = f"{odd - unknown} pixels have stray colours within {TOLERANCE} of the palette, such as {stray}"
        facts.add("note", f"{near}; read as the nearest class")


def _blocks(facts: RasterFacts, raster: Rows, deep: bool) -> Iterator[np.ndarray]:
    """All rows with `deep`; else the middle of a GeoTIFF, and nothing of a PNG, which can only be decoded whole."""
    if deep:
        for start in range(0, raster.height, _BLOCK):
            yield raster.rows(start, min(start + _BLOCK, raster.height))
    elif facts.path.suffix.lower() in GEOTIFF:
        missing = missing_bytes(facts.path)
        if missing:
            raise DataError(f"{facts.path}: is truncated ({missing} bytes are missing); replace it from the archive")
        start = max(0, raster.height // 2 - STRIP // 2)
        yield raster.rows(start, min(start + STRIP, raster.height))
    elif facts.path.suffix.lower() == ".png" and not has_end_mark(facts.path, b"IEND"):
        raise DataError(f"{facts.path}: is truncated (no end mark); replace it from the archive")


def _codes(pixels: np.ndarray) -> np.ndarray:
    """One number for each colour, uint32 [...], of [C, ...]; the first three channels count."""
    code = np.zeros(pixels.shape[1:], dtype=np.uint32)
    for channel in pixels[:3]:
        code = (code << np.uint32(8)) | channel.astype(np.uint32)
    return code
