"""Writing synthetic aerial samples in the official layouts and names."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import track

from fedrs_lightning.data.synth import aerial_defects
from fedrs_lightning.data.synth.aerial import DATASETS, AerialSample, Tile, render
from fedrs_lightning.data.synth.aerial_camera import ISPRS_COLOURS, VIEWS, erode
from fedrs_lightning.data.synth.folder import describe, publish

_FOLDERS = {"RGB": "2_Ortho_RGB", "IRRG": "3_Ortho_IRRG", "RGBIR": "4_Ortho_RGBIR"}
_COMPLETE = "ISPRS_semantic_labeling_Vaihingen_ground_truth_COMPLETE"
_ERODED = "ISPRS_semantic_labeling_Vaihingen_ground_truth_eroded_COMPLETE"
_WORKERS = 4  # each holds the layers of one scene


def write_sample(out: Path, sample: AerialSample, command: Sequence[str] = ()) -> bool:
    """Write a whole sample with its `SYNTHETIC.json`.

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
        tiles, console = sample.tiles(), Console(stderr=True)
        with ThreadPoolExecutor(min(_WORKERS, os.cpu_count() or 1)) as pool:
            done = pool.map(lambda tile: _write_tile(folder, sample, tile), tiles)
            for _ in track(done, "painting tiles", len(tiles), console=console, disable=not console.is_terminal, transient=True):
                pass
        aerial_defects.inject(folder, sample.dataset, sample.defects)

    parameters = asdict(sample) | {"defects": list(sample.defects)}
    return publish(out, describe(DATASETS[sample.dataset], parameters, command), build)


def encode_tiff(pixels: np.ndarray, corner: tuple[float, float] | None = None, pixel: float = 1.0) -> bytes:
    """GeoTIFF of uint8 [H, W, C] or [H, W], deflated; georeferenced in UTM zone 33 north if a corner is given.

    Args:
        pixels: three channels are stored as RGB, a fourth without a meaning.
        corner: easting and northing of the upper left corner, metres.
        pixel: metres.
    """
    from rasterio.errors import NotGeoreferencedWarning
    from rasterio.io import MemoryFile
    from rasterio.transform import from_origin

    bands = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    profile = {"driver": "GTiff", "dtype": str(pixels.dtype), "count": len(bands), "height": bands.shape[1], "width": bands.shape[2]}
    profile |= {"compress": "deflate", "predictor": 2, "interleave": "pixel", "photometric": "MINISBLACK" if len(bands) < 3 else "RGB"}
    if len(bands) == 4:
        profile["alpha"] = "UNSPECIFIED"
    if corner is not None:
        profile |= {"crs": "EPSG:32633", "transform": from_origin(*corner, pixel, pixel)}
    with MemoryFile() as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)  # Vaihingen's real files have no georeference either
        with memory.open(**profile) as raster:
            raster.write(bands)
        return bytes(memory.read())


def encode_png(pixels: np.ndarray) -> bytes:
    """PNG of uint8 [H, W] or [H, W, 3]."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def _write_tile(folder: Path, sample: AerialSample, tile: Tile) -> None:
    pixels, classes = render(sample, tile)
    files = {"potsdam": _potsdam, "vaihingen": _vaihingen, "loveda": _loveda}[sample.dataset](sample, tile, pixels, classes)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _potsdam(sample: AerialSample, tile: Tile, pixels: np.ndarray, classes: np.ndarray) -> dict[str, bytes]:
    row, column = map(int, tile.name.split("_"))
    corner = (366_000.0 + column * 300, 5_808_000.0 - row * 300)
    files = {}
    for view, channels in VIEWS.items():
        folder = f"{_FOLDERS[view]}/{_FOLDERS[view]}" if sample.layout == "nested" else _FOLDERS[view]
        name = f"{folder}/top_potsdam_{tile.name}_{view}"
        files[f"{name}.tif"] = encode_tiff(pixels[:, :, channels], corner, sample.pixel)
        place = (sample.pixel, 0.0, 0.0, -sample.pixel, corner[0] + sample.pixel / 2, corner[1] - sample.pixel / 2)
        files[f"{name}.tfw"] = "".join(f"{value:.8f}\n" for value in place).encode()
    full, eroded = {
        "official": ("5_Labels_all/", "5_Labels_all_noBoundary/"),
        "nested": ("5_Labels_all/5_Labels_all/", "5_Labels_all_noBoundary/5_Labels_all_noBoundary/"),
        "participants": ("5_Labels_for_participants/", "5_Labels_for_participants_no_Boundary/"),
        "flat": ("", ""),
    }[sample.layout]
    if sample.layout != "participants" or tile.part == "train":
        files[f"{full}top_potsdam_{tile.name}_label.tif"] = encode_tiff(ISPRS_COLOURS[classes], corner, sample.pixel)
        files[f"{eroded}top_potsdam_{tile.name}_label_noBoundary.tif"] = encode_tiff(ISPRS_COLOURS[erode(classes)], corner, sample.pixel)
    return files


def _vaihingen(sample: AerialSample, tile: Tile, pixels: np.ndarray, classes: np.ndarray) -> dict[str, bytes]:
    full, eroded = {
        "official": (f"{_COMPLETE}/", f"{_ERODED}/"),
        "flat": ("", ""),
        "gts": ("gts/", "gts/"),
        "participants": ("gts_for_participants/", "gts_eroded_for_participants/"),
    }[sample.layout]
    name = f"top_mosaic_09cm_area{tile.name}"
    files = {f"top/{name}.tif": encode_tiff(pixels[:, :, VIEWS["IRRG"]])}
    if sample.layout != "participants" or tile.part == "train":
        files[f"{full}{name}.tif"] = encode_tiff(ISPRS_COLOURS[classes])
        files[f"{eroded}{name}_noBoundary.tif"] = encode_tiff(ISPRS_COLOURS[erode(classes)])
    return files


def _loveda(sample: AerialSample, tile: Tile, pixels: np.ndarray, classes: np.ndarray) -> dict[str, bytes]:
    return {
        f"{tile.part}/images_png/{tile.name}.png": encode_png(pixels[:, :, VIEWS["RGB"]]),
        f"{tile.part}/masks_png/{tile.name}.png": encode_png(classes),
    }
