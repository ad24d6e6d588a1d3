"""Is a file the plain kind of TIFF that an archive of small band files consists of?

A check that reads headers only opens a quarter of a million of them. GDAL takes 0.8 ms for a header and Pillow 0.15 ms;
the few lines here take 0.02 ms, and leave whatever is not plain to GDAL.
"""

from __future__ import annotations

import os
import struct

HEAD = 1024  # bytes
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _OFFSETS, _SAMPLES, _COUNTS, _FORMAT = 256, 257, 258, 259, 273, 277, 279, 339
_SIZES = {3: 2, 4: 4}  # bytes of a short and of a long


def first_pixels(path: str | os.PathLike[str], side: int) -> bytes | None:
    """Look whether a file is a whole, uncompressed, little-endian TIFF of one uint16 band of side x side pixels, not all zero.

    Returns:
        The pixels in the first kilobyte; None where that does not show it, which may have harmless reasons.

    Raises:
        OSError: the file cannot be read.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        head, size = os.read(handle, HEAD), os.fstat(handle).st_size
    finally:
        os.close(handle)
    try:
        start = _start(head, size, side)
    except (struct.error, KeyError):  # too short, or tags that such a file has are not there
        return None
    return head[start:] if start and any(head[start:]) else None


def _start(head: bytes, size: int, side: int) -> int:
    """Where the pixels begin; 0 where the file is not plain."""
    if head[:4] != b"II*\0":
        return 0
    (start,) = struct.unpack_from("<I", head, 4)
    (count,) = struct.unpack_from("<H", head, start)
    entries = head[start + 2 : start + 2 + 12 * count]
    tags = {tag: (kind, number, value) for tag, kind, number, value in struct.iter_unpack("<HHII", entries)}
    for tag, wanted in ((_WIDTH, side), (_HEIGHT, side), (_BITS, 16), (_COMPRESSION, 1), (_SAMPLES, 1), (_FORMAT, 1)):
        kind, number, value = tags[tag]
        if number != 1 or (value & 0xFFFF if kind == 3 else value) != wanted:
            return 0
    offsets, counts = _numbers(head, *tags[_OFFSETS]), _numbers(head, *tags[_COUNTS])
    whole = sum(counts) == 2 * side * side and max(map(sum, zip(offsets, counts, strict=True))) <= size
    return offsets[0] if whole else 0


def _numbers(head: bytes, kind: int, number: int, value: int) -> tuple[int, ...]:
    form = f"<{number}{'H' if kind == 3 else 'I'}"
    return struct.unpack_from(
        form, struct.pack("<I", value) if number * _SIZES[kind] <= 4 else head, 0 if number * _SIZES[kind] <= 4 else value
    )
