"""Synthetic tiles in the layouts of EuroSAT."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import track

from fedrs_lightning.data.datasets.eurosat_files import ALL_BANDS_PATH, CLASSES
from fedrs_lightning.errors import ConfigError
from fedrs_lightning.files import write_text
from fedrs_lightning.seeding import numpy_stream
from fedrs_lightning.synth.eurosat import defects, landcover
from fedrs_lightning.synth.sample import describe, publish
from fedrs_lightning.synth.scenes import sensor
from fedrs_lightning.synth.scenes.scene import Scene, blur, shrink
from fedrs_lightning.synth.scenes.shift import SpectralShift, Style, spatial_style

SIZES = {"tiny": 20, "small": 300, "medium": 1500}
"""Tiles of each class."""

LAYOUTS = {
    "2750": "2750",
    "EuroSAT_RGB": "EuroSAT_RGB",
    "EuroSAT": "EuroSAT",
    "allBands": ALL_BANDS_PATH,
    "EuroSAT_MS": "EuroSAT_MS",
}
"""Layout name to the folder of the class folders; the last two hold GeoTIFFs."""

GEOTIFF_LAYOUTS = ("allBands", "EuroSAT_MS")
QUALITY = 90  # of the JPEGs
_FINE = 5.0  # metres: scenes are painted at half a pixel and averaged


@dataclass(frozen=True)
class EuroSATSample:
    """Everything that decides the bytes of a sample.

    Attributes:
        seed: of all draws.
        tiles: of each class.
        spectral_shift: S in [0, 1].
        spatial_shift: T in [0, 1].
        domains: number of domains; tile n of a class belongs to domain (n - 1) mod domains.
        layout: one of `LAYOUTS`.
        defects: names of `defects.DEFECTS` to inject.
    """

    seed: int = 0
    tiles: int = SIZES["tiny"]
    spectral_shift: float = 0.0
    spatial_shift: float = 0.0
    domains: int = 1
    layout: str = "2750"
    defects: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("spectral_shift", "spatial_shift"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        if self.domains < 1 or self.tiles < self.domains:
            raise ConfigError(f"domains must be in 1..{self.tiles} (tiles of a class), got {self.domains}")
        if self.layout not in LAYOUTS:
            raise ConfigError(f"layout must be one of {', '.join(LAYOUTS)}, got '{self.layout}'")
        defects.check(self.defects, geotiff=self.layout in GEOTIFF_LAYOUTS)

    @property
    def suffix(self) -> str:
        """Of the image files."""
        return ".tif" if self.layout in GEOTIFF_LAYOUTS else ".jpg"

    def domain(self, number: int) -> int:
        """Domain of tile `number` (from 1) of any class."""
        return (number - 1) % self.domains


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
    buffer = io.BytesIO()
    Image.fromarray(sensor.to_rgb(pixels)).save(buffer, format="JPEG", quality=QUALITY)
    return buffer.getvalue()


def encode_geotiff(pixels: np.ndarray) -> bytes:
    """13-band GeoTIFF of a rendered tile, at a made-up place of UTM zone 32 north."""
    from rasterio.io import MemoryFile
    from rasterio.transform import from_origin

    bands = sensor.to_l1c(pixels)
    profile = {
        "driver": "GTiff",
        "dtype": "uint16",
        "count": len(bands),
        "height": bands.shape[1],
        "width": bands.shape[2],
    }
    with MemoryFile() as memory:
        with memory.open(**profile, crs="EPSG:32632", transform=from_origin(600000, 5300000, 10, 10)) as raster:
            raster.write(bands)
        return bytes(memory.read())


def write_sample(out: Path, sample: EuroSATSample, command: Sequence[str] = ()) -> bool:
    """Write a whole sample: tiles, `attributes.csv` (domain of each tile) and `SYNTHETIC.json`.

    The folder appears by one rename when everything is written.

    Args:
        out: folder to make; it may exist when it is empty or already holds this very sample.
        sample: what to write.
        command: recorded in `SYNTHETIC.json`.

    Returns:
        Whether anything was written; False when the same sample is there already.

    Raises:
        DataError: `out` holds something else, or cannot be written.
    """

    def build(folder: Path) -> None:
        _write_tiles(folder / LAYOUTS[sample.layout], sample)
        _write_attributes(folder / "attributes.csv", sample)
        defects.inject(folder, folder / LAYOUTS[sample.layout], sample.defects)

    parameters = asdict(sample) | {"defects": list(sample.defects)}
    return publish(out, describe("EuroSAT", parameters, command), build)


def _write_tiles(folder: Path, sample: EuroSATSample) -> None:
    encode = encode_geotiff if sample.suffix == ".tif" else encode_jpeg
    wanted = [(name, number) for name in CLASSES for number in range(1, sample.tiles + 1)]
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
    console = Console(stderr=True)
    for name, number in track(
        wanted, "painting tiles", console=console, disable=not console.is_terminal, transient=True
    ):
        (folder / name / f"{name}_{number}{sample.suffix}").write_bytes(encode(render_tile(sample, name, number)))


def _write_attributes(path: Path, sample: EuroSATSample) -> None:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["file", "domain"])
    for name in CLASSES:
        table.writerows(
            [f"{name}/{name}_{number}{sample.suffix}", sample.domain(number)] for number in range(1, sample.tiles + 1)
        )
    write_text(path, text.getvalue())
