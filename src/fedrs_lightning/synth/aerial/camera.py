"""From light to 8-bit pictures, and from kinds of ground to the label files of the ISPRS and LoveDA data sets."""

from __future__ import annotations

import numpy as np

from fedrs_lightning.data.rasters.class_tables import ISPRS
from fedrs_lightning.synth.aerial.scene import AerialScene
from fedrs_lightning.synth.scenes.scene import blur

VIEWS: dict[str, tuple[int, ...]] = {"RGB": (0, 1, 2), "IRRG": (3, 0, 1), "RGBIR": (0, 1, 2, 3)}
"""Channels of each picture among red, green, blue, near infrared."""

ISPRS_COLOURS = np.asarray([*ISPRS.colours, *ISPRS.ignored], dtype=np.uint8)
"""Impervious, building, low vegetation, tree, car, clutter, and black for eroded boundaries."""

CAR, BOUNDARY = 4, 6
# Class of each `Kind`: road, paved, building, grass, tree, forest, water, barren, field, clutter.
_ISPRS = np.asarray([0, 0, 1, 2, 3, 3, 5, 5, 2, 5], dtype=np.uint8)
_LOVEDA = np.asarray([3, 1, 2, 1, 1, 6, 4, 5, 7, 1], dtype=np.uint8)

_WHITE = 0.6  # reflectance of 255
_POINT_SPREAD = 0.6  # standard deviation in pixels


def expose(light: np.ndarray, rng: np.random.Generator, extra_blur: float) -> np.ndarray:
    """Picture with gamma 1/2.2, uint8 [H, W, C], of reflectance, float32 [C, H, W].

    The camera has a point spread (the domain adds `extra_blur` pixels), noise and a slightly varying exposure.
    """
    gain = np.exp(rng.normal(0, 0.06) + rng.normal(0, 0.02, len(light))).astype(np.float32)
    sharp = blur(light, float(np.hypot(_POINT_SPREAD, extra_blur))) * (gain / np.float32(_WHITE))[:, None, None]
    grey = np.clip(sharp, 0, 1) ** np.float32(1 / 2.2) + 0.008 * rng.standard_normal(light.shape, dtype=np.float32)
    return np.ascontiguousarray(np.rint(np.clip(grey, 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0))


def isprs_classes(scene: AerialScene) -> np.ndarray:
    """Index into `ISPRS_COLOURS` of each pixel, uint8 [n, n]."""
    return np.where(scene.car, np.uint8(CAR), _ISPRS[scene.kind])


def loveda_classes(scene: AerialScene) -> np.ndarray:
    """LoveDA mask values 1 to 7, uint8 [n, n]; a car counts as what it stands on."""
    return _LOVEDA[scene.kind]


def erode(classes: np.ndarray, reach: int = 3) -> np.ndarray:
    """Mark pixels within `reach` pixels of another class as `BOUNDARY`, as the noBoundary label files do."""
    near = np.zeros(classes.shape, dtype=bool)
    padded = np.pad(classes, reach, mode="edge")
    height, width = classes.shape
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            if 0 < down * down + right * right <= reach * reach:
                near |= padded[reach + down : reach + down + height, reach + right : reach + right + width] != classes
    return np.where(near, np.uint8(BOUNDARY), classes)
