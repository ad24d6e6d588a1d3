"""What the index of a pack says, field by field, whoever wrote it: names, shapes, sizes and hashes that fit."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, cast

from fedrs_lightning.data.packs.crops import CropIndex, crop_index
from fedrs_lightning.data.packs.fields import Field
from fedrs_lightning.errors import DataError

DAMAGED = "{}: the pack is damaged ({}); delete this folder, it is made again"
UNREADABLE = (OSError, ValueError, TypeError, EOFError, OverflowError, SyntaxError, TokenError)
"""What reading the header of a damaged .npy file raises."""

MOST = 2**31  # of a side in pixels, and of samples
SIDE = 2**14  # pixels of a crop's side, or of that to which images are resized
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ShardEntry:
    """Samples `first` to `stop - 1`, and the SHA-256 of their bytes in each array."""

    first: int
    stop: int
    sha256: Mapping[str, str]


@dataclass(frozen=True)
class PackIndex:
    """An index that is consistent in itself.

    Attributes:
        arrays: shape and type of each array of a sample.
        tables: SHA-256 of each table's values.
        shards: in order, without gaps.
        sha256: of the shards' hashes; stands for the bytes of all arrays.
        sample_ids: of the samples.
        crops: where they lie in tiles; None for images.
    """

    arrays: Mapping[str, Field]
    tables: Mapping[str, str]
    shards: tuple[ShardEntry, ...]
    sha256: str
    sample_ids: tuple[str, ...]
    crops: CropIndex | None

    @property
    def count(self) -> int:
        """Samples."""
        return len(self.sample_ids)


def read_index(folder: Path) -> PackIndex:
    """The index of a finished pack.

    Raises:
        DataError: it is missing, no JSON, or says something that cannot be; names the folder and the field.
    """
    try:
        content = json.loads((folder / "index.json").read_bytes())
        return _parsed(content)
    except OSError as error:
        raise DataError(DAMAGED.format(folder, f"index.json: {error.strerror}")) from None
    except RecursionError:
        raise DataError(DAMAGED.format(folder, "index.json is nested too deeply")) from None
    except ValueError as error:  # of JSON and UTF-8 too
        raise DataError(DAMAGED.format(folder, f"index.json: {error}")) from None


def _parsed(content: Any) -> PackIndex:
    index = _mapping("the content", content)
    arrays = {}
    for name, own in _named("arrays", index.get("arrays")).items():
        entry = _mapping(f"arrays.{name}", own)
        shape = tuple(_whole(f"arrays.{name}.shape", side, 1) for side in _list(f"arrays.{name}", entry.get("shape")))
        if entry.get("dtype") not in ("uint8", "uint16") or not 1 <= len(shape) <= 4 or math.prod(shape) > MOST:
            raise ValueError(f"arrays.{name} must be 1 to 4 sides of uint8 or uint16, got {_shown(own)}")
        arrays[name] = Field(shape, entry["dtype"])
    if not arrays:
        raise ValueError("arrays names none")
    tables = {name: _hash(f"tables.{name}", own) for name, own in _named("tables", index.get("tables")).items()}
    shards, end, digest = [], 0, hashlib.sha256()
    for number, own in enumerate(_list("shards", index.get("shards"))):
        where = f"shards.{number}"
        entry = _mapping(where, own)
        first, stop = (_whole(f"{where}.{name}", entry.get(name), 0) for name in ("first", "stop"))
        hashes = _named(f"{where}.sha256", entry.get("sha256"))
        if first != end or stop < first or hashes.keys() != arrays.keys():
            raise ValueError(f"{where} must go on at sample {end} with a hash of each array, got {_shown(own)}")
        shards.append(ShardEntry(first, stop, {name: _hash(f"{where}.sha256.{name}", hashes[name]) for name in arrays}))
        end = stop
        for name in arrays:
            digest.update(bytes.fromhex(hashes[name]))
    if _hash("sha256", index.get("sha256")) != digest.hexdigest():
        raise ValueError("sha256 is not that of the shards")
    crops = _crops(index, end) if "tiles" in index else None
    ids = _list("sample_ids", index.get("sample_ids")) if crops is None else crops.ids
    if len(ids) != end or not all(isinstance(name, str) for name in ids):
        raise ValueError(f"sample_ids must be {end} names")
    return PackIndex(arrays, tables, tuple(shards), digest.hexdigest(), tuple(ids), crops)


def _crops(index: Mapping[str, Any], count: int) -> CropIndex:
    size = _whole("size", index.get("size"), 1, SIDE)
    overlap = _whole("overlap", index.get("overlap"), 0, size - 1)
    tiles, total = list[tuple[str, int, int]](), 0
    for number, own in enumerate(_list("tiles", index["tiles"])):
        entry = _list(f"tiles.{number}", own)
        if len(entry) != 3 or not isinstance(entry[0], str):
            raise ValueError(f"tiles.{number} must be a name, height and width, got {_shown(own)}")
        height, width = (_whole(f"tiles.{number}", side, 1) for side in entry[1:])
        tiles.append((entry[0], height, width))
        total += math.prod(1 + max(0, -(-(side - size) // (size - overlap))) for side in (height, width))
    if total != count:
        raise ValueError(f"tiles have {total} crops, but the shards {count} samples")
    return crop_index(tiles, size, overlap)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _mapping(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a mapping, got {_shown(value)}")
    return value


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} must be a list, got {_shown(value)}")
    return value


def _named(where: str, value: Any) -> dict[str, Any]:
    """Names of files beside the index, and of no others."""
    for name in _mapping(where, value):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{where}: {_shown(name)} is no name of an array")
    return cast("dict[str, Any]", value)


def _whole(where: str, value: Any, least: int, most: int = MOST) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{where} must be a whole number of {least} to {most}, got {_shown(value)}")
    return value


def _hash(where: str, value: Any) -> str:
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise ValueError(f"{where} must be a SHA-256, got {_shown(value)}")
    return value
