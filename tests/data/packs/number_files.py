"""Packs of small files of random numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedrs_lightning.data.packs.fields import Field
from fedrs_lightning.data.packs.images import ImagePack
from fedrs_lightning.data.packs.pack import fingerprint


def decode(path: Path) -> np.ndarray:
    """What a file holds, uint16 [2, 3, 3]."""
    return np.frombuffer(path.read_bytes(), dtype=np.uint16).reshape(2, 3, 3)


def make_spec(
    folder: Path,
    count: int = 150,
    settings: dict[str, Any] | None = None,
    decode: Callable[[Path], np.ndarray] = decode,
) -> ImagePack:
    """Samples of two arrays: what a file holds, and the upper left part of it as bytes."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    files = {f"a/{number}.bin": folder / f"{number}.bin" for number in range(count)}
    for path in files.values():
        content = rng.integers(0, 65536, 18).astype(np.uint16).tobytes()
        if not path.exists():
            path.write_bytes(content)

    def arrays(number: int) -> dict[str, np.ndarray]:
        values = decode(folder / f"{number}.bin")
        return {"image": values, "part": (values[:, :2, :2] >> 8).astype(np.uint8)}

    fields = {"image": Field((2, 3, 3), "uint16"), "part": Field((2, 2, 2), "uint8")}
    return ImagePack(
        "numbers", list(files), fields, settings or {"kind": "raw"}, lambda: fingerprint(files.items()), arrays
    )
