"""Synthetic tiles in the layouts of EuroSAT."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrs_lightning.data.archives.eurosat.files import ALL_BANDS_PATH, CLASSES
from fedrs_lightning.errors import ConfigError
from fedrs_lightning.files import write_text
from fedrs_lightning.seeding import numpy_stream
from fedrs_lightning.synth.eurosat import defects, landcover
from fedrs_lightning.synth.rasters import encode, geotiff
from fedrs_lightning.synth.sample import Sample
from fedrs_lightning.synth.scenes import sensor
from fedrs_lightning.synth.scenes.scene import Scene, blur, shrink
from fedrs_lightning.synth.scenes.shift import SpectralShift, Style, spatial_style

SIZES = {"tiny": 20, "small": 300, "medium": 1500}
"""Tiles of each class."""

LAYOUTS = {name: name for name in ("2750", "EuroSAT_RGB", "EuroSAT", "allBands", "EuroSAT_MS")}
LAYOUTS["allBands"] = ALL_BANDS_PATH
"""Layout name to the folder of the class folders; the last two hold GeoTIFFs."""

GEOTIFF_LAYOUTS = ("allBands", "EuroSAT_MS")
QUALITY = 90  # of the JPEGs
_FINE = 5.0  # metres: scenes are painted at half a pixel and averaged


@dataclass(frozen=True)
class EuroSATSample(Sample):
    """Everything that decides the bytes of a sample.

    Attributes:
        seed, spectral_shift, spatial_shift: as for `Sample`.
        tiles: of each class.
        domains: number of domains; tile n of a class belongs to domain (n - 1) mod domains.
        layout: one of `LAYOUTS`.
        defects: names of `defects.DEFECTS`.
    """

    title = "EuroSAT"
    seed: int = 0
    tiles: int = SIZES["tiny"]
    spectral_shift: float = 0.0
    spatial_shift: float = 0.0
    domains: int = 1
    layout: str = "2750"
    defects: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.domains < 1 or self.tiles < self.domains:
            raise ConfigError(f"domains must be in 1..{self.tiles} (tiles of a class), got {self.domains}")
        if self.layout not in LAYOUTS:
            raise ConfigError(f"layout must be one of {', '.join(LAYOUTS)}, got '{self.layout}'")
        defects.check(self.defects, self.layout in GEOTIFF_LAYOUTS)

    def domain(self, number: int) -> int:
        """Domain of tile `number` (from 1) of any class."""
        return (number - 1) % self.domains

    def count(self) -> int:
        """How many tiles there are."""
        return len(CLASSES) * self.tiles

    def paint(self, folder: Path) -> Iterator[None]:
        """Write the tiles, one a step, and `attributes.csv`, which has the domain of each."""
        tiles, lines = folder / LAYOUTS[self.layout], ["file,domain\n"]
        suffix, encoded = (".tif", encode_geotiff) if self.layout in GEOTIFF_LAYOUTS else (".jpg", encode_jpeg)
        for name in CLASSES:
            (tiles / name).mkdir(parents=True)
            for number in range(1, self.tiles + 1):
                path = f"{name}/{name}_{number}{suffix}"
                (tiles / path).write_bytes(encoded(render_tile(self, name, number)))
                lines.append(f"{path},{self.domain(number)}\n")
                yield
        write_text(folder / "attributes.csv", "".join(lines))

    def plant(self, folder: Path) -> None:
        """Plant the defects."""
        tiles = folder / LAYOUTS[self.layout]
        for name in self.defects:
            defects.DEFECTS[name](tiles)
        if tiles.is_dir() and not any(tiles.iterdir()):
            tiles.rmdir()


def paint_scene(sample: EuroSATSample, class_name: str, number: int, style: Style) -> Scene:
    """The painted ground of one tile, at half the pixel size of the tile."""
    rng = numpy_stream(sample.seed, "synth", "eurosat", sample.domain(number), class_name, number)
    scene = Scene(landcover.TILE_SIDE, _FINE, rng, style)
    landcover.PAINTERS[class_name](scene)
    return scene


def render_tile(sample: EuroSATSample, class_name: str, number: int) -> np.ndarray:
    """One tile at the top of the atmosphere, reflectance in `spectra.BANDS`, float32 [10, 64, 64]."""
    domain = sample.domain(number)
    style = spatial_style(sample.seed, domain, sample.spatial_shift)
    scene = paint_scene(sample, class_name, number, style)
    ground = blur(shrink(scene.reflectance(), round(10 / _FINE)), style.blur)
    return sensor.top_of_atmosphere(SpectralShift(sample.seed, domain, sample.spectral_shift)(ground), scene.rng)


def encode_jpeg(pixels: np.ndarray) -> bytes:
    """RGB JPEG of a rendered tile."""
    return encode(sensor.to_rgb(pixels), "JPEG", quality=QUALITY)


def encode_geotiff(pixels: np.ndarray) -> bytes:
    """13-band GeoTIFF of a rendered tile."""
    return geotiff(sensor.to_l1c(pixels), *defects.UTM)
