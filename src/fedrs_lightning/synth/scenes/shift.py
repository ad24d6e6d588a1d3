"""Domain shift with two separate knobs: spectral (S) acts on reflectance, spatial (T) on what is drawn and where.

Both are functions of (seed, domain) and a strength in [0, 1]. At strength 0 all domains are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedrs_lightning.seeding import numpy_stream
from fedrs_lightning.synth.scenes import spectra

GOLDEN = 0.6180339887498949


class SpectralShift:
    """x' = clip(g * (A x) + o) per pixel, with A = I + 0.25 S R, g = exp(S u), o = S v.

    R has rows that sum to zero and absolute row sums of 1; u in [-0.5, 0.5] and v in [-0.06, 0.06] for each band.
    S, the strength in [0, 1], is exactly the identity at 0.
    """

    def __init__(self, seed: int, domain: int, strength: float) -> None:
        rng, bands = numpy_stream(seed, "synth", "spectral", domain), len(spectra.BANDS)
        mixing = rng.uniform(-1, 1, (bands, bands))
        mixing -= mixing.mean(axis=1, keepdims=True)
        mixing /= np.abs(mixing).sum(axis=1, keepdims=True)
        self.strength = strength
        self.mix = (np.eye(bands) + 0.25 * strength * mixing).astype(np.float32)
        self.gain = np.exp(strength * rng.uniform(-0.5, 0.5, bands)).astype(np.float32)
        self.offset = (strength * rng.uniform(-0.06, 0.06, bands)).astype(np.float32)

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """Shifted reflectance in `spectra.BANDS`, float32 [10, H, W]."""
        if self.strength == 0:
            return pixels
        mixed = np.tensordot(self.mix, pixels, axes=1)
        moved = self.gain[:, None, None] * mixed + self.offset[:, None, None]
        return np.clip(moved, np.float32(0.0001), np.float32(1.5))


@dataclass(frozen=True)
class Style:
    """How a domain's ground is laid out.

    Attributes:
        scale: factor on sizes of parcels, buildings, trees and water.
        density: factor on numbers of objects.
        orientation: preferred direction, radians.
        spread: 1 = every direction is equally likely, 0 = only the preferred one.
        winding: 0 = straight edges and road grids, 1 = strongly bent.
        blur: standard deviation of an extra point spread, pixels of the sensor.
        preference: log factor on the share of each material, by name.
    """

    scale: float = 1.0
    density: float = 1.0
    orientation: float = 0.0
    spread: float = 1.0
    winding: float = 0.35
    blur: float = 0.0
    preference: Mapping[str, float] = field(default_factory=dict)

    def angle(self, rng: np.random.Generator) -> float:
        """Draw a direction in radians."""
        return self.orientation + (rng.random() - 0.5) * np.pi * self.spread

    def choose(self, rng: np.random.Generator, shares: Mapping[str, float], size: int) -> np.ndarray:
        """Draw `size` materials, int [size], by shares that the domain's preference moves."""
        names = list(shares)
        weights = np.asarray([shares[name] * np.exp(self.preference.get(name, 0.0)) for name in names])
        numbers = np.asarray([spectra.INDEX[name] for name in names])
        # Inverse distribution function: a small change of the shares changes few draws.
        drawn = np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(size))
        return numbers[np.minimum(drawn, len(names) - 1)]


def spatial_style(seed: int, domain: int, strength: float) -> Style:
    """Layout style of a domain (from 0) at strength T in [0, 1]; at 0 all domains differ in no way that matters.

    Scales and densities of the domains are spread by golden-ratio steps, so that neighbours in number differ clearly.
    """
    rng = numpy_stream(seed, "synth", "spatial", domain)
    start = numpy_stream(seed, "synth", "spatial").random(4)
    # Alternate signs, so that density does not simply follow scale.
    scale, density, winding, blur = (2 * np.mod(start + GOLDEN * domain * np.array([1, -2, 3, -1]), 1.0) - 1).tolist()
    direction = float(rng.uniform(0, np.pi)), 1 - 0.8 * strength
    details = 0.35 + strength * (0.35 * winding), strength * 0.5 * (1 + blur) / 2
    preference = {name: strength * float(rng.normal(0, 0.8)) for name in spectra.NAMES}
    return Style(2 ** (strength * scale), 2 ** (strength * density), *direction, *details, preference)
