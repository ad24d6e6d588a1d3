"""The files of Potsdam, Vaihingen and LoveDA: layouts, names, and what a painted tile becomes in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrs_lightning.synth.aerial.camera import ISPRS_COLOURS, VIEWS, erode
from fedrs_lightning.synth.rasters import encode, geotiff

_TRUTH = "ISPRS_semantic_labeling_Vaihingen_ground_truth"

VIEW_FOLDERS = {"RGB": "2_Ortho_RGB", "IRRG": "3_Ortho_IRRG", "RGBIR": "4_Ortho_RGBIR"}
"""Of Potsdam's pictures."""

LABEL_FOLDERS = {
    "potsdam": {
        "official": ("5_Labels_all/", "5_Labels_all_noBoundary/"),
        "flat": ("", ""),
        "nested": ("5_Labels_all/5_Labels_all/", "5_Labels_all_noBoundary/5_Labels_all_noBoundary/"),
        "participants": ("5_Labels_for_participants/", "5_Labels_for_participants_no_Boundary/"),
    },
    "vaihingen": {
        "official": (f"{_TRUTH}_COMPLETE/", f"{_TRUTH}_eroded_COMPLETE/"),
        "flat": ("", ""),
        "gts": ("gts/", "gts/"),
        "participants": ("gts_for_participants/", "gts_eroded_for_participants/"),
    },
}
"""Layout to the folders of full and eroded labels; `participants` holds those of the training tiles only."""

LAYOUTS = {name: (*folders, "converted") for name, folders in LABEL_FOLDERS.items()}
LAYOUTS["loveda"] = ("official", "converted")

_UTM = 32633  # EPSG code
_PIECE = 512  # pixels of a side in the converted form
_INDICES = np.asarray([1, 2, 3, 4, 5, 6, 0], dtype=np.uint8)  # of the classes in the converted form


@dataclass(frozen=True)
class Tile:
    """One picture to make.

    Attributes:
        name: official id.
        part: `train` or `test` of the official split; `Train/Urban` and the like for LoveDA.
        height, width: pixels.
    """

    name: str
    part: str
    height: int
    width: int


def encode_tiff(pixels: np.ndarray, corner: tuple[float, float] | None = None, pixel: float = 1.0) -> bytes:
    """TIFF of uint8 [H, W, C] or [H, W], deflated; a GeoTIFF in UTM zone 33 north if an upper left corner is given.

    A fourth channel has no meaning, or is alpha where there is no corner. The side of a pixel is metres.
    """
    if corner is None:  # GDAL would warn of the missing georeference, from whatever thread
        return encode(pixels, "TIFF", compression="tiff_adobe_deflate")
    bands = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    options = {"compress": "deflate", "predictor": 2, "interleave": "pixel"}
    options["photometric"] = "MINISBLACK" if len(bands) < 3 else "RGB"
    if len(bands) == 4:
        options["alpha"] = "UNSPECIFIED"
    return geotiff(bands, _UTM, corner, pixel, **options)


def label_name(dataset: str, tile: str) -> str:
    """Name of a full label of Potsdam or Vaihingen without its ending; Vaihingen's images have the same."""
    return f"top_potsdam_{tile}_label" if dataset == "potsdam" else f"top_mosaic_09cm_area{tile}"


def files_of(
    tile: Tile, dataset: str, layout: str, pixel: float, pixels: np.ndarray, classes: np.ndarray
) -> dict[str, bytes]:
    """Names and contents of the files that hold one tile.

    Args:
        tile: which one.
        dataset, layout: of the archive.
        pixel: metres.
        pixels: red, green, blue, near infrared, uint8 [H, W, 4].
        classes: uint8 [H, W], as `camera.isprs_classes` or `camera.loveda_classes` give them.
    """
    if dataset == "loveda":
        if layout == "converted":
            part = tile.part.split("/")[0].lower()
            folders = f"img_dir/{part}", f"ann_dir/{part}"
        else:
            folders = f"{tile.part}/images_png", f"{tile.part}/masks_png"
        return _pair(folders, f"{tile.name}.png", pixels[:, :, VIEWS["RGB"]], classes)
    if layout == "converted":
        return _pieces(tile, dataset, pixels, classes)
    files, label, corner = {}, label_name(dataset, tile.name), None
    if dataset == "potsdam":
        row, column = map(int, tile.name.split("_"))
        corner = (366_000.0 + column * 300, 5_808_000.0 - row * 300)
        place = (pixel, 0.0, 0.0, -pixel, corner[0] + pixel / 2, corner[1] - pixel / 2)
        for view, channels in VIEWS.items():
            folder = f"{VIEW_FOLDERS[view]}/{VIEW_FOLDERS[view]}" if layout == "nested" else VIEW_FOLDERS[view]
            name = f"{folder}/top_potsdam_{tile.name}_{view}"
            files[f"{name}.tif"] = encode_tiff(pixels[:, :, channels], corner, pixel)
            files[f"{name}.tfw"] = "".join(f"{value:.8f}\n" for value in place).encode()
    else:
        files[f"top/{label}.tif"] = encode_tiff(pixels[:, :, VIEWS["IRRG"]])
    full, eroded = LABEL_FOLDERS[dataset][layout]
    if layout != "participants" or tile.part == "train":
        files[f"{full}{label}.tif"] = encode_tiff(ISPRS_COLOURS[classes], corner, pixel)
        files[f"{eroded}{label}_noBoundary.tif"] = encode_tiff(ISPRS_COLOURS[erode(classes)], corner, pixel)
    return files


def _pieces(tile: Tile, dataset: str, pixels: np.ndarray, classes: np.ndarray) -> dict[str, bytes]:
    """MMSegmentation's form: pieces of at most 512 pixels, index PNGs with 0 for what is ignored."""
    image, values = pixels[:, :, VIEWS["RGB" if dataset == "potsdam" else "IRRG"]], _INDICES[erode(classes)]
    name, part = tile.name if dataset == "potsdam" else f"area{tile.name}", tile.part.replace("test", "val")
    files: dict[str, bytes] = {}
    for row in _starts(tile.height):
        for column in _starts(tile.width):
            box = slice(row, row + _PIECE), slice(column, column + _PIECE)
            lower, right = min(row + _PIECE, tile.height), min(column + _PIECE, tile.width)
            piece = f"{name}_{column}_{row}_{right}_{lower}.png"
            files |= _pair((f"img_dir/{part}", f"ann_dir/{part}"), piece, image[box], values[box])
    return files


def _pair(folders: tuple[str, str], name: str, image: np.ndarray, mask: np.ndarray) -> dict[str, bytes]:
    return {f"{folders[0]}/{name}": encode(image, "PNG"), f"{folders[1]}/{name}": encode(mask, "PNG")}


def _starts(size: int) -> list[int]:
    """First rows of pieces that cover `size` rows; the last one is shifted inward."""
    return sorted({*range(0, max(1, size - _PIECE), _PIECE), max(0, size - _PIECE)})
