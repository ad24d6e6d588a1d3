"""Where the files of a BigEarthNet-S2 v2.0 folder lie, and how one patch is decoded. The reader and the checker share
these rules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrs_lightning.data.archives.bigearthnet import faults
from fedrs_lightning.data.rasters.plain_tiff import plain_pixels
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
    "Finland",
    "Ireland",
    "Serbia",
    "Austria",
    "Belgium",
    "Lithuania",
    "Portugal",
    "Switzerland",
    "Kosovo",
    "Luxembourg",
)
"""The eight clients of FedMAD in their order, then the two countries without summer patches."""

SUMMER = (6, 7, 8)  # months of acquisition
SPLITS = ("train", "validation", "test")
IMAGES = "BigEarthNet-S2"
METADATA = "metadata.parquet"
FLAGGED_METADATA = "metadata_for_patches_with_snow_cloud_or_shadow.parquet"
SYNTHETIC = "SYNTHETIC.json"
EXPECTED = (
    "expected BigEarthNet-S2/<product>/<patch>/<patch>_B02.tif, with product folders such as "
    "S2A_MSIL2A_20170613T101031_N9999_R022_T33UUP"
)

PRODUCT = r"S2[A-Z]_MSIL2A_\d{4}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])T\d{6}_N\d{4}_R\d{3}_T\d{2}[A-Z]{3}"
PATCH = PRODUCT + r"_\d{2}_\d{2}"
_PATCH_V1 = r"S2[A-Z]_MSIL2A_\d{8}T\d+_\d+_\d+"
_ARCHIVE = re.compile(r"\.(tar\.zst|tar\.gz[a-z]{0,2}|tgz|tar)$")
_JUNK = {"Thumbs.db", "desktop.ini", "__MACOSX"}


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
    images, kind = find_root(root)
    top = Path(root).expanduser()
    if metadata is not None:
        table = Path(metadata).expanduser()
    else:
        near = [folder / METADATA for folder in (top, images, images.parent)]
        table = next((path for path in near if path.is_file()), near[0])
    flagged = Path(flagged_metadata).expanduser() if flagged_metadata is not None else table.parent / FLAGGED_METADATA
    return Layout(images, kind, table, flagged)


def find_root(root: str | os.PathLike[str]) -> tuple[Path, str]:
    """The folder of the images under a root, and its kind (`files` or `lmdb`).

    Raises:
        DataError: there is no v2.0 tree; says what was expected and what was found.
    """
    top = Path(root).expanduser()
    if not top.exists():
        raise DataError(f"{top}: no such folder; set root to the BigEarthNet folder that you downloaded and unpacked")
    if not top.is_dir():
        packed = _ARCHIVE.search(top.name)
        raise DataError(_still_packed(top) if packed else f"{top}: is a file; set root to the BigEarthNet folder")
    for folder in (top, top / IMAGES):
        if (folder / "data.mdb").is_file():
            return folder, "lmdb"
        if folder.is_dir() and _holds(folder, PRODUCT):
            return folder, "files"
    raise DataError(root_fault(top))


def root_fault(top: Path) -> str:
    """Why no v2.0 tree was found under an existing folder."""
    folders = [top, *(path for path in _entries(top) if path.is_dir())]
    for folder in folders:
        text = v1_fault(folder)
        if text:
            return text
    if re.fullmatch(PRODUCT, top.name):
        return f"{top}: is one product folder; set root to {top.parent}"
    if re.fullmatch(PATCH, top.name):
        return f"{top}: is one patch folder; set root to {top.parent.parent}"
    for folder in folders[1:]:
        if (folder / "data.mdb").is_file() or _holds(folder, PRODUCT) or _holds(folder / IMAGES, PRODUCT):
            return f"{top}: is one level too high; set root to {folder}"
    packed = [path for folder in folders for path in _entries(folder) if _ARCHIVE.search(path.name)]
    if packed:
        return _still_packed(packed[0])
    names = [path.name for path in _entries(top)]
    found = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return (
        f"{top}: no BigEarthNet v2.0 tree; {EXPECTED}, found: {found}"
        if names
        else f"{top}: the folder is empty; {EXPECTED}"
    )


def _still_packed(path: Path) -> str:
    name, folder = path.name, path.parent
    if ".tar.gza" in name:  # split in parts: .tar.gzaa, .tar.gzab
        command = f"cat {folder / name.split('.tar.gz')[0]}.tar.gz* | tar -xz -C {folder}"
    else:
        command = f"tar {'--zstd ' if name.endswith('.zst') else ''}-xf {path} -C {folder}"
    return f"{path}: is still packed; unpack it with: {command}"


def v1_fault(path: Path) -> str | None:
    """Why this folder is of the first release, or None: its patches lie in no product folder and carry JSON files.

    Args:
        path: a root, a folder of patches, or one patch folder.
    """
    for folder in (path, *_entries(path)):
        if re.fullmatch(_PATCH_V1, folder.name) and folder.is_dir():
            return _version_one(folder, "a patch without product folder, its column and row not padded")
    label = next((file for file in _entries(path) if file.name.endswith("_labels_metadata.json")), None)
    return None if label is None else _version_one(label, "a JSON file of labels beside the bands")


def _version_one(path: Path, sign: str) -> str:
    return (
        f"{path}: this is BigEarthNet v1.0 ({sign}); its pixels, labels and splits are others than those of v2.0 and "
        "the "
        "two must not be mixed; download BigEarthNet v2.0 (BigEarthNet-S2.tar.zst and metadata.parquet)"
    )


def junk(name: str) -> bool:
    """Files that operating systems and viewers leave behind."""
    return name.startswith(".") or name in _JUNK or name.endswith((".tfw", ".aux.xml", ".ovr"))


def synthetic_marker(layout: Layout) -> Path | None:
    """`SYNTHETIC.json` of the archive, if it is synthetic."""
    places = (layout.images / SYNTHETIC, layout.images.parent / SYNTHETIC)
    return next((path for path in places if path.is_file()), None)


def decode_patch(images: Path, patch_id: str) -> dict[str, np.ndarray]:
    """Read the ten band files of a patch: `image10` uint16 [4, 120, 120] and `image20` uint16 [6, 60, 60], reflectance
    x 10000.

    Raises:
        DataError: a file is missing, unreadable, zero everywhere, or has another size or type; names the file.
    """
    return {
        "image10": np.stack([read_band(band_path(images, patch_id, band), band) for band in BANDS_10M]),
        "image20": np.stack([read_band(band_path(images, patch_id, band), band) for band in BANDS_20M]),
    }


def read_band(path: Path, band: str) -> np.ndarray:
    """Pixels of one band file, uint16 [H, W]. Plain files, as in the official archive, need no GDAL; the values are the
    same.

    Raises:
        DataError: as in `decode_patch`.
    """
    try:
        pixels = plain_pixels(path, SIDE[band])
    except OSError:
        pixels = None  # what is wrong with it is said below
    if pixels is None:
        pixels = _read_any(path, band)
    if not pixels.any():
        raise DataError(faults.zero_band(path))
    return pixels


def _read_any(path: Path, band: str) -> np.ndarray:
    import rasterio
    from rasterio.errors import RasterioError

    try:
        with rasterio.open(path) as raster:
            fault = header_fault(raster, path, band)
            if fault:
                raise DataError(fault)
            return np.asarray(raster.read(1))
    except RasterioError as error:
        raise DataError(_open_fault(path, error)) from None


def header_fault(raster: object, path: Path, band: str) -> str | None:
    """What is wrong with an opened band file by its header, or None."""
    count, dtypes = raster.count, raster.dtypes  # type: ignore[attr-defined]
    width, height = raster.width, raster.height  # type: ignore[attr-defined]
    return faults.bad_band(path, count, dtypes[0], width, height, SIDE[band])


def _open_fault(path: Path, error: Exception) -> str:
    if not path.exists():
        return faults.missing_band(path)
    return faults.unreadable_band(path, error) if os.access(path, os.R_OK) else faults.no_permission(path)


def decoder_name() -> str:
    """Library and version that decode the band files."""
    import rasterio

    return f"rasterio {rasterio.__version__}, gdal {rasterio.__gdal_version__}"


def _entries(folder: Path) -> list[Path]:
    """Entries without junk, sorted; none of what is no folder."""
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder) if not junk(entry.name))
    except (NotADirectoryError, FileNotFoundError):
        return []
    except PermissionError:
        raise DataError(faults.no_permission(folder)) from None


def _holds(folder: Path, pattern: str) -> bool:
    return any(re.fullmatch(pattern, entry.name) for entry in _names(folder))


def _names(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except (NotADirectoryError, FileNotFoundError):
        return
    except PermissionError:
        raise DataError(faults.no_permission(folder)) from None
