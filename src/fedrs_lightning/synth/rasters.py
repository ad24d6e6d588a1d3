"""Pictures as files: GeoTIFF, TIFF, PNG and JPEG."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def encode(pixels: np.ndarray, kind: str, **options: Any) -> bytes:
    """Picture of uint8 [H, W] or [H, W, C] in a format that Pillow writes, with its options."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=kind, **options)
    return buffer.getvalue()


def geotiff(bands: np.ndarray, epsg: int, corner: tuple[float, float], step: float, **options: Any) -> bytes:
    """GeoTIFF of pixels [C, H, W] of any type, with options of GDAL.

    The upper left corner (easting and northing) and the side of a pixel are metres in the reference system `epsg`.
    """
    from rasterio import Affine
    from rasterio.io import MemoryFile

    count, height, width = bands.shape
    place = {"crs": f"EPSG:{epsg}", "transform": Affine(step, 0, corner[0], 0, -step, corner[1])}
    profile = {"driver": "GTiff", "dtype": str(bands.dtype), "count": count, "height": height, "width": width}
    with MemoryFile() as memory:
        with memory.open(**profile, **place, **options) as raster:
            raster.write(bands)
        return bytes(memory.read())


def read(path: Path) -> np.ndarray:
    """All of a raster, [C, H, W]."""
    import rasterio

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(path) as raster:
            return np.asarray(raster.read())


def rewrite_geotiff(path: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Save a GeoTIFF again in its place with changed pixels, [C, H, W]."""
    import rasterio

    with rasterio.open(path) as raster:
        bands, old = change(raster.read()), raster.profile
    count, height, width = bands.shape
    kept = {name: old[name] for name in ("driver", "nodata", "crs", "transform")}
    with rasterio.open(path, "w", **kept, dtype=bands.dtype, count=count, height=height, width=width) as raster:
        raster.write(bands)
