"""Known faults of a BigEarthNet archive, injected one by one, to try checks and error messages on."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrs_lightning.data.datasets.bigearthnet_files import (
    ALL_BANDS,
    FLAGGED_METADATA,
    IMAGES,
    METADATA,
    band_path,
    product_of,
    read_band,
)
from fedrs_lightning.errors import ConfigError
from fedrs_lightning.synth.bigearthnet.files import write_table
from fedrs_lightning.synth.bigearthnet.patches import Patch
from fedrs_lightning.synth.eurosat.defects import require_known

PLACES = {
    "missing-band": Patch("Finland", "summer", 0),
    "wrong-size": Patch("Ireland", "summer", 0),
    "wrong-type": Patch("Serbia", "summer", 0),
    "zero-band": Patch("Switzerland", "summer", 1),
    "truncated": Patch("Belgium", "summer", 0),
    "unreadable": Patch("Lithuania", "summer", 0),
    "not-on-disk": Patch("Portugal", "summer", 0),
    "unknown-label": Patch("Switzerland", "summer", 0),
    "val-split-name": Patch("Finland", "summer", 1),
    "duplicate-id": Patch("Ireland", "summer", 1),
    "two-splits": Patch("Serbia", "summer", 1),
    "duplicate": Patch("Austria", "summer", 1),
    "orphan": Patch("Belgium", "summer", 1),
}
"""The patch that each defect touches; the others concern the whole archive."""


def _missing_band(root: Path) -> None:
    _band(root, "missing-band", "B05").unlink()


def _wrong_size(root: Path) -> None:
    _rewrite(_band(root, "wrong-size", "B03"), lambda pixels: pixels[:100, :100])


def _wrong_type(root: Path) -> None:
    _rewrite(_band(root, "wrong-type", "B04"), lambda pixels: (pixels // 64).astype(np.uint8))


def _zero_band(root: Path) -> None:
    _rewrite(_band(root, "zero-band", "B08"), np.zeros_like)


def _truncated(root: Path) -> None:
    path = _band(root, "truncated", "B11")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


def _unreadable(root: Path) -> None:
    _band(root, "unreadable", "B12").chmod(0)


def _not_on_disk(root: Path) -> None:
    shutil.rmtree(_folder(root, PLACES["not-on-disk"].id))


def _unknown_label(root: Path) -> None:
    _edit(root, "unknown-label", lambda row: row | {"labels": [*row["labels"][1:], "Sea and ocean"]})


def _val_split_name(root: Path) -> None:
    _edit(root, "val-split-name", lambda row: row | {"split": "val"})


def _duplicate_id(root: Path) -> None:
    _edit(root, "duplicate-id", lambda row: row, keep=True)


def _two_splits(root: Path) -> None:
    _edit(root, "two-splits", lambda row: row | {"split": "test" if row["split"] != "test" else "train"}, keep=True)


def _duplicate(root: Path) -> None:
    """The patch gets the pixels of its neighbour, in its own place."""
    target = PLACES["duplicate"]
    source = Patch(target.country, target.kind, target.number - 1)
    for band in ALL_BANDS:
        _copy_pixels(band_path(root / IMAGES, source.id, band), band_path(root / IMAGES, target.id, band), band)


def _orphan(root: Path) -> None:
    name, rows = PLACES["orphan"].id, _rows(root / METADATA)
    write_table(root / METADATA, [row for row in rows if row["patch_id"] != name])


def _offset(root: Path) -> None:
    for path in sorted((root / IMAGES).rglob("*.tif")):
        _rewrite(path, lambda pixels: pixels + np.uint16(1000))


def _no_flagged_table(root: Path) -> None:
    (root / FLAGGED_METADATA).unlink()


def _v1_layout(root: Path) -> None:
    for path in sorted((root / IMAGES).glob("*/*")):
        column, row = (int(part) for part in path.name.rsplit("_", 2)[1:])
        product = product_of(path.name).split("_")
        name = f"{product[0]}_MSIL2A_{product[2].split('T')[0]}T{int(product[2].split('T')[1])}_{column}_{row}"
        path.rename(root / IMAGES / name)
        for band in sorted((root / IMAGES / name).iterdir()):
            band.rename(band.with_name(name + band.name[len(path.name) :]))
        (root / IMAGES / name / f"{name}_labels_metadata.json").write_text('{"labels": []}\n')
    for path in list((root / IMAGES).iterdir()):
        if not any(path.iterdir()):
            path.rmdir()


def _nested(root: Path) -> None:
    (root / "download").mkdir()
    for name in (IMAGES, METADATA, FLAGGED_METADATA):
        (root / name).rename(root / "download" / name)


def _packed(root: Path) -> None:
    with tarfile.open(root / f"{IMAGES}.tar", "w") as archive:
        for path in sorted((root / IMAGES).rglob("*.tif")):
            content = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(root).as_posix())  # no time, no owner: the same bytes every time
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    shutil.rmtree(root / IMAGES)


def _empty(root: Path) -> None:
    for path in list((root / IMAGES).iterdir()):
        shutil.rmtree(path)


def _junk_files(root: Path) -> None:
    product = next(iter(sorted((root / IMAGES).iterdir())))
    (root / IMAGES / ".DS_Store").write_bytes(b"\x00\x00\x00\x01Bud1")
    (product / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    (product / "._S2").write_bytes(b"\x00\x05\x16\x07")


DEFECTS: dict[str, Callable[[Path], None]] = {
    "missing-band": _missing_band,
    "wrong-size": _wrong_size,
    "wrong-type": _wrong_type,
    "zero-band": _zero_band,
    "truncated": _truncated,
    "unreadable": _unreadable,
    "not-on-disk": _not_on_disk,
    "orphan": _orphan,
    "unknown-label": _unknown_label,
    "val-split-name": _val_split_name,
    "duplicate-id": _duplicate_id,
    "two-splits": _two_splits,
    "duplicate": _duplicate,
    "offset": _offset,
    "no-flagged-table": _no_flagged_table,
    "v1-layout": _v1_layout,
    "nested": _nested,
    "packed": _packed,
    "empty": _empty,
    "junk-files": _junk_files,
}
"""Name to what changes a finished archive. `junk-files` is no fault: readers must ignore it."""

ALONE = ("v1-layout", "nested", "packed", "empty", "offset")


def check(names: Sequence[str], patches: int) -> None:
    """Refuse unknown names and combinations that cannot be.

    Args:
        names: of `DEFECTS`.
        patches: summer patches of each country.

    Raises:
        ConfigError: with the nearest valid name.
    """
    require_known(names, DEFECTS, ALONE, "changes the whole archive")
    for name in names:
        if name in PLACES and PLACES[name].number >= patches:
            raise ConfigError(f"defect '{name}' needs at least {PLACES[name].number + 1} patches of a country")


def inject(root: Path, names: Sequence[str]) -> None:
    """Apply the named defects to a finished archive."""
    for name in names:
        DEFECTS[name](root)


def _folder(root: Path, patch_id: str) -> Path:
    return root / IMAGES / product_of(patch_id) / patch_id


def _band(root: Path, defect: str, band: str) -> Path:
    return band_path(root / IMAGES, PLACES[defect].id, band)


def _copy_pixels(source: Path, target: Path, band: str) -> None:
    pixels = read_band(source, band)
    _rewrite(target, lambda _: pixels)


def _rewrite(path: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    import rasterio

    with rasterio.open(path) as raster:
        pixels, profile = raster.read(1), raster.profile
    changed = change(pixels)
    kept = {name: profile[name] for name in ("driver", "count", "nodata", "crs", "transform")}
    with rasterio.open(path, "w", **kept, dtype=changed.dtype, height=len(changed), width=changed.shape[1]) as raster:
        raster.write(changed, 1)


def _rows(path: Path) -> list[dict[str, Any]]:
    from pyarrow import parquet

    return list(parquet.read_table(path).to_pylist())


def _edit(root: Path, defect: str, change: Callable[[dict[str, Any]], dict[str, Any]], keep: bool = False) -> None:
    """Change the row of a defect's patch in the main table, or add the changed row to it."""
    rows: list[dict[str, Any]] = []
    for row in _rows(root / METADATA):
        if row["patch_id"] != PLACES[defect].id:
            rows.append(row)
        else:
            rows += [row, change(row)] if keep else [change(row)]
    write_table(root / METADATA, rows)
