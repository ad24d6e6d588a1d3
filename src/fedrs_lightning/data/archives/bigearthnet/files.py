"""Where the files of a BigEarthNet-S2 v2.0 folder lie, and how one patch is decoded: for the reader and the check."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrs_lightning.data.archives.bigearthnet import faults
from fedrs_lightning.data.archives.folders import existing_folder, names_in, no_permission, nothing_found, subfolders
from fedrs_lightning.data.rasters.plain_tiff import plain_pixels
from fedrs_lightning.data.rasters.rows import open_rows
from fedrs_lightning.errors import DataError

CLASSES = (
    "Urban fabric",
    "Industrial or commercial units",
    "Arable land",
    "Permanent crops",
    "Pastures",
    "Complex cultivation patterns",
    "Land principally occupied by agriculture, with significant areas of natural vegetation",
    "Agro-forestry areas",
    "Broad-leaved forest",
    "Coniferous forest",
    "Mixed forest",
    "Natural grassland and sparsely vegetated areas",
    "Moors, heathland and sclerophyllous vegetation",
    "Transitional woodland, shrub",
    "Beaches, dunes, sands",
    "Inland wetlands",
    "Coastal wetlands",
    "Inland waters",
    "Marine waters",
)
"""The 19 classes in the order of the authors' label file, ids 0 to 18."""

BANDS = ("B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B11", "B12")
"""The ten channels in spectral order; red, green, blue are channels 2, 1, 0."""

BANDS_10M = ("B02", "B03", "B04", "B08")
BANDS_20M = ("B05", "B06", "B07", "B8A", "B11", "B12")
BANDS_60M = ("B01", "B09")
ALL_BANDS = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12")
"""The twelve files of a patch."""

SIDE = dict.fromkeys(BANDS_10M, 120) | dict.fromkeys(BANDS_20M, 60) | dict.fromkeys(BANDS_60M, 20)
"""Pixels along a side of each band; every patch covers 1200 m x 1200 m."""

COUNTRIES = (
    *("Finland", "Ireland", "Serbia", "Austria", "Belgium", "Lithuania", "Portugal", "Switzerland"),
    *("Kosovo", "Luxembourg"),
)
"""The eight clients of FedMAD in their order, then the two countries without summer patches."""

SUMMER = (6, 7, 8)  # months of acquisition
SPLITS = ("train", "validation", "test")
IMAGES = "BigEarthNet-S2"
METADATA = "metadata.parquet"
FLAGGED_METADATA = "metadata_for_patches_with_snow_cloud_or_shadow.parquet"
SYNTHETIC = "SYNTHETIC.json"
EXPECTED = (
    "BigEarthNet-S2/<product>/<patch>/<patch>_B02.tif, with product folders such as "
    "S2A_MSIL2A_20170613T101031_N9999_R022_T33UUP"
)

PRODUCT = r"S2[A-Z]_MSIL2A_\d{4}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])T\d{6}_N\d{4}_R\d{3}_T\d{2}[A-Z]{3}"
PATCH = PRODUCT + r"_\d{2}_\d{2}"
_PATCH_V1 = r"S2[A-Z]_MSIL2A_\d{8}T\d+_\d+_\d+"


@dataclass(frozen=True)
class Layout:
    """Where everything lies.

    Attributes:
        images: folder that holds the product folders, or the LMDB.
        kind: `files` or `lmdb`.
        metadata: path of the main table; it may be missing.
        flagged: path of the table of patches with snow, cloud or shadow; it may be missing.
    """

    images: Path
    kind: str
    metadata: Path
    flagged: Path


def product_of(patch_id: str) -> str:
    """Name of the product folder: the patch id without column and row."""
    return patch_id.rsplit("_", 2)[0]


def patch_date(patch_id: str) -> str:
    """Day of acquisition as YYYYMMDD, from the third field of the patch id."""
    return patch_id.split("_")[2][:8]


def band_path(images: Path, patch_id: str, band: str) -> Path:
    """File of one band."""
    return images / product_of(patch_id) / patch_id / f"{patch_id}_{band}.tif"


def find_layout(
    root: str | os.PathLike[str],
    metadata: str | os.PathLike[str] | None = None,
    flagged_metadata: str | os.PathLike[str] | None = None,
) -> Layout:
    """Find images and tables.

    Args:
        root: folder that holds `BigEarthNet-S2`, or that folder itself, or the folder of an LMDB (`data.mdb`).
        metadata: the main table, where it does not lie beside the images.
        flagged_metadata: the table of flagged patches, where it does not lie beside the main table.

    Raises:
        DataError: there is no v2.0 tree; says what was expected and what was found.
    """
    top = existing_folder(root, "BigEarthNet", EXPECTED)
    for images in (top, top / IMAGES):
        kind = "lmdb" if (images / "data.mdb").is_file() else "files"
        if kind == "lmdb" or _holds(images, PRODUCT):
            break
    else:
        raise _not_found(top)
    if metadata is not None:
        table = Path(metadata).expanduser()
    else:
        near = [folder / METADATA for folder in (top, images, images.parent)]
        table = next((path for path in near if path.is_file()), near[0])
    flagged = Path(flagged_metadata).expanduser() if flagged_metadata is not None else table.parent / FLAGGED_METADATA
    return Layout(images, kind, table, flagged)


def _not_found(top: Path) -> DataError:
    """Why no v2.0 tree was found under an existing folder."""
    folders = [top, *subfolders(top)]
    for folder in folders:
        text = v1_fault(folder)
        if text:
            return DataError(text)
    if re.fullmatch(PRODUCT, top.name):
        return DataError(f"{top}: is one product folder; set root to {top.parent}")
    if re.fullmatch(PATCH, top.name):
        return DataError(f"{top}: is one patch folder; set root to {top.parent.parent}")
    for folder in folders[1:]:
        if (folder / "data.mdb").is_file() or _holds(folder, PRODUCT) or _holds(folder / IMAGES, PRODUCT):
            return DataError(f"{top}: is one level too high; set root to {folder}")
    return nothing_found(top, EXPECTED, 1)


def _holds(folder: Path, pattern: str) -> bool:
    return any(re.fullmatch(pattern, name) for name in names_in(folder))


def v1_fault(path: Path) -> str | None:
    """Why this folder is of the first release, or None: its patches lie in no product folder and carry JSON files.

    Args:
        path: a root, a folder of patches, or one patch folder.
    """
    names = names_in(path)
    places = (path, *(path / name for name in names if re.fullmatch(_PATCH_V1, name)))
    patch = next((place for place in places if re.fullmatch(_PATCH_V1, place.name) and place.is_dir()), None)
    label = next((path / name for name in names if name.endswith("_labels_metadata.json")), None)
    if patch is None and label is None:
        return None
    sign = "a JSON file of labels beside the bands"
    if patch is not None:
        sign = "a patch without product folder, its column and row not padded"
    others = "its pixels, labels and splits are others than those of v2.0 and the two must not be mixed"
    remedy = "download BigEarthNet v2.0 (BigEarthNet-S2.tar.zst and metadata.parquet)"
    return f"{patch or label}: this is BigEarthNet v1.0 ({sign}); {others}; {remedy}"


def stacked(read: Callable[[str], np.ndarray]) -> dict[str, np.ndarray]:
    """The ten bands of a patch: `image10` uint16 [4, 120, 120], `image20` uint16 [6, 60, 60], reflectance x 10000.

    Args:
        read: gives the pixels of a band by its name.
    """
    groups = {"image10": BANDS_10M, "image20": BANDS_20M}
    return {name: np.stack([read(band) for band in bands]) for name, bands in groups.items()}


def read_band(path: Path, band: str) -> np.ndarray:
    """Pixels of one band file, uint16 [H, W].

    Plain files, as in the official archive, need no GDAL; the values are the same.

    Raises:
        DataError: it is missing, unreadable, zero everywhere, or has another size or type; names the file.
    """
    try:
        pixels = plain_pixels(path, SIDE[band])
    except OSError as error:
        raise DataError(unreadable(path, error)) from None
    if pixels is not None:
        return checked(pixels[None], path, band)
    with open_rows(path) as raster:
        return checked(raster.rows(0, raster.height), path, band)


def checked(pixels: np.ndarray, path: Path, band: str) -> np.ndarray:
    """The only band [H, W] of [1, H, W] pixels.

    Raises:
        DataError: zero everywhere, or another size or type; names the path.
    """
    side, (count, height, width) = SIDE[band], pixels.shape
    if (count, str(pixels.dtype), height, width) != (1, "uint16", side, side):
        there = f"has {count} band{'s' if count != 1 else ''} of {pixels.dtype}, {width} x {height} pixels"
        raise DataError(f"{path}: {there}, but must have one of uint16, {side} x {side}; {faults.REPLACE}")
    if not pixels.any():
        raise DataError(f"{path}: is zero everywhere, which marks missing pixels; {faults.REPLACE}")
    return np.asarray(pixels[0])


def unreadable(path: Path, error: OSError) -> str:
    """Message about a band file that the system does not give."""
    if isinstance(error, PermissionError):
        return no_permission(path)
    missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
    return faults.missing_band(path) if missing else faults.unreadable_band(path, error.strerror)
