"""Pixels of BigEarthNet patches from an LMDB of `rico-hdl`: patch id to a safetensors dictionary of its bands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedrs_lightning.data.archives.bigearthnet import faults
from fedrs_lightning.data.archives.bigearthnet import files as layout
from fedrs_lightning.data.packs.pack import fingerprint
from fedrs_lightning.errors import DataError


class LmdbStore:
    """Patches of an LMDB, whose values are those of the GeoTIFFs.

    Args:
        folder: holds `data.mdb`.

    Raises:
        DataError: the package lmdb is not installed, or this is no LMDB.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = _open(folder.resolve())
        self.decoder = "safetensors in an LMDB, values unchanged"

    def present(self, patch_ids: Sequence[str]) -> np.ndarray:
        """Which of the patches have an entry, bool [N]."""
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            return np.asarray([cursor.set_key(name.encode()) for name in patch_ids], dtype=bool)

    def decode(self, patch_id: str) -> dict[str, np.ndarray]:
        """`image10` uint16 [4, 120, 120] and `image20` uint16 [6, 60, 60] of one patch; thread-safe.

        Raises:
            DataError: the patch or one of its bands is missing, damaged, zero everywhere, or of another size or type.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        with self._environment.begin() as transaction:
            value = transaction.get(patch_id.encode())
        place = self.folder / patch_id
        if value is None:
            raise DataError(faults.missing_band(place))
        try:
            bands = load(value)
        except (SafetensorError, ValueError, KeyError) as error:
            raise DataError(faults.unreadable_band(place, error, "a safetensors dictionary")) from None

        def read(band: str) -> np.ndarray:
            if band not in bands:
                raise DataError(faults.missing_band(place / band))
            pixels = bands[band]
            return layout.checked(pixels[None] if pixels.ndim == 2 else pixels, place / band, band)

        return layout.stacked(read)

    def fingerprint(self, patch_ids: Sequence[str]) -> str:
        """SHA-256 over size and modification time of the database file."""
        return fingerprint([("data.mdb", self.folder / "data.mdb")])


@cache
def _open(folder: Path) -> Any:
    """The environment, once a process as LMDB demands; without a lock file, as the folder may be read-only."""
    try:
        import lmdb
    except ImportError:
        needs = "is an LMDB; reading it needs the package lmdb, which is not installed"
        raise DataError(f"{folder}: {needs}; run: pip install 'fedrs-lightning[lmdb]'") from None
    try:
        return lmdb.open(str(folder), readonly=True, lock=False, readahead=False, max_readers=1024)
    except lmdb.Error as error:
        raise DataError(faults.unreadable_band(folder, error, "an LMDB")) from None
