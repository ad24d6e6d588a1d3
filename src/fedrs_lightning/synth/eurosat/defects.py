"""Known faults of a EuroSAT folder, injected one by one, to try checks and error messages on."""

from __future__ import annotations

import difflib
import shutil
import zipfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedrs_lightning.errors import ConfigError


def _missing_class(tiles: Path) -> None:
    shutil.rmtree(tiles / "SeaLake")


def _misspelt_class(tiles: Path) -> None:
    (tiles / "Forest").rename(tiles / "Forrest")


def _wrong_size(tiles: Path) -> None:
    path = _second(tiles, "Highway")
    if path.suffix == ".tif":
        _rewrite_geotiff(path, lambda bands: bands[:, :48, :48])
    else:
        Image.open(path).resize((48, 48)).save(path, quality=90)


def _grey(tiles: Path) -> None:
    path = _second(tiles, "Industrial")
    Image.open(path).convert("L").save(path, quality=90)


def _cmyk(tiles: Path) -> None:
    path = _second(tiles, "Pasture")
    Image.open(path).convert("CMYK").save(path, quality=90)


def _truncated(tiles: Path) -> None:
    path = _second(tiles, "PermanentCrop")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


def _tif_for_rgb(tiles: Path) -> None:
    from rasterio.transform import from_origin

    path = _second(tiles, "Residential")
    pixels = np.asarray(Image.open(path)).transpose(2, 0, 1).astype(np.uint16) * 11  # 255 is about reflectance 0.28
    path.unlink()
    _save_geotiff(
        path.with_suffix(".tif"), np.resize(pixels, (13, *pixels.shape[1:])), from_origin(600000, 5300000, 10, 10)
    )


def _duplicate(tiles: Path) -> None:
    path = _second(tiles, "River")
    shutil.copyfile(path.with_stem("River_1"), path)


def _junk_files(tiles: Path) -> None:
    (tiles / ".DS_Store").write_bytes(b"\x00\x00\x00\x01Bud1")
    (tiles / "AnnualCrop" / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    (tiles / "AnnualCrop" / "._AnnualCrop_1.jpg").write_bytes(b"\x00\x05\x16\x07")
    (tiles / "__MACOSX" / "AnnualCrop").mkdir(parents=True)


def zip_folder(folder: Path) -> None:
    """Put an archive with the folder's files in its place."""
    with zipfile.ZipFile(folder.with_suffix(".zip"), "w") as archive:
        for path in sorted(folder.rglob("*.*")):
            archive.writestr(zipfile.ZipInfo(f"{folder.name}/{path.relative_to(folder).as_posix()}"), path.read_bytes())
    shutil.rmtree(folder)


def _empty(tiles: Path) -> None:
    for folder in list(tiles.iterdir()):
        shutil.rmtree(folder)


DEFECTS: dict[str, Callable[[Path], None]] = {
    "missing-class": _missing_class,
    "misspelt-class": _misspelt_class,
    "wrong-size": _wrong_size,
    "grey": _grey,
    "cmyk": _cmyk,
    "truncated": _truncated,
    "tif-for-rgb": _tif_for_rgb,
    "duplicate": _duplicate,
    "junk-files": _junk_files,
    "zipped": zip_folder,
    "empty": _empty,
}
"""Name to what changes the folder of the class folders. `junk-files` is no fault: readers must ignore it."""

ALONE = ("zipped", "empty")
JPEG_ONLY = ("grey", "cmyk", "tif-for-rgb")


def check(names: Sequence[str], geotiff: bool) -> None:
    """Refuse unknown names and combinations that cannot be.

    Raises:
        ConfigError: with the nearest valid name.
    """
    require_known(names, DEFECTS, ALONE, "leaves no tiles")
    for name in names:
        if geotiff and name in JPEG_ONLY:
            raise ConfigError(f"defect '{name}' needs a layout with JPEGs")


def require_known(names: Sequence[str], valid: Collection[str], alone: Collection[str], why: str, of: str = "") -> None:
    """Refuse names that no defect has, and company for those that stand alone.

    Args:
        names: asked for.
        valid: all names.
        alone: names that suffer no other.
        why: what these do.
        of: data set, where its defects are not the only ones that a message could mean.

    Raises:
        ConfigError: with the nearest valid name.
    """
    for name in names:
        if name not in valid:
            raise ConfigError(f"unknown defect '{name}'{f' of {of}' if of else ''}; {nearest(name, valid)}")
        if name in alone and len(names) > 1:
            raise ConfigError(f"defect '{name}' {why}, so it cannot be combined with others")


def nearest(name: str, valid: Collection[str]) -> str:
    """What to write instead of an unknown name."""
    near = difflib.get_close_matches(name, valid, n=1)
    return f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(valid)}"


def inject(root: Path, tiles: Path, names: Sequence[str]) -> None:
    """Apply the named defects to a finished sample.

    Args:
        root: of the sample.
        tiles: folder of the class folders.
        names: of `DEFECTS`.
    """
    for name in names:
        DEFECTS[name](tiles)
    if tiles.is_dir() and not any(tiles.iterdir()) and tiles != root:
        tiles.rmdir()


def _second(tiles: Path, name: str) -> Path:
    return next(iter(sorted((tiles / name).glob(f"{name}_2.*"))))


def _rewrite_geotiff(path: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    import rasterio

    with rasterio.open(path) as raster:
        bands, transform = raster.read(), raster.transform
    _save_geotiff(path, change(bands), transform)


def _save_geotiff(path: Path, bands: np.ndarray, transform: object) -> None:
    import rasterio

    profile = {
        "driver": "GTiff",
        "dtype": "uint16",
        "count": len(bands),
        "height": bands.shape[1],
        "width": bands.shape[2],
    }
    with rasterio.open(path, "w", **profile, crs="EPSG:32632", transform=transform) as raster:
        raster.write(bands)
