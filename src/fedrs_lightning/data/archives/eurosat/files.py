"""Where the files of a EuroSAT folder lie, and how one is decoded. The reader and the checker share these rules."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from fedrs_lightning.data.archives.folders import entries, existing_folder, nothing_found, subfolders
from fedrs_lightning.data.rasters.png_jpeg import open_picture
from fedrs_lightning.data.rasters.rows import Rows, open_rows
from fedrs_lightning.errors import DataError

CLASSES = (
    *("AnnualCrop", "Forest", "HerbaceousVegetation", "Highway", "Industrial"),
    *("Pasture", "PermanentCrop", "Residential", "River", "SeaLake"),
)
BANDS = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B09", "B10", "B11", "B12", "B8A")
"""Order of the bands in a EuroSAT GeoTIFF: the narrow near infrared, B8A, is last."""

SIDE = 64  # pixels
DEPTH = 2  # levels below the root at which the class folders may lie
ALL_BANDS_PATH = "ds/images/remote_sensing/otherDatasets/sentinel_2/tif"  # inside EuroSATallBands.zip
LEVELS = DEPTH + ALL_BANDS_PATH.count("/") + 1  # above the class folders at which a sample's SYNTHETIC.json may lie

BandChoice = Literal["rgb", "all"]
SUFFIXES: dict[str, tuple[str, ...]] = {"rgb": (".jpg", ".jpeg"), "all": (".tif", ".tiff")}
_KIND = {"rgb": "RGB JPEGs", "all": "13-band GeoTIFFs"}
_OTHER: dict[str, BandChoice] = {"rgb": "all", "all": "rgb"}
EXPECTED = f"the folders {CLASSES[0]}, ..., {CLASSES[-1]} here or up to {DEPTH} levels below"


class SourceFile(NamedTuple):
    """One image file of a source folder.

    Attributes:
        id: path relative to the folder, with `/`; the sample's id.
        path: where it lies.
        label: class of the sample.
    """

    id: str
    path: Path
    label: int


def find_class_folder(root: str | os.PathLike[str], bands: BandChoice) -> Path:
    """The folder that holds the ten class folders, at the root or up to two levels below it.

    Raises:
        DataError: there is none, or two; says what was expected and what was found.
    """
    top = existing_folder(root, "EuroSAT", EXPECTED)
    present = {folder: _present(folder) for folder in _levels(top)}
    complete = [folder for folder, names in present.items() if len(names) == len(CLASSES)]
    wanted = [folder for folder in complete if bands in _kinds(folder)]
    if len({folder.resolve() for folder in wanted}) > 1:
        raise DataError(f"{top} holds several EuroSAT trees: {', '.join(map(str, wanted))}; set root to one of them")
    if wanted:
        return wanted[0]
    partial = sorted((folder for folder in present if present[folder]), key=lambda folder: -len(present[folder]))
    partial = [folder for folder in partial if folder not in complete]
    relevant = [folder for folder in partial if bands in _kinds(folder)]
    if relevant or (partial and not complete):
        raise DataError(_incomplete((relevant or partial)[0]))
    if complete:
        raise DataError(_wrong_kind(complete[0], bands))
    if top.name in CLASSES:
        raise DataError(f"{top}: is one class folder; set root to its parent {top.parent}")
    raise nothing_found(top, EXPECTED, DEPTH)


def scan(root: str | os.PathLike[str], bands: BandChoice) -> tuple[Path, list[SourceFile]]:
    """The folder of the class folders under a root, and its images.

    Raises:
        DataError: class folders are missing, a class is empty, or a file's name or kind is wrong; names the file.
    """
    folder = find_class_folder(root, bands)
    files, _, faults = survey(folder, bands)
    for fault in faults:
        raise DataError(fault)
    return folder, files


def survey(folder: Path, bands: BandChoice) -> tuple[list[SourceFile], list[Path], list[str]]:
    """What lies in the class folders.

    Returns:
        Images, classes in order, numbers ascending inside a class; entries that are neither junk nor images of the
        wanted kind; and every fault of names and kinds.
    """
    files, others, faults = list[SourceFile](), list[Path](), list[str]()
    for label, name in enumerate(CLASSES):
        numbered: dict[int, SourceFile] = {}
        for path in entries(folder / name):
            suffix = path.suffix.lower()
            match = re.fullmatch(rf"{name}_(\d+)", path.stem)
            if suffix in SUFFIXES[_OTHER[bands]]:
                kind = f"{_KIND[_OTHER[bands]]} (bands: {_OTHER[bands]})"
                faults.append(f"{path}: lies among the {_KIND[bands]}, but is one of the {kind}; move it out")
            elif suffix not in SUFFIXES[bands]:
                others.append(path)
            elif match is None:
                faults.append(f"{path}: is not named {name}_<number>{suffix}; rename it or move it out of the folder")
            elif int(match[1]) in numbered:
                also = f"also as {numbered[int(match[1])].path.name}"
                faults.append(f"{path}: tile {int(match[1])} of {name} is there twice, {also}; remove one")
            else:
                numbered[int(match[1])] = SourceFile(f"{name}/{path.name}", path, label)
        if not numbered:
            empty = f"no {_KIND[bands]} named {name}_<number>"
            faults.append(f"{folder / name}: {empty}; the class is empty, unpack the archive again")
        files += [numbered[number] for number in sorted(numbered)]
    return files, others + [path for path in subfolders(folder) if path.name not in CLASSES], faults


def decode_rgb(path: Path) -> np.ndarray:
    """RGB JPEG to uint8 [3, 64, 64].

    Raises:
        DataError: not a JPEG, truncated, grey, CMYK or of another size; names the file.
    """
    with open_picture(path) as image:
        check_jpeg(image, path)
        return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def check_jpeg(image: Image.Image, path: Path) -> None:
    """Refuse an opened image that its header shows to be another kind."""
    width, height = image.size
    fault = ""
    if image.format != "JPEG":
        fault = f"is a {image.format} file, not a JPEG; replace it from the archive (13-band GeoTIFFs need bands: all)"
    elif image.mode != "RGB":
        name = {"L": "grey", "CMYK": "CMYK"}.get(image.mode, f"mode {image.mode}")
        fault = f"is {name}, but EuroSAT tiles are RGB; replace it from the archive"
    elif (width, height) != (SIDE, SIDE):
        wanted = f"EuroSAT tiles are {SIDE} x {SIDE}; replace it from the archive"
        fault = f"is {width} x {height} pixels, but {wanted}"
    if fault:
        raise DataError(f"{path}: {fault}")


def decode_all(path: Path) -> np.ndarray:
    """13-band GeoTIFF to uint16 [13, 64, 64], bands as in `BANDS`.

    Raises:
        DataError: unreadable, or other bands, type or size; names the file.
    """
    with open_rows(path) as raster:
        check_geotiff(raster, path)
        return raster.rows(0, SIDE)


def check_geotiff(raster: Rows, path: Path) -> None:
    """Refuse an opened GeoTIFF that its header shows to be another kind."""
    if (raster.bands, raster.dtype, raster.width, raster.height) != (len(BANDS), "uint16", SIDE, SIDE):
        there = f"has {raster.bands} bands of {raster.dtype}, {raster.width} x {raster.height} pixels"
        wanted = f"EuroSAT GeoTIFFs have {len(BANDS)} bands of uint16, {SIDE} x {SIDE}"
        raise DataError(f"{path}: {there}, but {wanted}; replace it from the archive")


def _levels(top: Path) -> Iterator[Path]:
    """The root and the readable folders up to `DEPTH` levels below, not looking inside class folders."""
    level = [top]
    for _ in range(DEPTH + 1):
        for folder in level:
            yield folder
            if (folder / ALL_BANDS_PATH).is_dir():
                yield folder / ALL_BANDS_PATH
        below = [path for folder in level for path in subfolders(folder) if path.name not in CLASSES]
        level = [path for path in below if os.access(path, os.R_OK | os.X_OK)]


def _present(folder: Path) -> list[str]:
    names = {path.name for path in subfolders(folder)}
    return [name for name in CLASSES if name in names]


def _kinds(folder: Path) -> set[str]:
    """Which kinds of images lie in the class folders, by the first image of each."""
    found: set[str] = set()
    for name in _present(folder):
        suffixes = [path.suffix.lower() for path in entries(folder / name)]
        found.update([kind for suffix in suffixes for kind, endings in SUFFIXES.items() if suffix in endings][:1])
    return found


def _incomplete(folder: Path) -> str:
    present = _present(folder)
    missing = {name.lower(): name for name in CLASSES if name not in present}
    text = f"{folder}: class folders missing: {', '.join(missing.values())}"
    for path in subfolders(folder):
        near = difflib.get_close_matches(path.name.lower(), missing, n=1)
        if path.name not in CLASSES and near:
            text += f"; rename '{path.name}' to '{missing[near[0]]}'"
    return text + "; all ten EuroSAT classes are needed"


def _wrong_kind(folder: Path, bands: BandChoice) -> str:
    other = _OTHER[bands]
    if other not in _kinds(folder):
        return f"{folder}: has the ten class folders, but no {_KIND[bands]} in them; unpack the archive again"
    needs = f"bands: {bands} needs {_KIND[bands]}, but here are {_KIND[other]}"
    return f"{folder}: {needs}; set bands: {other}, or root to the {_KIND[bands]}"
