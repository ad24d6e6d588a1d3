"""Band files and tables of a synthetic BigEarthNet archive, as bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedrs_lightning.data.archives.bigearthnet.files import CLASSES, FLAGGED_METADATA, METADATA
from fedrs_lightning.synth.bigearthnet.landcover import PATCH_SIDE
from fedrs_lightning.synth.bigearthnet.patches import Patch
from fedrs_lightning.synth.rasters import geotiff


def encode(pixels: np.ndarray, epsg: int, corner: tuple[int, int]) -> bytes:
    """GeoTIFF of one band, uint16 [side, side], uncompressed, zero marks missing pixels; upper left corner, metres."""
    header, place = _template(len(pixels), epsg)
    return header[:place] + struct.pack("<2d", *corner) + header[place + 16 :] + pixels.astype("<u2").tobytes()


@lru_cache(maxsize=64)
def _template(side: int, epsg: int) -> tuple[bytes, int]:
    """What GDAL writes before the pixels of such a file, and where in it the corner stands.

    The band files of an archive differ in nothing else, and asking GDAL for each would take ten times as long.
    """
    corner, pixels = (123456.0, 7654321.0), np.ones((1, side, side), dtype=np.uint16)
    content = geotiff(pixels, epsg, corner, PATCH_SIDE / side, nodata=0, endianness="LITTLE")
    header = content[: -2 * side * side]
    return header, header.index(struct.pack("<2d", *corner))


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write one metadata table with the official columns and types."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [(name, pa.string()) for name in ("split", "country", "s1_name", "s2v1_name")]
    flags = [(name, pa.bool_()) for name in ("contains_seasonal_snow", "contains_cloud_or_shadow")]
    schema = pa.schema([("patch_id", pa.string()), ("labels", pa.list_(pa.string())), *texts, *flags])
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path)


def write_tables(folder: Path, patches: Sequence[Patch], present: Sequence[np.ndarray]) -> None:
    """Write the tables of clean and of flagged patches, sorted by id; `present` are the classes of each, bool [19]."""
    rows = [_row(*of) for of in sorted(zip(patches, present, strict=True), key=lambda of: of[0].id)]
    flagged = [row for row in rows if row["contains_seasonal_snow"] or row["contains_cloud_or_shadow"]]
    write_table(folder / METADATA, [row for row in rows if row not in flagged])
    write_table(folder / FLAGGED_METADATA, flagged)


def _row(patch: Patch, present: np.ndarray) -> dict[str, Any]:
    labels = sorted(name for name, there in zip(CLASSES, present, strict=True) if there)
    flags = {"contains_seasonal_snow": patch.kind == "snow", "contains_cloud_or_shadow": patch.kind == "cloud"}
    texts = {name: getattr(patch, name) for name in ("split", "country", "s1_name", "s2v1_name")}
    return {"patch_id": patch.id, "labels": labels, **texts, **flags}
