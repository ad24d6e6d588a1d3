"""The plain kind of TIFF that an archive of small band files consists of.

A million of them are opened when such an archive is packed, and a quarter of a million when it is checked. GDAL takes
about a millisecond for a file, Pillow 0.15 ms for a header; the few lines here take 0.02 ms, and leave whatever is not
plain to GDAL.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np

HEAD = 1024  # bytes
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _OFFSETS, _SAMPLES, _COUNTS, _FORMAT = 256, 257, 258, 259, 273, 277, 279, 339
_SIZES = {3: 2, 4: 4}  # bytes of a short and of a long


def first_pixels(path: str | os.PathLike[str], side: int) -> bytes | None:
    """First pixels of a whole, uncompressed, little-endian TIFF of one uint16 band of side x side pixels, not all zero.

    Returns:
        Those in the first kilobyte; None where it does not show such a file, which may have harmless reasons.

    Raises:
        OSError: the file cannot be read.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        head, size = os.read(handle, HEAD), os.fstat(handle).st_size
    finally:
        os.close(handle)
    strips = _strips(head, size, side)
    start = strips[0][0] if strips else 0
    return head[start:] if start and any(head[start:]) else None


def plain_pixels(path: str | os.PathLike[str], side: int) -> np.ndarray | None:
    """The pixels of such a file, uint16 [side, side]; None where it is another kind, or damaged.

    Raises:
        OSError: the file cannot be read.
    """
    content = Path(path).read_bytes()
    strips = _strips(content, len(content), side)
    if not strips:
        return None
    rows = b"".join(content[offset : offset + count] for offset, count in strips)
    return np.frombuffer(rows, "<u2").reshape(side, side).astype(np.uint16)  # the caller may write into it


def _strips(head: bytes, size: int, side: int) -> list[tuple[int, int]]:
    """Offset and bytes of each strip; none where the file is not plain."""
    try:
        return _plain_strips(head, size, side)
    except (struct.error, KeyError):  # too short, or tags that such a file has are not there
        return []


def _plain_strips(head: bytes, size: int, side: int) -> list[tuple[int, int]]:
    if head[:4] != b"II*\0":
        return []
    (start,) = struct.unpack_from("<I", head, 4)
    (count,) = struct.unpack_from("<H", head, start)
    entries = head[start + 2 : start + 2 + 12 * count]
    tags = {tag: (kind, number, value) for tag, kind, number, value in struct.iter_unpack("<HHII", entries)}
    for tag, wanted in ((_WIDTH, side), (_HEIGHT, side), (_BITS, 16), (_COMPRESSION, 1), (_SAMPLES, 1), (_FORMAT, 1)):
        kind, number, value = tags[tag]
        if number != 1 or (value & 0xFFFF if kind == 3 else value) != wanted:
            return []
    offsets, counts = _numbers(head, *tags[_OFFSETS]), _numbers(head, *tags[_COUNTS])
    strips = list(zip(offsets, counts, strict=True))
    return strips if sum(counts) == 2 * side * side and max(map(sum, strips)) <= size else []


def _numbers(head: bytes, kind: int, number: int, value: int) -> tuple[int, ...]:
    form = f"<{number}{'H' if kind == 3 else 'I'}"
    inside = number * _SIZES[kind] <= 4  # the tag itself
    return struct.unpack_from(form, struct.pack("<I", value)) if inside else struct.unpack_from(form, head, value)
