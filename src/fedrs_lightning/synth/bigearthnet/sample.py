"""Synthetic patches of BigEarthNet: what decides their bytes, how one is rendered, and the archive."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedrs_lightning.data.archives.bigearthnet.files import ALL_BANDS, IMAGES, SIDE, band_path
from fedrs_lightning.errors import ConfigError
from fedrs_lightning.seeding import numpy_stream
from fedrs_lightning.synth.bigearthnet import defects
from fedrs_lightning.synth.bigearthnet.files import encode, write_tables
from fedrs_lightning.synth.bigearthnet.landcover import PATCH_SIDE, PIXEL, labels, paint
from fedrs_lightning.synth.bigearthnet.patches import Patch, class_weights, largest, patches
from fedrs_lightning.synth.processes import spread
from fedrs_lightning.synth.sample import Sample
from fedrs_lightning.synth.scenes import sensor, spectra
from fedrs_lightning.synth.scenes.scene import Scene, blur, shrink
from fedrs_lightning.synth.scenes.shift import SpectralShift, spatial_style

SIZES = {"tiny": 10, "small": 120, "medium": 2500}
"""Summer patches of each of the eight countries."""

_CHUNK = 16  # patches that a process renders at a time
_ENOUGH = 400  # patches from which starting other processes pays
_POINT_SPREAD = 0.45  # pixels of 10 m: standard deviation of the instrument's blur
_GAIN = 0.025  # between scenes of one day, after the atmospheric correction
_SNOW = np.asarray([0.88, 0.88, 0.87, 0.86, 0.84, 0.82, 0.80, 0.77, 0.09, 0.07], dtype=np.float32)
_CLOUD = np.asarray([0.86, 0.85, 0.85, 0.85, 0.86, 0.86, 0.86, 0.85, 0.62, 0.50], dtype=np.float32)
_BARE = [spectra.INDEX[name] for name in ("conifer", "broadleaf", "scrub", "orchard", "water_clear", "water_turbid")]


@dataclass(frozen=True)
class BigEarthNetSample(Sample):
    """Everything that decides the bytes of a sample.

    Attributes:
        seed, spectral_shift, spatial_shift, defects: as for `Sample`; T also moves how often the classes occur.
        patches: summer patches of each of the eight countries.
    """

    title = "BigEarthNet"
    seed: int = 0
    patches: int = SIZES["tiny"]
    spectral_shift: float = 0.0
    spatial_shift: float = 0.0
    defects: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.patches <= largest():
            raise ConfigError(f"patches of a country must be in 1..{largest()}, got {self.patches}")
        defects.check(self.defects, self.patches)

    def count(self) -> int:
        """How many patches there are."""
        return len(patches(self.patches))

    def paint(self, folder: Path, processes: int | None = None) -> Iterator[None]:
        """Write band files, rendered by default in this process or for large samples in one each core; and both tables.

        Raises:
            RunError: a process died.
        """
        wanted = patches(self.patches)
        present: list[np.ndarray] = []
        chunks = [wanted[start : start + _CHUNK] for start in range(0, len(wanted), _CHUNK)]
        for name in {patch.product.name for patch in wanted}:
            (folder / IMAGES / name).mkdir(parents=True)
        usual = (os.cpu_count() or 1) if len(wanted) >= _ENOUGH else 1
        for found in spread(partial(_write_patches, folder / IMAGES, self), chunks, processes or usual):
            present += found
            yield from [None] * len(found)
        write_tables(folder, wanted, present)

    def plant(self, folder: Path) -> None:
        """Plant the defects."""
        for name in self.defects:
            defects.DEFECTS[name](folder)


def _write_patches(images: Path, sample: BigEarthNetSample, patches: Sequence[Patch]) -> list[np.ndarray]:
    """Render and write patches; gives which classes each has, bool [19]."""
    found = []
    for patch in patches:
        bands, present = render(sample, patch)
        (images / patch.product.name / patch.id).mkdir()
        for band in ALL_BANDS:
            band_path(images, patch.id, band).write_bytes(encode(bands[band], patch.product.epsg, patch.corner))
        found.append(present)
    return found


def paint_patch(sample: BigEarthNetSample, patch: Patch) -> tuple[Scene, np.ndarray]:
    """The painted ground of one patch, and the class of each pixel, int64 [120, 120]."""
    rng = numpy_stream(sample.seed, "synth", "bigearthnet", patch.country, patch.kind, patch.number)
    scene = Scene(PATCH_SIDE, PIXEL, rng, spatial_style(sample.seed, patch.domain, sample.spatial_shift))
    return scene, paint(scene, class_weights(patch.country, sample.spatial_shift))


def render(sample: BigEarthNetSample, patch: Patch) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """One patch: its twelve band files, uint16 [H, W] each, and which classes cover more than 5 %, bool [19]."""
    scene, regions = paint_patch(sample, patch)
    if patch.kind in ("winter", "snow"):
        scene.state += np.float32(0.45)  # leaves and crops are gone
        scene.shade -= np.float32(0.3)  # the sun is low
    pixels = scene.reflectance()
    if patch.kind == "snow":
        pixels = _snow(scene, pixels)
    pixels = SpectralShift(sample.seed, patch.domain, sample.spectral_shift)(pixels)
    if patch.kind == "cloud":
        pixels = _cloud(scene, pixels)
    pixels = blur(pixels, float(np.hypot(_POINT_SPREAD, scene.style.blur)))
    return to_bands(sensor.surface(pixels, scene.rng, spread=_GAIN)), labels(regions)


def to_bands(pixels: np.ndarray) -> dict[str, np.ndarray]:
    """Reflectance float32 [10, 120, 120] to the twelve band files; coarser bands are means of blocks."""
    b = dict(zip(spectra.BANDS, pixels, strict=True))
    b |= {"B01": 0.85 * b["B02"], "B09": 1.02 * b["B8A"]}  # aerosol and water vapour, made from their neighbours
    return {name: sensor.stored(shrink(b[name][None], len(b[name]) // side)[0]) for name, side in SIDE.items()}


def _snow(scene: Scene, pixels: np.ndarray) -> np.ndarray:
    """Snow on open ground, little of it on trees, none on water."""
    depth = np.clip(0.9 + 0.5 * scene.noise(150), 0, 1) * np.where(np.isin(scene.material, _BARE), 0.18, 0.95)
    depth[np.isin(scene.material, _BARE[-2:])] = 0
    white = _SNOW[:, None, None] * np.exp(0.1 * scene.noise(40))
    return (pixels + depth * (white - pixels)).astype(np.float32)


def _cloud(scene: Scene, pixels: np.ndarray) -> np.ndarray:
    """A broken cloud and its shadow to the north-west."""
    thickness = np.clip(0.7 * (scene.noise(330) + 0.25 * scene.noise(70)) - 0.1, 0, 1)
    shadow = np.roll(thickness, (-28, -22), axis=(0, 1))
    dark = pixels * (1 - 0.6 * shadow)
    return (dark + thickness * (_CLOUD[:, None, None] - dark)).astype(np.float32)
