"""Known faults of Potsdam, Vaihingen and LoveDA folders.

They touch tile 2_11, area 3 and the second urban training image, whatever the size of the sample.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.synth.aerial.archive import LABEL_FOLDERS, VIEW_FOLDERS, encode_tiff, label_name
from fedrs_lightning.synth.defects import add_junk, remove_folders, require_known, truncate, zip_folders
from fedrs_lightning.synth.rasters import encode, read

Change = Callable[[Path, str], object]

_FIRST_TILES = {"potsdam": ("2_10", "2_11"), "vaihingen": ("1", "3"), "loveda": ("1366", "1367")}
STRAY, UNKNOWN = (252, 255, 0), (90, 60, 200)  # the first is known from a real label of Potsdam


def _images(root: Path, dataset: str, number: int = 1) -> list[Path]:
    """Images of the tile with that number among the training tiles, the view to damage first."""
    name = _FIRST_TILES[dataset][number]
    if dataset == "potsdam":
        return [root / folder / f"top_potsdam_{name}_{view}.tif" for view, folder in VIEW_FOLDERS.items()]
    if dataset == "vaihingen":
        return [root / "top" / f"{label_name(dataset, name)}.tif"]
    return [root / "Train" / "Urban" / "images_png" / f"{name}.png"]


def _labels(root: Path, dataset: str, number: int = 1) -> list[Path]:
    """Labels of that tile, the full one first."""
    name = _FIRST_TILES[dataset][number]
    if dataset == "loveda":
        return [root / "Train" / "Urban" / "masks_png" / f"{name}.png"]
    (full, eroded), label = LABEL_FOLDERS[dataset]["official"], label_name(dataset, name)
    return [root / full / f"{label}.tif", root / eroded / f"{label}_noBoundary.tif"]


def _both(root: Path, dataset: str, number: int = 1) -> list[Path]:
    return _images(root, dataset, number) + _labels(root, dataset, number)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink()


def _rename(paths: Iterable[Path], old: str, new: str) -> None:
    for path in paths:
        path.rename(path.with_name(path.name.replace(old, new)))


def _rewrite(paths: Iterable[Path], change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Save rasters again with changed pixels, [C, H, W]."""
    for path in paths:
        pixels = change(read(path))
        flat = pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0))
        corner = None if flat.dtype == np.uint8 else (366_000.0, 5_808_000.0)  # other types need a GeoTIFF
        path.write_bytes(encode(flat, "PNG") if path.suffix == ".png" else encode_tiff(flat, corner))


def _paint_over(paths: Iterable[Path], value: Sequence[int], side: float) -> None:
    """Paint over the middle, `side` of each length; at least a few pixels."""

    def change(pixels: np.ndarray) -> np.ndarray:
        rows, columns = (slice(int(n * (1 - side) / 2), int(n * (1 + side) / 2) + 1) for n in pixels.shape[1:])
        pixels[: len(value), rows, columns] = np.asarray(value, dtype=pixels.dtype)[:, None, None]
        return pixels

    _rewrite(paths, change)


def _interchanged(root: Path, dataset: str) -> None:
    image, label = _images(root, dataset)[0], _labels(root, dataset)[-1]
    aside = image.with_suffix(".aside")
    image.rename(aside)
    label.rename(image)
    aside.rename(label)


def _duplicate(root: Path, dataset: str) -> None:
    """The first training tile again as a test tile."""
    for first in _both(root, dataset, 0):
        if dataset == "loveda":
            test = root / "Val" / "Urban" / first.parent.name / "3514.png"
        else:
            test = first.with_name(first.name.replace("2_10", "2_13").replace("area1", "area2"))
        shutil.copyfile(first, test)


def _duplicate_id(root: Path, dataset: str) -> None:
    """The same id twice: an image in a second folder; for LoveDA another image under an id of Rural."""
    if dataset == "loveda":
        _rename(_both(root, dataset), "1367", "1")
    else:
        path = _images(root, dataset)[0]
        (path.parent / "copy").mkdir()
        shutil.copyfile(path, path.parent / "copy" / path.name)


def _irrg_order(root: Path, dataset: str) -> None:
    for path in sorted((root / VIEW_FOLDERS["IRRG"]).glob("*.tif")):
        colours = read(root / VIEW_FOLDERS["RGBIR"] / path.name.replace("IRRG", "RGBIR"))
        path.write_bytes(encode_tiff(np.ascontiguousarray(colours[[3, 1, 2]].transpose(1, 2, 0))))


def _blended_label(root: Path, dataset: str) -> None:
    photo = read(_images(root, dataset)[0]).astype(np.uint16)
    _rewrite(_labels(root, dataset)[:1], lambda pixels: ((pixels + photo) // 2).astype(np.uint8))
    _rename(_both(root, dataset), "2_11", "4_12")


def _no_crs(root: Path, dataset: str) -> None:
    _remove(path.with_suffix(".tfw") for path in _images(root, dataset))
    _rewrite(_images(root, dataset), lambda pixels: pixels)


def _area9_label(root: Path, dataset: str) -> None:
    label = _labels(root, dataset)[-1]
    shutil.copyfile(label, label.with_name(label.name.replace("area3", "area9")))


def _palette_mask(root: Path, dataset: str) -> None:
    path = _labels(root, dataset)[0]
    with Image.open(path) as mask:
        coloured = mask.convert("L")
    colours = "000000 ffffff ff0000 ffff00 0000ff 9f81b7 00ff00 ffc380"
    coloured.putpalette(list(bytes.fromhex(colours)))
    coloured.save(path)


def _junk_files(root: Path, dataset: str) -> None:
    image = _images(root, dataset)[0]
    add_junk(root, image.parent, image.name)
    (root / "__MACOSX").mkdir()


_TILE_IDS = {"potsdam": ("2_11", "9_11"), "vaihingen": ("area3", "area9"), "loveda": ("1367", "tile_1367")}

_ANY: dict[str, Change] = {
    "missing-label": lambda *of: _remove(_labels(*of)),
    "missing-image": lambda *of: _remove(_images(*of)),
    "wrong-size": lambda *of: _rewrite(_labels(*of)[-1:], lambda pixels: pixels[:, :-16, :-8]),
    "interchanged": _interchanged,
    "truncated": lambda *of: truncate(_images(*of)[0]),
    "unreadable": lambda *of: _images(*of)[0].chmod(0),
    "duplicate": _duplicate,
    "duplicate-id": _duplicate_id,
    "unknown-tile": lambda root, dataset: _rename(_both(root, dataset), *_TILE_IDS[dataset]),
    "alpha": lambda *of: _rewrite(_images(*of)[:1], lambda p: np.concatenate([p, np.full_like(p[:1], 255)])),
    "junk-files": _junk_files,
    "zipped": lambda root, dataset: zip_folders(root),
    "empty": lambda root, dataset: remove_folders(root),
}
_ISPRS: dict[str, Change] = {
    "sixteen-bit": lambda *of: _rewrite(_images(*of)[:1], lambda pixels: pixels.astype(np.uint16) * 257),
    "stray-colour": lambda *of: _paint_over(_labels(*of), STRAY, 0.02),
    "unknown-colour": lambda *of: _paint_over(_labels(*of)[-1:], UNKNOWN, 0.2),
    "index-label": lambda *of: _rewrite(_labels(*of)[-1:], lambda p: (p[:1] > 0).astype(np.uint8) + (p[1:2] > 0)),
    "colour-annotation": lambda root, _: _rewrite(
        sorted(root.glob("ann_dir/train/*.png"))[1:2], lambda pixels: np.repeat(pixels * 40, 3, axis=0)
    ),
}
_LOVEDA: dict[str, Change] = {
    "high-value": lambda *of: _paint_over(_labels(*of)[:1], (9,), 0.02),
    "shifted-masks": lambda root, _: _rewrite(root.rglob("masks_png/*.png"), lambda pixels: np.maximum(pixels, 1) - 1),
    "palette-mask": _palette_mask,
    "rgb-mask": lambda *of: _rewrite(_labels(*of)[:1], lambda pixels: np.repeat(pixels * 36, 3, axis=0)),
    "outside-range": lambda *of: _rename(_both(*of), "1367", "907"),
}
DEFECTS: dict[str, dict[str, Change]] = {
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
    require_known(names, DEFECTS[dataset], ALONE, "leaves no tiles", of=dataset)
    for name in names:
        wanted = "converted" if name in CONVERTED else "official"
        if layout != wanted:
            raise ConfigError(f"defect '{name}' needs --layout {wanted}")
