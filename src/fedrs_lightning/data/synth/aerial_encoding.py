"""Files of synthetic aerial tiles: GeoTIFF and PNG."""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image


def encode_tiff(pixels: np.ndarray, corner: tuple[float, float] | None = None, pixel: float = 1.0) -> bytes:
    """GeoTIFF of uint8 [H, W, C] or [H, W], deflated; georeferenced in UTM zone 33 north if a corner is given.

    Args:
        pixels: three channels are stored as RGB, a fourth without a meaning.
        corner: easting and northing of the upper left corner, metres.
        pixel: metres.
    """
    from rasterio.errors import NotGeoreferencedWarning
    from rasterio.io import MemoryFile
    from rasterio.transform import from_origin

    bands = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    profile = {"driver": "GTiff", "dtype": str(pixels.dtype), "count": len(bands), "height": bands.shape[1], "width": bands.shape[2]}
    profile |= {"compress": "deflate", "predictor": 2, "interleave": "pixel", "photometric": "MINISBLACK" if len(bands) < 3 else "RGB"}
    if len(bands) == 4:
        profile["alpha"] = "UNSPECIFIED"
    if corner is not None:
        profile |= {"crs": "EPSG:32633", "transform": from_origin(*corner, pixel, pixel)}
    with MemoryFile() as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)  # Vaihingen's real files have no georeference either
        with memory.open(**profile) as raster:
            raster.write(bands)
        return bytes(memory.read())


def encode_png(pixels: np.ndarray) -> bytes:
    """PNG of uint8 [H, W] or [H, W, 3]."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()
