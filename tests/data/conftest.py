"""A synthetic sample of two domains, and a cache of the test's own."""

import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rasterio
from PIL import Image
from rasterio.errors import NotGeoreferencedWarning


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEDRS_CACHE", str(folder))
    return folder


@pytest.fixture
def copied(sample, tmp_path) -> Path:
    """A copy of the sample that a test may damage."""
    return Path(shutil.copytree(sample, tmp_path / "copied"))


@pytest.fixture(scope="session")
def layouts() -> SimpleNamespace:
    """Writers of small aerial data sets in their official layouts."""
    writers = {"potsdam": write_potsdam, "vaihingen": write_vaihingen, "loveda": write_loveda, "tiff": write_tiff}
    return SimpleNamespace(**writers, ids=block_ids, eroded=eroded, colours=COLOURS)


COLOURS = np.asarray(
    [(255, 255, 255), (0, 0, 255), (0, 255, 255), (0, 255, 0), (255, 255, 0), (255, 0, 0), (0, 0, 0)], dtype=np.uint8
)
"""Impervious surfaces, building, low vegetation, tree, car, clutter, boundary."""


def write_tiff(path: Path, pixels: np.ndarray, **options) -> Path:
    """[C, H, W] as a GeoTIFF without georeference."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        profile = {
            "driver": "GTiff",
            "count": pixels.shape[0],
            "height": pixels.shape[1],
            "width": pixels.shape[2],
            "dtype": pixels.dtype,
        }
        with rasterio.open(path, "w", **profile, **options) as raster:
            raster.write(pixels)
    return path


def block_ids(rng: np.random.Generator, height: int, width: int, classes: int, block: int = 16) -> np.ndarray:
    """Ids in square blocks, uint8 [height, width]."""
    coarse = rng.integers(0, classes, (-(-height // block), -(-width // block))).astype(np.uint8)
    return np.repeat(np.repeat(coarse, block, 0), block, 1)[:height, :width]


def spectra(rng: np.random.Generator, ids: np.ndarray) -> np.ndarray:
    """Red, green, blue, near infrared of a map of ids, with noise; blue depends on the others. uint8 [4, H, W]."""
    means = np.asarray(
        [(120, 118, 90), (150, 90, 80), (80, 120, 160), (50, 90, 190), (170, 60, 70), (100, 60, 90), (90, 90, 90)]
    )
    pixels = means[ids].transpose(2, 0, 1) + rng.normal(0, 8, (3, *ids.shape))
    blue = 0.5 * pixels[0] + 0.3 * pixels[1] + 0.05 * pixels[2] + 12
    return np.clip(np.rint(np.stack([pixels[0], pixels[1], blue, pixels[2]])), 0, 255).astype(np.uint8)


def write_potsdam(
    root: Path, tiles, height=96, width=96, modalities=("RGB", "IRRG", "RGBIR"), labels=("full", "eroded"), seed=0
) -> dict:
    """Tiles in the official layout; gives the ids of each tile (5 = clutter) before erosion."""
    orders = {"RGB": (0, 1, 2), "IRRG": (3, 0, 1), "RGBIR": (0, 1, 2, 3)}
    folders = {"RGB": "2_Ortho_RGB", "IRRG": "3_Ortho_IRRG", "RGBIR": "4_Ortho_RGBIR"}
    result = {}
    for number, tile in enumerate(tiles):
        rng = np.random.default_rng([seed, number])
        ids = block_ids(rng, height, width, 6)
        pixels, result[tile] = spectra(rng, ids), ids
        for name in modalities:
            write_tiff(root / folders[name] / f"top_potsdam_{tile}_{name}.tif", pixels[list(orders[name])])
        if "full" in labels:
            write_tiff(root / "5_Labels_all" / f"top_potsdam_{tile}_label.tif", COLOURS[ids].transpose(2, 0, 1))
        if "eroded" in labels:
            write_tiff(
                root / "5_Labels_all_noBoundary" / f"top_potsdam_{tile}_label_noBoundary.tif",
                COLOURS[eroded(ids)].transpose(2, 0, 1),
            )
    return result


def eroded(ids: np.ndarray) -> np.ndarray:
    """The ids with a boundary (6) of one pixel at the left and upper edge of each block of 16."""
    result = ids.copy()
    result[::16], result[:, ::16] = 6, 6
    return result


def write_vaihingen(root: Path, areas, sizes=((61, 83),), label_folder="", seed=1) -> dict:
    """Areas in the official layout, with eroded labels too; gives the ids of each area."""
    result = {}
    for number, area in enumerate(areas):
        rng = np.random.default_rng([seed, number])
        ids = block_ids(rng, *sizes[number % len(sizes)], 6)
        pixels, result[area], name = spectra(rng, ids), ids, f"top_mosaic_09cm_area{area}"
        write_tiff(root / "top" / f"{name}.tif", pixels[[3, 0, 1]])
        write_tiff(root / label_folder / f"{name}.tif", COLOURS[ids].transpose(2, 0, 1))
        write_tiff(root / "eroded" / f"{name}_noBoundary.tif", COLOURS[eroded(ids)].transpose(2, 0, 1))
    return result


def write_loveda(root: Path, side=64, count=2, seed=2) -> dict:
    """`count` images in each of Train and Val, Urban and Rural; gives the mask values of each id."""
    first = {("Train", "Rural"): 0, ("Train", "Urban"): 1366, ("Val", "Rural"): 2522, ("Val", "Urban"): 3514}
    result = {}
    for (part, area), start in first.items():
        for number in range(start, start + count):
            rng = np.random.default_rng([seed, number])
            values, folder = block_ids(rng, side, side, 8), root / part / area
            for kind, pixels in (
                ("images_png", spectra(rng, values % 7)[:3].transpose(1, 2, 0)),
                ("masks_png", values),
            ):
                (folder / kind).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(folder / kind / f"{number}.png")
            result[number] = values
    return result
