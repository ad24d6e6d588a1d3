"""How far apart domains are: one measure for spectra, one for the layout of the ground."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from fedrs_lightning.synth.scenes import spectra

_NOISE = 0.001  # reflectance; a band that the shift pushed onto its lower bound does not vary at all
_ENOUGH = 400  # pixels of a material in every domain, below which its mean says little


def spectral_gap(domains: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """Distance between domains' mean spectra of a material over its pooled deviation, averaged over materials and
    pairs.

    Near 0 when all domains share one distribution.

    Args:
        domains: for each, reflectance [10, P] of its pixels and their materials, int [P].
    """
    distances = []
    for material in range(len(spectra.NAMES)):
        groups = [pixels[:, materials == material] for pixels, materials in domains]
        if min(group.shape[1] for group in groups) < _ENOUGH:
            continue
        within = np.sqrt(np.mean([group.var(axis=1, dtype=np.float64) for group in groups], axis=0))
        within = np.maximum(within, _NOISE)
        means = [group.mean(axis=1, dtype=np.float64) for group in groups]
        distances += [np.sqrt(np.mean(((first - second) / within) ** 2)) for first, second in combinations(means, 2)]
    if not distances:
        raise ValueError("no material has enough pixels in every domain")
    return float(np.mean(distances))


def spatial_gap(domains: Sequence[Sequence[np.ndarray]], pixel: float) -> float:
    """Distance between domains' histograms of material areas and of object sizes, in [0, 1], averaged over pairs.

    Object size is the length in metres of a run of one material along a row or a column, weighted by its pixels, in
    classes of half an octave, the first up to a metre. The distance is half the sum of absolute differences.

    Args:
        domains: for each, its material maps, int [n, n].
        pixel: of the maps, metres.
    """
    areas = [_share(np.concatenate([tile.ravel() for tile in maps]), len(spectra.NAMES)) for maps in domains]
    sizes = []
    for maps in domains:
        lengths = np.concatenate([run_lengths(tile) for both in maps for tile in (both, both.T)])
        classes = np.maximum(np.rint(2 * np.log2(lengths * pixel)), 0).astype(np.int64)
        sizes.append(_share(np.repeat(classes, lengths), 40))
    pairs = list(combinations(range(len(domains)), 2))
    return float(np.mean([np.abs(kind[a] - kind[b]).sum() / 2 for kind in (areas, sizes) for a, b in pairs]))


def run_lengths(tile: np.ndarray) -> np.ndarray:
    """Lengths in pixels of the runs of equal values along each row; int [runs]."""
    height, width = tile.shape
    starts = np.ones((height, width), dtype=bool)
    starts[:, 1:] = tile[:, 1:] != tile[:, :-1]
    return np.diff(np.append(np.flatnonzero(starts), height * width))


def _share(values: np.ndarray, size: int) -> np.ndarray:
    return np.bincount(values, minlength=size) / len(values)
