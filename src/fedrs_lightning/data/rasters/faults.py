"""What the headers of an image and its label show to be wrong: readers and checks say the same."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path

from PIL.TiffImagePlugin import TiffImageFile

from fedrs_lightning.data.rasters.class_tables import ClassTable, Palette, Values
from fedrs_lightning.data.rasters.declared import RasterFile, code_fault
from fedrs_lightning.data.rasters.rows import Rows
from fedrs_lightning.errors import DataError

_OFFSETS, _COUNTS = (273, 324), (279, 325)  # TIFF tags of strips and tiles
_warned: list[str] = []


def image_fault(raster: Rows, bands: int) -> str:
    """What is wrong with an image that needs so many 8-bit bands; empty where nothing is."""
    if coded := code_fault(raster):
        return coded
    if raster.dtype != "uint8":
        return f"holds {raster.dtype} pixels, a re-export; the delivered files are uint8, replace it from the archive"
    few = "it may be a label; " if raster.bands == 1 else ""
    fault = f"has {_bands(raster)}, {bands} are needed; {few}replace it from the archive"
    return fault if raster.bands < bands else ""


def label_fault(raster: Rows, table: ClassTable) -> str:
    """What is wrong with the type of a label; empty where nothing is."""
    if raster.dtype != "uint8":
        return f"holds {raster.dtype} pixels; the delivered labels are uint8, replace it from the archive"
    there = f"has {_bands(raster)}, so it holds"
    if isinstance(table, Palette) and raster.bands < 3:
        return f"{there} class numbers where colours are expected; replace it by the delivered label"
    if isinstance(table, Values) and raster.bands != 1:
        return f"{there} colours where class numbers {table.span} are expected; replace it, or convert it again"
    return ""


def surplus(raster: Rows, bands: int) -> str:
    """A remark on an alpha channel; empty where there is none."""
    used = f"has {_bands(raster)}; the first {bands} are used (a re-saved copy with alpha?)"
    return used if raster.bands > bands else ""


def check_pair(image_path: Path, image: Rows, label_path: Path, label: Rows, bands: int, table: ClassTable) -> None:
    """Refuse an image or label of another kind or size; warn once a process about an alpha channel.

    Raises:
        DataError: names the file and a remedy.
    """
    for path, fault in ((image_path, image_fault(image, bands)), (label_path, label_fault(label, table))):
        if fault:
            raise DataError(f"{path}: {fault}")
    extra = surplus(label, 3) if isinstance(table, Palette) else ""
    for path, remark in ((image_path, surplus(image, bands)), (label_path, extra)):
        if remark and not _warned:  # re-saved copies come in whole folders
            _warned.append(remark)
            warnings.warn(f"{path}: {remark}", stacklevel=2)
    check_sizes(image_path, image, label_path, label)


def check_sizes(image_path: Path, image: Rows, label_path: Path, label: Rows) -> None:
    """Refuse a label of another size than its image."""
    if (image.height, image.width) != (label.height, label.width):
        sizes = [f"{raster.height} x {raster.width}" for raster in (label, image)]
        remedy = "replace both from the archive"
        raise DataError(f"{label_path}: is {sizes[0]}, but its image {image_path.name} is {sizes[1]}; {remedy}")


def check_no_data(path: Path, label: Rows, table: ClassTable) -> None:
    """Refuse a label that declares a class of the table as no data: one of them is wrong.

    Raises:
        DataError: names the file, the class and a remedy.
    """
    if not isinstance(label, RasterFile) or label.no_data is None:
        return
    values = [(own,) * 3 for own in table.values] if isinstance(table, Values) else table.colours
    for name, value in zip(table.names, values, strict=True):
        if set(value) == {label.no_data}:
            declared = f"declares {value[0]} as no data, but classes names it '{name}'"
            remedy = "remove the declaration (gdal_edit.py -unsetnodata), or move the value from classes to ignored"
            raise DataError(f"{path}: {declared}; {remedy}")


def missing_bytes(path: Path) -> int:
    """How much shorter a TIFF is than its directory says."""
    try:
        with TiffImageFile(str(path)) as image:
            tags = image.tag_v2
            offsets = next((tags[tag] for tag in _OFFSETS if tag in tags), ())
            counts = next((tags[tag] for tag in _COUNTS if tag in tags), ())
    except (OSError, SyntaxError, ValueError, TypeError, LookupError, OverflowError, struct.error):
        return 0  # a form that this library does not know; reading the rows decides
    ends = [int(offset) + int(count) for offset, count in zip(offsets, counts, strict=False)]
    return max(0, max(ends, default=0) - path.stat().st_size)


def has_end_mark(path: Path, mark: bytes) -> bool:
    """Whether a picture's last bytes hold the mark that ends one."""
    with path.open("rb") as handle:
        handle.seek(max(0, path.stat().st_size - 64))
        return mark in handle.read()


def _bands(raster: Rows) -> str:
    return f"{raster.bands} band{'s' if raster.bands != 1 else ''}"
