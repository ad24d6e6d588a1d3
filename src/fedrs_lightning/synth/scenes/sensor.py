"""From reflectance at the ground to the numbers of a Sentinel-2 product."""

from __future__ import annotations

import numpy as np

from fedrs_lightning.synth.scenes import spectra

# What the air adds to each band at the top of the atmosphere, reflectance, on a middling day.
_PATH = np.asarray([0.066, 0.036, 0.021, 0.017, 0.014, 0.012, 0.010, 0.009, 0.002, 0.001], dtype=np.float32)
_STRETCH = 0.28  # reflectance that the contrast stretch of the EuroSAT JPEGs maps to 255


def top_of_atmosphere(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Add path radiance of a random day, a random gain of the scene, and sensor noise; float32 [10, H, W]."""
    haze = np.float32(rng.lognormal(0, 0.16))
    return surface(pixels, rng, haze * _PATH[:, None, None])


def surface(
    pixels: np.ndarray, rng: np.random.Generator, path: np.ndarray | float = 0.0, spread: float = 0.05
) -> np.ndarray:
    """Add a random gain of each band (its logarithm by `spread`), `path` radiance and noise; float32 [10, H, W]."""
    gain = np.exp(rng.normal(0, spread, len(spectra.BANDS))).astype(np.float32)
    noise = 0.0012 * rng.standard_normal(pixels.shape, dtype=np.float32)
    return gain[:, None, None] * pixels + path + noise


def to_rgb(pixels: np.ndarray) -> np.ndarray:
    """Contrast-stretched red, green, blue, uint8 [H, W, 3], from reflectance [10, H, W]."""
    view = pixels[[spectra.RED, spectra.GREEN, spectra.BLUE]].transpose(1, 2, 0)
    return np.rint(np.clip(view / _STRETCH, 0, 1) * 255).astype(np.uint8)


def to_l1c(pixels: np.ndarray) -> np.ndarray:
    """Thirteen bands as in a EuroSAT GeoTIFF (B8A last), reflectance x 10000, at least 1; uint16 [13, H, W].

    The aerosol, water-vapour and cirrus bands are made from their neighbours.
    """
    b = dict(zip(spectra.BANDS, pixels, strict=True))
    b |= {"B01": 0.9 * b["B02"] + 0.03, "B09": 0.3 * b["B8A"] + 0.005, "B10": 0.004 * b["B02"] + 0.0008}
    return stored(np.stack([b[f"B{number:02d}"] for number in range(1, 13)] + [b["B8A"]]))


def stored(pixels: np.ndarray) -> np.ndarray:
    """Reflectance as products store it: x 10000, at least 1, uint16."""
    return np.rint(np.clip(pixels * 10000, 1, 65535)).astype(np.uint16)
