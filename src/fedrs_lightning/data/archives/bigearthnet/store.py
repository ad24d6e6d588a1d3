"""Pixels of BigEarthNet patches by their id, from the official tree of files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from fedrs_lightning.data.archives.bigearthnet import files as layout
from fedrs_lightning.data.archives.folders import names_in
from fedrs_lightning.data.rasters.geotiff import gdal_version
from fedrs_lightning.errors import DataError

if TYPE_CHECKING:
    from fedrs_lightning.data.archives.bigearthnet.lmdb_store import LmdbStore

THREADS = 16  # a network file system answers many questions at a time
CHUNK = 1000  # patches of one work item

Look = Literal["files", "folders"]


PatchStore: TypeAlias = "TreeStore | LmdbStore"


class TreeStore:
    """Patches as folders of GeoTIFFs.

    Args:
        images: folder of the product folders.
        look: what a fingerprint looks at: sizes and modification times of all band files (a million of them for the
            summer patches), or those of the patch folders only, which miss a file that is overwritten in place.
    """

    def __init__(self, images: Path, look: Look = "files") -> None:
        self.images, self.look, self.decoder = images, look, gdal_version()

    def present(self, patch_ids: Sequence[str]) -> np.ndarray:
        """Which of the patches have a folder, bool [N]; lists each product folder once."""
        products = dict.fromkeys(map(layout.product_of, patch_ids))
        listed = {product: set(names_in(self.images / product)) for product in products}
        return np.asarray([name in listed[layout.product_of(name)] for name in patch_ids], dtype=bool)

    def decode(self, patch_id: str) -> dict[str, np.ndarray]:
        """`image10` uint16 [4, 120, 120] and `image20` uint16 [6, 60, 60] of one patch; thread-safe."""
        return layout.stacked(lambda band: layout.read_band(layout.band_path(self.images, patch_id, band), band))

    def fingerprint(self, patch_ids: Sequence[str]) -> str:
        """SHA-256 over sizes and modification times, in the order of `patch_ids`.

        Raises:
            DataError: a band file is missing or may not be read; names it.
        """
        chunks = [patch_ids[start : start + CHUNK] for start in range(0, len(patch_ids), CHUNK)]
        with ThreadPoolExecutor(THREADS) as pool:
            return hashlib.sha256("".join(pool.map(self._fingerprint, chunks)).encode()).hexdigest()

    def _fingerprint(self, patch_ids: Sequence[str]) -> str:
        digest = hashlib.sha256()
        endings = [""] if self.look == "folders" else [f"/{{}}_{band}.tif" for band in layout.BANDS]
        for name in patch_ids:
            folder = f"{self.images}/{layout.product_of(name)}/{name}"
            for ending in endings:
                path = folder + ending.format(name)
                try:
                    # A million of them, and a Path costs more than the call.
                    status = os.stat(path)  # noqa: PTH116
                except OSError as error:
                    raise DataError(layout.unreadable(Path(path), error)) from None
                digest.update(f"{name}{ending}\x1f{status.st_size}\x1f{status.st_mtime_ns}\n".encode())
        return digest.hexdigest()


def open_store(found: layout.Layout, look: Look = "files") -> PatchStore:
    """The store of a layout.

    Raises:
        DataError: it is an LMDB and the package lmdb is not installed, or it cannot be opened.
    """
    if found.kind == "files":
        return TreeStore(found.images, look)
    from fedrs_lightning.data.archives.bigearthnet.lmdb_store import LmdbStore

    return LmdbStore(found.images)
