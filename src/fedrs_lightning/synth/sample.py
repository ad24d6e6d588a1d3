"""Sample folders: they appear whole or not at all, say that they are synthetic, and are not made twice."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedrs_lightning import __version__
from fedrs_lightning.errors import DataError
from fedrs_lightning.files import read_json, write_json

MARKER = "SYNTHETIC.json"


def describe(dataset: str, parameters: dict[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """Content of `SYNTHETIC.json`."""
    return {
        "synthetic": True,
        "dataset": dataset,
        "generator": f"fedrs-lightning {__version__}",
        "command": " ".join(command),
        "parameters": parameters,
    }


def publish(out: Path, marker: dict[str, Any], build: Callable[[Path], None]) -> bool:
    """Make a sample folder by one rename when everything is written.

    Args:
        out: folder to make; it may exist when it is empty or already holds this very sample.
        marker: from `describe`.
        build: fills a folder that holds the marker already.

    Returns:
        Whether anything was written; False when the same sample is there already.

    Raises:
        DataError: `out` holds something else, or cannot be written.
    """
    if out.exists():
        if _same_sample(out, marker):
            return False
        if not out.is_dir() or any(out.iterdir()):
            held = "another synthetic sample" if (out / MARKER).is_file() else "other things"
            raise DataError(f"{out}: exists and holds {held}; give another --out, or remove it")
    building = out.parent / f".{out.name}.{uuid.uuid4().hex[:12]}.building"
    try:
        building.mkdir(parents=True)
        write_json(building / MARKER, marker)
        build(building)
        if out.is_dir():
            out.rmdir()
        building.rename(out)
    except OSError as error:
        raise DataError(
            f"{error.filename or out}: cannot write the sample ({error.strerror}); free space or give another --out"
        ) from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return True


def _same_sample(out: Path, marker: dict[str, Any]) -> bool:
    if not (out / MARKER).is_file():
        return False
    found = read_json(out / MARKER)
    return all(found.get(key) == marker[key] for key in ("dataset", "generator", "parameters"))
