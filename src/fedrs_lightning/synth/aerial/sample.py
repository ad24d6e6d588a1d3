"""Synthetic tiles of Potsdam, Vaihingen and LoveDA: what a sample holds, and how one tile is painted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedrs_lightning.data.archives.isprs import potsdam as potsdam
from fedrs_lightning.data.archives.isprs import vaihingen
from fedrs_lightning.data.archives.loveda.archive import RANGES
from fedrs_lightning.errors import ConfigError
from fedrs_lightning.seeding import numpy_stream
from fedrs_lightning.synth.aerial import camera, defects
from fedrs_lightning.synth.aerial.archive import LAYOUTS, Tile, files_of
from fedrs_lightning.synth.aerial.country import paint_town_and_country
from fedrs_lightning.synth.aerial.scene import AerialScene
from fedrs_lightning.synth.aerial.town import Town, paint_town
from fedrs_lightning.synth.sample import Sample
from fedrs_lightning.synth.scenes.shift import GOLDEN, SpectralShift, Style, spatial_style

Size = Literal["tiny", "small", "medium"]
DATASETS = {"potsdam": "Potsdam", "vaihingen": "Vaihingen", "loveda": "LoveDA"}
GSD = {"potsdam": 0.05, "vaihingen": 0.09, "loveda": 0.3}
"""Ground sampling distance in metres."""

SIDES = {"potsdam": (768, 1536), "vaihingen": (480, 960), "loveda": (1024, 1024)}
"""Pixels of a side in tiny samples and in others; Vaihingen's areas vary around it."""

_ISPRS_COUNTS = {"tiny": (2, 1), "small": (6, 3), "medium": (99, 99)}
_LOVEDA_COUNTS = {"tiny": 2, "small": 20, "medium": 120}
_WORKERS = 4  # each holds the layers of one scene
_SHARES = ("building", "tree", "car", "paved", "clutter", "water")  # what a domain may have more or less of


@dataclass(frozen=True)
class AerialSample(Sample):
    """Everything that decides the bytes of a sample.

    Attributes:
        seed, spectral_shift, spatial_shift: as for `Sample`. Samples of one federation share the seed.
        dataset: one of `DATASETS`.
        size: how many tiles.
        side: of a tile in pixels; as in `SIDES` when None.
        domain: number of the domain, from 0, that S and T move; LoveDA's Urban is domain 2 d, Rural 2 d + 1.
        class_spectral: move vegetation more and roofs and cars less than the ground.
        layout: one of `LAYOUTS` of the data set.
        gsd_factor: pixels that many times larger on the ground than the official ones.
        defects: names of `defects.DEFECTS` to inject.
    """

    dataset: str
    seed: int = 0
    size: Size = "tiny"
    side: int | None = None
    spectral_shift: float = 0.0
    spatial_shift: float = 0.0
    domain: int = 0
    class_spectral: bool = False
    layout: str = "official"
    gsd_factor: float = 1.0
    defects: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.domain < 0:
            raise ConfigError(f"domain must be 0 or more, got {self.domain}")
        if self.side is not None and not 64 <= self.side <= 4096:
            raise ConfigError(f"side must be in 64..4096 pixels, got {self.side}")
        if not 1 <= self.gsd_factor <= 20:
            raise ConfigError(f"gsd_factor must be in 1..20, got {self.gsd_factor}")
        if self.layout not in LAYOUTS[self.dataset]:
            known = ", ".join(LAYOUTS[self.dataset])
            raise ConfigError(f"layout of {self.dataset} must be one of {known}, got '{self.layout}'")
        defects.check(self.dataset, self.layout, self.defects)

    @property
    def title(self) -> str:
        """Name of the data set."""
        return DATASETS[self.dataset]

    @property
    def pixel(self) -> float:
        """Metres."""
        return GSD[self.dataset] * self.gsd_factor

    def tiles(self) -> list[Tile]:
        """All tiles of the sample."""
        side = self.side or SIDES[self.dataset][self.size != "tiny"]
        if self.dataset == "loveda":
            starts = [("/".join(part), first) for part, (first, _) in RANGES.items()]
            return [Tile(str(a + n), part, side, side) for part, a in starts for n in range(_LOVEDA_COUNTS[self.size])]
        official = potsdam if self.dataset == "potsdam" else vaihingen
        train, test = _ISPRS_COUNTS[self.size]
        named = [("train", name) for name in official.TRAIN[:train]] + [("test", name) for name in official.TEST[:test]]
        return [Tile(name, part, *self._sides(name, side)) for part, name in named]

    def _sides(self, name: str, side: int) -> tuple[int, int]:
        if self.dataset == "potsdam":
            return side, side
        high, wide = numpy_stream(self.seed, "synth", self.dataset, "sides", name).uniform([0.85, 1.0], [1.0, 1.15])
        return int(high * side) | 1, int(wide * side) | 1

    def domain_of(self, tile: Tile) -> int:
        """Domain whose shifts a tile has."""
        return self.domain if self.dataset != "loveda" else 2 * self.domain + tile.part.endswith("Rural")

    def count(self) -> int:
        """How many tiles there are."""
        return len(self.tiles())

    def paint(self, folder: Path) -> Iterator[None]:
        """Write the files of all tiles."""
        with ThreadPoolExecutor(min(_WORKERS, os.cpu_count() or 1)) as pool:
            yield from pool.map(lambda tile: self._write(folder, tile), self.tiles())

    def _write(self, folder: Path, tile: Tile) -> None:
        for name, content in files_of(tile, self.dataset, self.layout, self.pixel, *render(self, tile)).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    def plant(self, folder: Path) -> None:
        """Plant the defects."""
        for name in self.defects:
            defects.DEFECTS[self.dataset][name](folder, self.dataset)


def aerial_style(seed: int, domain: int, strength: float) -> Style:
    """`spatial_style` with preferences for what there is more or less of, instead of for materials.

    Classes keep their mixture of materials, so that T does not move their mean spectra.
    """
    start = numpy_stream(seed, "synth", "spatial", "shares").random(len(_SHARES))
    place = np.mod(start + GOLDEN * domain * np.array([1, -2, 3, -1, 2, -3]), 1.0)
    preference = {name: strength * float(1.6 * value - 0.8) for name, value in zip(_SHARES, place, strict=True)}
    return replace(spatial_style(seed, domain, strength), preference=preference)


def paint(sample: AerialSample, tile: Tile) -> AerialScene:
    """The painted ground of one tile; it may be larger than the tile, whose first rows and columns count."""
    domain = sample.domain_of(tile)
    rng = numpy_stream(sample.seed, "synth", sample.dataset, domain, tile.part, tile.name)
    size = -(-max(tile.height, tile.width) // 16) * 16  # a size that the Fourier transform likes
    scene = AerialScene(size * sample.pixel, sample.pixel, rng, aerial_style(sample.seed, domain, sample.spatial_shift))
    if sample.dataset == "loveda":
        paint_town_and_country(scene, 0.5 + 0.4 * sample.spatial_shift * (-1 if tile.part.endswith("Rural") else 1))
    else:
        paint_town(scene, Town())
    return scene


def render(sample: AerialSample, tile: Tile) -> tuple[np.ndarray, np.ndarray]:
    """One tile: red, green, blue, near infrared, uint8 [H, W, 4], and classes, uint8 [H, W].

    Classes are indices into `camera.ISPRS_COLOURS`, or LoveDA mask values with 0 for no-data.
    """
    scene = paint(sample, tile)
    shift = SpectralShift(sample.seed, sample.domain_of(tile), sample.spectral_shift)
    light = scene.light(shift, sample.class_spectral)
    pixels = camera.expose(light, scene.rng, scene.style.blur)
    classes = camera.loveda_classes(scene) if sample.dataset == "loveda" else camera.isprs_classes(scene)
    pixels, classes = pixels[: tile.height, : tile.width], classes[: tile.height, : tile.width]
    if sample.dataset == "loveda" and scene.rng.random() < 0.15:
        missing = int(scene.rng.uniform(0.03, 0.15) * tile.width)  # beyond the edge of the mosaic
        pixels[:, -missing:], classes[:, -missing:] = 0, 0
    return np.ascontiguousarray(pixels), np.ascontiguousarray(classes)
