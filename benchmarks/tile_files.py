"""Full-size aerial tiles in their official layouts, made of noise and blocks."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import rasterio
from rasterio.errors import NotGeoreferencedWarning

from fedrs_lightning.data.rasters.class_tables import ISPRS


def write_tile(image: Path, label: Path, height: int, width: int, seed: int, **options: object) -> None:
    """An image of three bands and its label in colours, uint8, written in strips."""
    rng = np.random.default_rng(seed)
    colours = np.asarray([*ISPRS.colours, *ISPRS.ignored], dtype=np.uint8)
    warnings.simplefilter("ignore", NotGeoreferencedWarning)
    for path in (image, label):
        path.parent.mkdir(parents=True, exist_ok=True)
    profile = {"driver": "GTiff", "height": height, "width": width, "count": 3, "dtype": "uint8"} | options
    with rasterio.open(image, "w", **profile) as pixels, rasterio.open(label, "w", **profile) as ids:
        for start in range(0, height, 100):
            rows = min(100, height - start)
            window = ((start, start + rows), (0, width))
            blocks = np.repeat(rng.integers(0, 7, -(-width // 50)), 50)[:width]
            map_ = np.broadcast_to(blocks, (rows, width)).copy()
            map_[:3] = 6
            noise = rng.integers(0, 40, (3, rows, width), dtype=np.uint8)
            pixels.write(noise + (colours[map_].transpose(2, 0, 1) // 2), window=window)
            ids.write(colours[map_].transpose(2, 0, 1), window=window)
