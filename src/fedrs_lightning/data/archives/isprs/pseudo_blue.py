"""A blue band for tiles that have none: blue = a IR + b R + c G + d, fitted on Potsdam RGBIR training tiles."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedrs_lightning.data.archives.isprs.potsdam import TRAIN, Potsdam
from fedrs_lightning.data.rasters.rows import open_rows
from fedrs_lightning.errors import DataError
from fedrs_lightning.files import read_json, write_json

STRIP, STEP = 8, 64  # rows read out of every so many; neighbouring rows say little new


def fitted(root: str | os.PathLike[str], cache: Path) -> tuple[float, ...]:
    """Coefficients of IR, R, G and 1; kept in the cache for the same files.

    Raises:
        DataError: the folder has no RGBIR training tile, or its tiles are too plain to fit.
    """
    found = Potsdam(str(root)).files()
    tiles = {tile: found.images["RGBIR"][tile][0] for tile in TRAIN if tile in found.images["RGBIR"]}
    if not tiles:
        needed = "which modality pseudo_rgb needs to fit blue"
        raise DataError(f"{found.folder}: holds no RGBIR training tile (4_Ortho_RGBIR), {needed}")
    stats = [(tile, path.stat()) for tile, path in tiles.items()]
    key = json.dumps([STRIP, STEP, *([tile, stat.st_size, stat.st_mtime_ns] for tile, stat in stats)])
    kept = cache / f"pseudo-blue-{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"
    if not kept.is_file():
        write_json(kept, {"tiles": list(tiles), "coefficients": list(fit(list(tiles.values())))})
    return tuple(float(value) for value in read_json(kept)["coefficients"])


def fit(paths: list[Path]) -> tuple[float, ...]:
    """Least squares over eight rows of every 64 of each RGBIR file, from exact integer sums.

    Returns:
        Coefficients of IR, R, G and 1.
    """
    gram, moment = np.zeros((4, 4), dtype=np.int64), np.zeros(4, dtype=np.int64)
    for path in paths:
        with open_rows(path) as raster:
            if raster.bands < 4 or raster.dtype != "uint8":
                needed = "four of uint8 are needed; replace it from the archive"
                raise DataError(f"{path}: has {raster.bands} bands of {raster.dtype}, {needed}")
            for start in range(0, raster.height, STEP):
                strip = raster.rows(start, min(start + STRIP, raster.height))
                pixels = strip.reshape(raster.bands, -1).astype(np.int64)
                known = np.stack([pixels[3], pixels[0], pixels[1], np.ones_like(pixels[0])])
                gram += known @ known.T
                moment += known @ pixels[2]
    if np.linalg.matrix_rank(gram.astype(np.float64)) < 4:
        raise DataError(f"{paths[0]}: IR, red and green do not vary independently, so blue cannot be fitted")
    return tuple(float(value) for value in np.linalg.solve(gram.astype(np.float64), moment.astype(np.float64)))


def pseudo_rgb(coefficients: tuple[float, ...]) -> Callable[[np.ndarray], np.ndarray]:
    """Function from IR, R, G rows to R, G, estimated B rows, uint8 [3, n, W]; rounded and clipped."""
    weights = np.asarray(coefficients, dtype=np.float32)

    def mix(pixels: np.ndarray) -> np.ndarray:
        blue = np.tensordot(weights[:3], pixels.astype(np.float32), axes=1) + weights[3]
        return np.concatenate([pixels[1:3], np.clip(np.rint(blue), 0, 255).astype(np.uint8)[None]])

    return mix
