"""Known faults of Potsdam, Vaihingen and LoveDA folders, injected one by one, to try checks and error messages on.

They touch tile 2_11, area 3 and the second urban training image, whatever the size of the sample.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedrs_lightning.data.rasters import read_whole
from fedrs_lightning.errors import ConfigError
from fedrs_lightning.synth.aerial.encoding import encode_png, encode_tiff
from fedrs_lightning.synth.aerial.names import LABEL_FOLDERS, VIEW_FOLDERS
from fedrs_lightning.synth.eurosat import defects

Change = Callable[[np.ndarray], np.ndarray]

STRAY, UNKNOWN = (252, 255, 0), (90, 60, 200)  # the first is known from a real label of Potsdam


def _image(root: Path, dataset: str, number: int = 1) -> list[Path]:
    """Images of the tile with that number among the training tiles, the view to damage first."""
    if dataset == "potsdam":
        name = ("2_10", "2_11")[number]
        return [root / folder / f"top_potsdam_{name}_{view}.tif" for view, folder in VIEW_FOLDERS.items()]
    if dataset == "vaihingen":
        return [root / "top" / f"top_mosaic_09cm_area{(1, 3)[number]}.tif"]
    return [root / "Train" / "Urban" / "images_png" / f"{1366 + number}.png"]


def _labels(root: Path, dataset: str, number: int = 1) -> list[Path]:
    """Labels of that tile, the full one first."""
    if dataset == "potsdam":
        name = f"top_potsdam_{('2_10', '2_11')[number]}_label"
    elif dataset == "vaihingen":
        name = f"top_mosaic_09cm_area{(1, 3)[number]}"
    else:
        return [root / "Train" / "Urban" / "masks_png" / f"{1366 + number}.png"]
    full, eroded = LABEL_FOLDERS[dataset]["official"]
    return [root / full / f"{name}.tif", root / eroded / f"{name}_noBoundary.tif"]


def _missing_label(root: Path, dataset: str) -> None:
    for path in _labels(root, dataset):
        path.unlink()


def _missing_image(root: Path, dataset: str) -> None:
    for path in _image(root, dataset):
        path.unlink()


def _wrong_size(root: Path, dataset: str) -> None:
    _rewrite(_labels(root, dataset)[-1], lambda pixels: pixels[:, :-16, :-8])


def _interchanged(root: Path, dataset: str) -> None:
    image, label = _image(root, dataset)[0], _labels(root, dataset)[-1]
    aside = image.with_suffix(".aside")
    image.rename(aside)
    label.rename(image)
    aside.rename(label)


def _truncated(root: Path, dataset: str) -> None:
    path = _image(root, dataset)[0]
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


def _unreadable(root: Path, dataset: str) -> None:
    _image(root, dataset)[0].chmod(0)


def _duplicate(root: Path, dataset: str) -> None:
    """The first training tile again as a test tile."""
    for first in (*_image(root, dataset, 0), *_labels(root, dataset, 0)):
        if dataset == "loveda":
            test = root / "Val" / "Urban" / first.parent.name / "3514.png"
        else:
            test = first.with_name(first.name.replace("2_10", "2_13").replace("area1", "area2"))
        shutil.copyfile(first, test)


def _duplicate_id(root: Path, dataset: str) -> None:
    """The same id twice: an image in a second folder; for LoveDA another image under an id of Rural."""
    if dataset == "loveda":
        for path in (*_image(root, dataset), *_labels(root, dataset)):
            path.rename(path.with_name("1.png"))
        return
    path = _image(root, dataset)[0]
    again = path.parent / "copy" / path.name
    again.parent.mkdir()
    shutil.copyfile(path, again)


def _unknown_tile(root: Path, dataset: str) -> None:
    old, new = {"potsdam": ("2_11", "9_11"), "vaihingen": ("area3", "area9"), "loveda": ("1367", "tile_1367")}[dataset]
    for path in (*_image(root, dataset), *_labels(root, dataset)):
        path.rename(path.with_name(path.name.replace(old, new)))


def _sixteen_bit(root: Path, dataset: str) -> None:
    _rewrite(_image(root, dataset)[0], lambda pixels: pixels.astype(np.uint16) * 257)


def _alpha(root: Path, dataset: str) -> None:
    _rewrite(_image(root, dataset)[0], lambda pixels: np.concatenate([pixels, np.full_like(pixels[:1], 255)]))


def _stray_colour(root: Path, dataset: str) -> None:
    for path in _labels(root, dataset):
        _rewrite(path, lambda pixels: _patched(pixels, STRAY, 0.02))


def _unknown_colour(root: Path, dataset: str) -> None:
    _rewrite(_labels(root, dataset)[-1], lambda pixels: _patched(pixels, UNKNOWN, 0.2))


def _index_label(root: Path, dataset: str) -> None:
    _rewrite(_labels(root, dataset)[-1], lambda pixels: (pixels[:1] > 0).astype(np.uint8) + (pixels[1:2] > 0))


def _irrg_order(root: Path, dataset: str) -> None:
    for path in sorted((root / VIEW_FOLDERS["IRRG"]).glob("*.tif")):
        colours = read_whole(root / VIEW_FOLDERS["RGBIR"] / path.name.replace("IRRG", "RGBIR"))
        path.write_bytes(encode_tiff(np.ascontiguousarray(colours[[3, 1, 2]].transpose(1, 2, 0))))


def _blended_label(root: Path, dataset: str) -> None:
    for path in (*_image(root, dataset), *_labels(root, dataset)):
        path.rename(path.with_name(path.name.replace("2_11", "4_12")))
    image, label = (
        path.with_name(path.name.replace("2_11", "4_12"))
        for path in (_image(root, dataset)[0], _labels(root, dataset)[0])
    )
    photo = read_whole(image).astype(np.uint16)
    _rewrite(label, lambda pixels: ((pixels + photo) // 2).astype(np.uint8))


def _no_crs(root: Path, dataset: str) -> None:
    for path in _image(root, dataset):
        path.with_suffix(".tfw").unlink()
        _rewrite(path, lambda pixels: pixels)


def _area9_label(root: Path, dataset: str) -> None:
    label = _labels(root, dataset)[-1]
    shutil.copyfile(label, label.with_name(label.name.replace("area3", "area9")))


def _high_value(root: Path, dataset: str) -> None:
    _rewrite(_labels(root, dataset)[0], lambda pixels: _patched(pixels, (9,), 0.02))


def _shifted_masks(root: Path, dataset: str) -> None:
    for path in root.rglob("masks_png/*.png"):
        _rewrite(path, lambda pixels: np.maximum(pixels, 1) - 1)


def _palette_mask(root: Path, dataset: str) -> None:
    path = _labels(root, dataset)[0]
    with Image.open(path) as mask:
        coloured = mask.convert("L")
    coloured.putpalette(
        [0, 0, 0, 255, 255, 255, 255, 0, 0, 255, 255, 0, 0, 0, 255, 159, 129, 183, 0, 255, 0, 255, 195, 128]
    )
    coloured.save(path)


def _rgb_mask(root: Path, dataset: str) -> None:
    _rewrite(_labels(root, dataset)[0], lambda pixels: np.repeat(pixels * 36, 3, axis=0))


def _outside_range(root: Path, dataset: str) -> None:
    for path in (*_image(root, dataset), *_labels(root, dataset)):
        path.rename(path.with_name("907.png"))


def _colour_annotation(root: Path, dataset: str) -> None:
    path = sorted((root / "ann_dir" / "train").glob("*.png"))[1]
    _rewrite(path, lambda pixels: np.repeat(pixels * 40, 3, axis=0))


def _junk_files(root: Path, dataset: str) -> None:
    folder = _image(root, dataset)[0].parent
    (folder / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    (folder / f"._{_image(root, dataset)[0].name}").write_bytes(b"\x00\x05\x16\x07")
    (root / ".DS_Store").write_bytes(b"\x00\x00\x00\x01Bud1")
    (root / "__MACOSX").mkdir()


def _zipped(root: Path, dataset: str) -> None:
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        defects.zip_folder(folder)


def _empty(root: Path, dataset: str) -> None:
    for folder in [path for path in root.iterdir() if path.is_dir()]:
        shutil.rmtree(folder)


_ANY: dict[str, Callable[[Path, str], None]] = {
    "missing-label": _missing_label,
    "missing-image": _missing_image,
    "wrong-size": _wrong_size,
    "interchanged": _interchanged,
    "truncated": _truncated,
    "unreadable": _unreadable,
    "duplicate": _duplicate,
    "duplicate-id": _duplicate_id,
    "unknown-tile": _unknown_tile,
    "alpha": _alpha,
    "junk-files": _junk_files,
    "zipped": _zipped,
    "empty": _empty,
}
_ISPRS: dict[str, Callable[[Path, str], None]] = {
    "sixteen-bit": _sixteen_bit,
    "stray-colour": _stray_colour,
    "unknown-colour": _unknown_colour,
    "index-label": _index_label,
    "colour-annotation": _colour_annotation,
}
_LOVEDA: dict[str, Callable[[Path, str], None]] = {
    "high-value": _high_value,
    "shifted-masks": _shifted_masks,
    "palette-mask": _palette_mask,
    "rgb-mask": _rgb_mask,
    "outside-range": _outside_range,
}
DEFECTS: dict[str, dict[str, Callable[[Path, str], None]]] = {
    "potsdam": _ANY | _ISPRS | {"irrg-order": _irrg_order, "blended-label": _blended_label, "no-crs": _no_crs},
    "vaihingen": _ANY | _ISPRS | {"area9-label": _area9_label},
    "loveda": _ANY | _LOVEDA,
}
"""Data set to name to what changes a finished sample. `junk-files`, `no-crs`, `area9-label` and `stray-colour` (near
enough to the palette) are no faults: readers get over them.
"""

ALONE = ("zipped", "empty")
CONVERTED = ("colour-annotation",)


def check(dataset: str, layout: str, names: Sequence[str]) -> None:
    """Refuse unknown names and combinations that cannot be.

    Raises:
        ConfigError: with the nearest valid name.
    """
    defects.require_known(names, DEFECTS[dataset], ALONE, "leaves no tiles", of=dataset)
    for name in names:
        wanted = "converted" if name in CONVERTED else "official"
        if layout != wanted:
            raise ConfigError(f"defect '{name}' needs --layout {wanted}")


def inject(root: Path, dataset: str, names: Sequence[str]) -> None:
    """Apply the named defects to a finished sample."""
    for name in names:
        DEFECTS[dataset][name](root, dataset)


def _rewrite(path: Path, change: Change) -> None:
    """Save a raster again with changed pixels, [C, H, W]."""
    pixels = change(read_whole(path))
    flat = pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0))
    corner = None if flat.dtype == np.uint8 else (366_000.0, 5_808_000.0)  # other types need a GeoTIFF
    path.write_bytes(encode_png(flat) if path.suffix == ".png" else encode_tiff(flat, corner))


def _patched(pixels: np.ndarray, value: Sequence[int], side: float) -> np.ndarray:
    """The middle painted over, `side` of each length; at least a few pixels."""
    changed = pixels.copy()
    rows, columns = (slice(int(n * (1 - side) / 2), int(n * (1 + side) / 2) + 1) for n in pixels.shape[1:])
    changed[: len(value), rows, columns] = np.asarray(value, dtype=pixels.dtype)[:, None, None]
    return changed
