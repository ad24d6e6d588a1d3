"""Known faults of a EuroSAT folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.synth.defects import add_junk, remove_folders, require_known, truncate, zip_folder
from fedrs_lightning.synth.rasters import geotiff, rewrite_geotiff


def _wrong_size(tiles: Path) -> None:
    path = _second(tiles, "Highway")
    if path.suffix == ".tif":
        rewrite_geotiff(path, lambda bands: bands[:, :48, :48])
    else:
        Image.open(path).resize((48, 48)).save(path, quality=90)


def _convert(path: Path, mode: str) -> None:
    Image.open(path).convert(mode).save(path, quality=90)


def _tif_for_rgb(tiles: Path) -> None:
    path = _second(tiles, "Residential")
    pixels = np.asarray(Image.open(path)).transpose(2, 0, 1).astype(np.uint16) * 11  # 255 is about reflectance 0.28
    path.unlink()
    path.with_suffix(".tif").write_bytes(geotiff(np.resize(pixels, (13, *pixels.shape[1:])), *UTM))


def _duplicate(tiles: Path) -> None:
    path = _second(tiles, "River")
    shutil.copyfile(path.with_stem("River_1"), path)


def _junk_files(tiles: Path) -> None:
    add_junk(tiles, tiles / "AnnualCrop", "AnnualCrop_1.jpg")
    (tiles / "__MACOSX" / "AnnualCrop").mkdir(parents=True)


DEFECTS: dict[str, Callable[[Path], object]] = {
    "missing-class": lambda tiles: shutil.rmtree(tiles / "SeaLake"),
    "misspelt-class": lambda tiles: (tiles / "Forest").rename(tiles / "Forrest"),
    "wrong-size": _wrong_size,
    "grey": lambda tiles: _convert(_second(tiles, "Industrial"), "L"),
    "cmyk": lambda tiles: _convert(_second(tiles, "Pasture"), "CMYK"),
    "truncated": lambda tiles: truncate(_second(tiles, "PermanentCrop")),
    "tif-for-rgb": _tif_for_rgb,
    "duplicate": _duplicate,
    "junk-files": _junk_files,
    "zipped": zip_folder,
    "empty": remove_folders,
}
"""Name to what changes the folder of the class folders. `junk-files` is no fault: readers must ignore it."""

ALONE = ("zipped", "empty")
JPEG_ONLY = ("grey", "cmyk", "tif-for-rgb")
UTM = (32632, (600000, 5300000), 10)
"""Made-up place of every tile: EPSG code, corner and side of a pixel, metres."""


def check(names: Sequence[str], geotiffs: bool) -> None:
    """Refuse unknown names and combinations that cannot be.

    Raises:
        ConfigError: with the nearest valid name.
    """
    require_known(names, DEFECTS, ALONE, "leaves no tiles")
    for name in (name for name in names if geotiffs and name in JPEG_ONLY):
        raise ConfigError(f"defect '{name}' needs a layout with JPEGs")


def _second(tiles: Path, name: str) -> Path:
    return min((tiles / name).glob(f"{name}_2.*"))
