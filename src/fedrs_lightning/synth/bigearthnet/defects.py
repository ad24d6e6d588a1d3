"""Known faults of a BigEarthNet archive."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrs_lightning.data.archives.bigearthnet import files
from fedrs_lightning.data.archives.bigearthnet.files import FLAGGED_METADATA, IMAGES, METADATA, band_path
from fedrs_lightning.errors import ConfigError
from fedrs_lightning.synth.bigearthnet.files import write_table
from fedrs_lightning.synth.bigearthnet.patches import Patch
from fedrs_lightning.synth.defects import add_junk, remove_folders, require_known, truncate
from fedrs_lightning.synth.rasters import read, rewrite_geotiff

_OTHER = {"train": "test", "validation": "test", "test": "train"}
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


def _band(root: Path, defect: str, band: str) -> Path:
    return band_path(root / IMAGES, PLACES[defect].id, band)


def _edit(root: Path, defect: str, change: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> None:
    """Put other rows in the place of the row of a defect's patch in the main table."""
    from pyarrow import parquet

    rows = parquet.read_table(root / METADATA).to_pylist()
    edited = [change(row) if row["patch_id"] == PLACES[defect].id else [row] for row in rows]
    write_table(root / METADATA, [row for some in edited for row in some])


def _duplicate(root: Path) -> None:
    """The patch gets the pixels of its neighbour, in its own place."""
    target = PLACES["duplicate"]
    source = Patch(target.country, target.kind, target.number - 1)
    for band in files.ALL_BANDS:
        pixels = read(band_path(root / IMAGES, source.id, band))
        rewrite_geotiff(_band(root, "duplicate", band), lambda _, pixels=pixels: pixels)  # type: ignore[misc]


def _offset(root: Path) -> None:
    for path in sorted((root / IMAGES).rglob("*.tif")):
        rewrite_geotiff(path, lambda pixels: pixels + np.uint16(1000))


def _v1_layout(root: Path) -> None:
    for path in sorted((root / IMAGES).glob("*/*")):
        column, row = (int(part) for part in path.name.rsplit("_", 2)[1:])
        product = files.product_of(path.name).split("_")
        day, time = product[2].split("T")
        name = f"{product[0]}_MSIL2A_{day}T{int(time)}_{column}_{row}"
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


DEFECTS: dict[str, Callable[[Path], object]] = {
    "missing-band": lambda root: _band(root, "missing-band", "B05").unlink(),
    "wrong-size": lambda root: rewrite_geotiff(_band(root, "wrong-size", "B03"), lambda pixels: pixels[:, :100, :100]),
    "wrong-type": lambda root: rewrite_geotiff(_band(root, "wrong-type", "B04"), lambda b: (b // 64).astype(np.uint8)),
    "zero-band": lambda root: rewrite_geotiff(_band(root, "zero-band", "B08"), np.zeros_like),
    "truncated": lambda root: truncate(_band(root, "truncated", "B11")),
    "unreadable": lambda root: _band(root, "unreadable", "B12").chmod(0),
    "not-on-disk": lambda root: shutil.rmtree(_band(root, "not-on-disk", "B12").parent),
    "orphan": lambda root: _edit(root, "orphan", lambda row: []),
    "unknown-label": lambda root: _edit(
        root, "unknown-label", lambda row: [row | {"labels": [*row["labels"][1:], "Sea and ocean"]}]
    ),
    "val-split-name": lambda root: _edit(root, "val-split-name", lambda row: [row | {"split": "val"}]),
    "duplicate-id": lambda root: _edit(root, "duplicate-id", lambda row: [row, row]),
    "two-splits": lambda root: _edit(root, "two-splits", lambda row: [row, row | {"split": _OTHER[row["split"]]}]),
    "duplicate": _duplicate,
    "offset": _offset,
    "no-flagged-table": lambda root: (root / FLAGGED_METADATA).unlink(),
    "v1-layout": _v1_layout,
    "nested": _nested,
    "packed": _packed,
    "empty": lambda root: remove_folders(root / IMAGES),
    "junk-files": lambda root: add_junk(root / IMAGES, min((root / IMAGES).iterdir()), "S2"),
}
"""Name to what changes a finished archive. `junk-files` is no fault: readers must ignore it."""

ALONE = ("v1-layout", "nested", "packed", "empty", "offset")


def check(names: Sequence[str], patches: int) -> None:
    """Refuse unknown names and combinations that cannot be with so many summer patches of each country.

    Raises:
        ConfigError: with the nearest valid name.
    """
    require_known(names, DEFECTS, ALONE, "changes the whole archive")
    for name in names:
        if name in PLACES and PLACES[name].number >= patches:
            raise ConfigError(f"defect '{name}' needs at least {PLACES[name].number + 1} patches of a country")
