"""Files of synthetic aerial tiles: GeoTIFF and PNG."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def encode_tiff(pixels: np.ndarray, corner: tuple[float, float] | None = None, pixel: float = 1.0) -> bytes:
    """TIFF of uint8 [H, W, C] or [H, W], deflated; a GeoTIFF in UTM zone 33 north if a corner is given.

    Args:
        pixels: three channels are stored as RGB; a fourth without a meaning, or as alpha where there is no corner.
        corner: easting and northing of the upper left corner, metres.
        pixel: metres.
    """
    if corner is None:  # GDAL would warn of the missing georeference, from whatever thread
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, format="TIFF", compression="tiff_adobe_deflate")
        return buffer.getvalue()
    from rasterio import Affine
    from rasterio.io import MemoryFile

    bands = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    profile = {
        "driver": "GTiff",
        "dtype": str(pixels.dtype),
        "count": len(bands),
        "height": bands.shape[1],
        "width": bands.shape[2],
    }
    profile |= {
        "compress": "deflate",
        "predictor": 2,
        "interleave": "pixel",
        "photometric": "MINISBLACK" if len(bands) < 3 else "RGB",
    }
    profile |= {"crs": "EPSG:32633", "transform": Affine(pixel, 0, corner[0], 0, -pixel, corner[1])}
    if len(bands) == 4:
        profile["alpha"] = "UNSPECIFIED"
    with MemoryFile() as memory:
        with memory.open(**profile) as raster:
            raster.write(bands)
        return bytes(memory.read())


def encode_png(pixels: np.ndarray) -> bytes:
    """PNG of uint8 [H, W] or [H, W, 3]."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()
