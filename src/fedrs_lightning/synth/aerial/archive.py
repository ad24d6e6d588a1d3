"""Writing synthetic aerial samples in the official layouts and names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from fedrs_lightning.synth.aerial import defects as aerial_defects
from fedrs_lightning.synth.aerial.camera import ISPRS_COLOURS, VIEWS, erode
from fedrs_lightning.synth.aerial.encoding import encode_png, encode_tiff
from fedrs_lightning.synth.aerial.names import LABEL_FOLDERS, VIEW_FOLDERS
from fedrs_lightning.synth.aerial.sample import DATASETS, AerialSample, Tile, render
from fedrs_lightning.synth.sample import describe, publish

_PIECE = 512  # pixels of a side in the converted form
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
            for _ in track(
                done, "painting tiles", len(tiles), console=console, disable=not console.is_terminal, transient=True
            ):
                pass
        aerial_defects.inject(folder, sample.dataset, sample.defects)

    parameters = asdict(sample) | {"defects": list(sample.defects)}
    return publish(out, describe(DATASETS[sample.dataset], parameters, command), build)


def _write_tile(folder: Path, sample: AerialSample, tile: Tile) -> None:
    pixels, classes = render(sample, tile)
    official = {"potsdam": _potsdam, "vaihingen": _vaihingen, "loveda": _loveda}[sample.dataset]
    files = (_converted if sample.layout == "converted" else official)(sample, tile, pixels, classes)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _potsdam(sample: AerialSample, tile: Tile, pixels: np.ndarray, classes: np.ndarray) -> dict[str, bytes]:
    row, column = map(int, tile.name.split("_"))
    corner = (366_000.0 + column * 300, 5_808_000.0 - row * 300)
    files = {}
    for view, channels in VIEWS.items():
        folder = f"{VIEW_FOLDERS[view]}/{VIEW_FOLDERS[view]}" if sample.layout == "nested" else VIEW_FOLDERS[view]
        name = f"{folder}/top_potsdam_{tile.name}_{view}"
        files[f"{name}.tif"] = encode_tiff(pixels[:, :, channels], corner, sample.pixel)
        place = (sample.pixel, 0.0, 0.0, -sample.pixel, corner[0] + sample.pixel / 2, corner[1] - sample.pixel / 2)
        files[f"{name}.tfw"] = "".join(f"{value:.8f}\n" for value in place).encode()
    full, eroded = LABEL_FOLDERS[sample.dataset][sample.layout]
    if sample.layout != "participants" or tile.part == "train":
        files[f"{full}top_potsdam_{tile.name}_label.tif"] = encode_tiff(ISPRS_COLOURS[classes], corner, sample.pixel)
        files[f"{eroded}top_potsdam_{tile.name}_label_noBoundary.tif"] = encode_tiff(
            ISPRS_COLOURS[erode(classes)], corner, sample.pixel
        )
    return files


def _vaihingen(sample: AerialSample, tile: Tile, pixels: np.ndarray, classes: np.ndarray) -> dict[str, bytes]:
    full, eroded = LABEL_FOLDERS[sample.dataset][sample.layout]
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


def _converted(sample: AerialSample, tile: Tile, pixels: np.ndarray, classes: np.ndarray) -> dict[str, bytes]:
    """MMSegmentation's form: pieces of at most 512 pixels, index PNGs with 0 for what is ignored."""
    if sample.dataset == "loveda":
        part, name = tile.part.split("/")[0].lower(), f"{tile.name}.png"
        return {
            f"img_dir/{part}/{name}": encode_png(pixels[:, :, VIEWS["RGB"]]),
            f"ann_dir/{part}/{name}": encode_png(classes),
        }
    image = pixels[:, :, VIEWS["RGB" if sample.dataset == "potsdam" else "IRRG"]]
    values = np.asarray([1, 2, 3, 4, 5, 6, 0], dtype=np.uint8)[erode(classes)]
    name = tile.name if sample.dataset == "potsdam" else f"area{tile.name}"
    part = {"train": "train", "test": "val"}[tile.part]
    files: dict[str, bytes] = {}
    for row in _starts(tile.height):
        for column in _starts(tile.width):
            box = slice(row, row + _PIECE), slice(column, column + _PIECE)
            lower, right = min(row + _PIECE, tile.height), min(column + _PIECE, tile.width)
            piece = f"{name}_{column}_{row}_{right}_{lower}.png"
            files |= {
                f"img_dir/{part}/{piece}": encode_png(image[box]),
                f"ann_dir/{part}/{piece}": encode_png(values[box]),
            }
    return files


def _starts(size: int) -> list[int]:
    """First rows of pieces that cover `size` rows; the last one is shifted inward."""
    return sorted({*range(0, max(1, size - _PIECE), _PIECE), max(0, size - _PIECE)})
