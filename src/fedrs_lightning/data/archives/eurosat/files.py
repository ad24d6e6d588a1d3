"""Where the files of a EuroSAT folder lie, and how one is decoded. The reader and the checker share these rules."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import PIL
from PIL import Image, ImageFile, UnidentifiedImageError, features

from fedrs_lightning.errors import DataError

CLASSES = (
    "AnnualCrop",
    "Forest",
    "HerbaceousVegetation",
    "Highway",
    "Industrial",
    "Pasture",
    "PermanentCrop",
    "Residential",
    "River",
    "SeaLake",
)
BANDS = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B09", "B10", "B11", "B12", "B8A")
"""Order of the bands in a EuroSAT GeoTIFF: the narrow near infrared, B8A, is last."""

SIDE = 64  # pixels
DEPTH = 2  # levels below the root at which the class folders may lie
ALL_BANDS_PATH = "ds/images/remote_sensing/otherDatasets/sentinel_2/tif"  # inside EuroSATallBands.zip

BandChoice = Literal["rgb", "all"]
SUFFIXES: dict[str, tuple[str, ...]] = {"rgb": (".jpg", ".jpeg"), "all": (".tif", ".tiff")}
_KIND = {"rgb": "RGB JPEGs", "all": "13-band GeoTIFFs"}
_JUNK_NAMES = {"Thumbs.db", "desktop.ini", "__MACOSX"}
_JUNK_ENDINGS = (".tfw", ".aux.xml", ".ovr")


@dataclass(frozen=True)
class SourceFile:
    """One image file of a source folder.

    Attributes:
        id: path relative to the folder, with `/`; the sample's id.
        path: where it lies.
        label: class of the sample.
    """

    id: str
    path: Path
    label: int


@dataclass
class Layout:
    """The class folders of one EuroSAT tree.

    Attributes:
        folder: holds the ten class folders.
        files: image files, classes in order, numbers ascending inside a class.
        others: entries that are neither junk nor images of the wanted kind, for the checker.
    """

    folder: Path
    files: list[SourceFile]
    others: list[Path] = field(default_factory=list)


def is_junk(name: str) -> bool:
    """Files that operating systems and viewers leave behind."""
    return name.startswith(".") or name in _JUNK_NAMES or name.endswith(_JUNK_ENDINGS)


def find_class_folder(root: str | os.PathLike[str], bands: BandChoice) -> Path:
    """The folder that holds the ten class folders, at the root or up to two levels below it.

    Raises:
        DataError: there is none, or two; says what was expected and what was found.
    """
    top = Path(root).expanduser()
    if not top.exists():
        raise DataError(f"{top}: no such folder; set root to the EuroSAT folder that you downloaded and unpacked")
    if not top.is_dir():
        raise DataError(_not_a_folder(top))
    candidates = [(len(_present(folder)), folder) for folder in _levels(top)]
    complete = [folder for count, folder in candidates if count == len(CLASSES)]
    wanted = [folder for folder in complete if _kinds(folder)[bands]]
    if len({folder.resolve() for folder in wanted}) > 1:
        raise DataError(f"{top} holds several EuroSAT trees: {', '.join(map(str, wanted))}; set root to one of them")
    if wanted:
        return wanted[0]
    partial = [folder for count, folder in sorted(candidates, key=lambda pair: -pair[0]) if 0 < count < len(CLASSES)]
    relevant = [folder for folder in partial if _kinds(folder)[bands]]
    if relevant:
        raise DataError(_incomplete(relevant[0]))
    if complete:
        raise DataError(_wrong_kind(complete[0], bands))
    raise DataError(_incomplete(partial[0]) if partial else _nothing_found(top))


def scan(root: str | os.PathLike[str], bands: BandChoice) -> Layout:
    """List the images under a root.

    Raises:
        DataError: class folders are missing, a class is empty, or a file's name or kind is wrong; names the file.
    """
    layout, faults = survey(find_class_folder(root, bands), bands)
    for fault in faults:
        raise DataError(fault)
    return layout


def survey(folder: Path, bands: BandChoice) -> tuple[Layout, list[str]]:
    """List the images of a class folder tree, with every fault of names and kinds instead of the first."""
    layout, faults = Layout(folder, []), []
    for label, name in enumerate(CLASSES):
        numbered: dict[int, SourceFile] = {}
        for path in _entries(folder / name):
            number, fault = _judge(path, name, bands)
            if fault:
                faults.append(fault)
            elif number is None:
                layout.others.append(path)
            elif number in numbered:
                faults.append(
                    f"{path}: tile {number} of {name} is there twice, also as {numbered[number].path.name}; remove one"
                )
            else:
                numbered[number] = SourceFile(f"{name}/{path.name}", path, label)
        if not numbered:
            faults.append(
                f"{folder / name}: no {_KIND[bands]} named {name}_<number>; the class is empty, unpack the archive "
                "again"
            )
        layout.files += [numbered[number] for number in sorted(numbered)]
    layout.others += [path for path in _entries(folder) if path.is_dir() and path.name not in CLASSES]
    return layout, faults


def tile_number(name: str) -> int:
    """Number in `<Class>_<number>.<suffix>`."""
    return int(Path(name).stem.rpartition("_")[2])


def decode_rgb(path: Path) -> np.ndarray:
    """RGB JPEG to uint8 [3, 64, 64].

    Raises:
        DataError: not a JPEG, truncated, grey, CMYK or of another size; names the file.
    """
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise DataError("PIL.ImageFile.LOAD_TRUNCATED_IMAGES is on, which hides broken images; switch it off")
    try:
        with Image.open(path) as image:
            fault = jpeg_fault(image, path)
            if fault:
                raise DataError(fault)
            return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
    except PermissionError:
        raise DataError(no_permission(path)) from None
    except UnidentifiedImageError:
        raise DataError(f"{path}: not an image; replace the file from the archive") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: cannot be decoded ({error}); replace the file from the archive") from None


def jpeg_fault(image: Image.Image, path: Path) -> str | None:
    """What is wrong with an opened image by its header, or None."""
    if image.format != "JPEG":
        return (
            f"{path}: is a {image.format} file, not a JPEG; "
            "replace it from the archive (13-band GeoTIFFs need bands: all)"
        )
    if image.mode != "RGB":
        name = {"L": "grey", "CMYK": "CMYK"}.get(image.mode, f"mode {image.mode}")
        return f"{path}: is {name}, but EuroSAT tiles are RGB; replace it from the archive"
    if image.size != (SIDE, SIDE):
        return (
            f"{path}: is {image.size[0]} x {image.size[1]} pixels, but EuroSAT tiles are {SIDE} x {SIDE}; "
            "replace it from the archive"
        )
    return None


def decode_all(path: Path) -> np.ndarray:
    """13-band GeoTIFF to uint16 [13, 64, 64], bands as in `BANDS`.

    Raises:
        DataError: unreadable, or other bands, type or size; names the file.
    """
    import rasterio
    from rasterio.errors import RasterioError

    try:
        with rasterio.open(path) as raster:
            fault = raster_fault(raster.count, raster.dtypes[0], raster.width, raster.height, path)
            if fault:
                raise DataError(fault)
            return np.asarray(raster.read())
    except RasterioError as error:
        raise DataError(f"{path}: cannot be read as a GeoTIFF ({error}); replace the file from the archive") from None


def raster_fault(count: int, dtype: str, width: int, height: int, path: Path) -> str | None:
    """What is wrong with a GeoTIFF by its header, or None."""
    if (count, dtype, width, height) == (len(BANDS), "uint16", SIDE, SIDE):
        return None
    return (
        f"{path}: has {count} bands of {dtype}, {width} x {height} pixels, but EuroSAT GeoTIFFs have {len(BANDS)} "
        "bands of uint16, "
        f"{SIDE} x {SIDE}; replace the file from the archive"
    )


def decoder_name(bands: BandChoice) -> str:
    """Library and version that decode; JPEG decoders differ by a few grey levels."""
    if bands == "rgb":
        return f"pillow {PIL.__version__}, jpeg {features.version('jpg')}"
    import rasterio

    return f"rasterio {rasterio.__version__}, gdal {rasterio.__gdal_version__}"


def no_permission(path: Path) -> str:
    """Message about a file that may not be read."""
    return f"{path}: no permission to read it; run chmod u+r on it"


def synthetic_marker(folder: Path) -> Path | None:
    """`SYNTHETIC.json` of the sample that a class folder tree belongs to, if it is synthetic."""
    for place in (folder, *list(folder.parents)[: DEPTH + ALL_BANDS_PATH.count("/") + 1]):
        if (place / "SYNTHETIC.json").is_file():
            return place / "SYNTHETIC.json"
    return None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder) if not is_junk(entry.name))
    except NotADirectoryError:
        return []
    except PermissionError:
        raise DataError(f"{folder}: no permission to read this folder; run chmod u+rx on it") from None


def _subfolders(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.is_dir()]


def _levels(top: Path) -> Iterator[Path]:
    """The root and the readable folders up to `DEPTH` levels below, not looking inside class folders."""
    level = [top]
    for _ in range(DEPTH + 1):
        for folder in level:
            yield folder
            if (folder / ALL_BANDS_PATH).is_dir():
                yield folder / ALL_BANDS_PATH
        level = [
            path for folder in level for path in _subfolders(folder) if path.name not in CLASSES and _may_look(path)
        ]


def _may_look(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def _present(folder: Path) -> list[str]:
    names = {path.name for path in _subfolders(folder)}
    return [name for name in CLASSES if name in names]


def _kinds(folder: Path) -> dict[str, bool]:
    """Which kinds of images lie in the class folders."""
    found = dict.fromkeys(SUFFIXES, False)
    for name in _present(folder):
        for path in _entries(folder / name):
            for kind, endings in SUFFIXES.items():
                found[kind] = found[kind] or path.suffix.lower() in endings
            if any(found.values()):
                break
    return found


def _judge(path: Path, name: str, bands: BandChoice) -> tuple[int | None, str | None]:
    """Tile number of a wanted image, or the fault, or neither for a file that is no image."""
    suffix = path.suffix.lower()
    if suffix in SUFFIXES[bands]:
        match = re.fullmatch(rf"{name}_(\d+)", path.stem)
        if match:
            return int(match[1]), None
        return None, f"{path}: is not named {name}_<number>{suffix}; rename it or move it out of the folder"
    other: BandChoice = "all" if bands == "rgb" else "rgb"
    if suffix in SUFFIXES[other]:
        return (
            None,
            f"{path}: lies among the {_KIND[bands]}, but is one of the {_KIND[other]} (bands: {other}); move it out",
        )
    return None, None


def _incomplete(folder: Path) -> str:
    present = _present(folder)
    missing = [name for name in CLASSES if name not in present]
    text = f"{folder}: class folders missing: {', '.join(missing)}"
    for path in _subfolders(folder):
        lowered = {name.lower(): name for name in missing}
        near = difflib.get_close_matches(path.name.lower(), lowered, n=1)
        if path.name not in CLASSES and near:
            text += f"; rename '{path.name}' to '{lowered[near[0]]}'"
    return text + "; all ten EuroSAT classes are needed"


def _wrong_kind(folder: Path, bands: BandChoice) -> str:
    other: BandChoice = "all" if bands == "rgb" else "rgb"
    if _kinds(folder)[other]:
        return (
            f"{folder}: bands: {bands} needs {_KIND[bands]}, but here are {_KIND[other]}; "
            f"set bands: {other}, or root to the {_KIND[bands]}"
        )
    return f"{folder}: has the ten class folders, but no {_KIND[bands]} in them; unpack the archive again"


def _nothing_found(top: Path) -> str:
    expected = f"expected the folders {CLASSES[0]}, ..., {CLASSES[-1]} here or up to {DEPTH} levels below"
    archives = [path for folder in _levels(top) for path in _entries(folder) if path.suffix.lower() == ".zip"]
    if archives:
        return f"{archives[0]}: is still zipped; unpack it, then set root to the unpacked folder ({expected})"
    if top.name in CLASSES:
        return f"{top}: is one class folder; set root to its parent {top.parent}"
    entries = _entries(top)
    if not entries:
        return f"{top}: the folder is empty; {expected}"
    names = ", ".join(path.name for path in entries[:5]) + (", ..." if len(entries) > 5 else "")
    closed = [path.name for path in _subfolders(top) if not _may_look(path)]
    hint = f"; no permission to look into {', '.join(closed)}, run chmod u+rx on it" if closed else ""
    return f"{top}: no EuroSAT tree; {expected}, found: {names}{hint}"


def _not_a_folder(top: Path) -> str:
    if top.suffix.lower() == ".zip":
        return f"{top}: is still zipped; unpack it, then set root to the unpacked folder"
    return f"{top}: is a file; set root to the EuroSAT folder"
