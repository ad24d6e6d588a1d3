"""What can be wrong with a BigEarthNet folder, in words: the reader and the check say the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

REPLACE = "replace it from the archive"


def no_flagged_table(path: Path) -> str:
    """Flagged patches are wanted, and the table that names them is missing."""
    wanted = "flagged patches (snow, cloud, shadow) are wanted, but the table that lists them is missing"
    remedy = "set flagged_metadata to where it lies, or set flagged: false"
    return f"{path}: {wanted}; put metadata_for_patches_with_snow_cloud_or_shadow.parquet there, {remedy}"


def not_on_disk(images: Path, missing: Sequence[str], total: int) -> str:
    """Rows of the table without a patch."""
    absent = f"{len(missing)} of {total} patches of the table are not on disk, the first is {missing[0]}"
    return f"{images}: {absent}; unpack the whole archive, or set missing: leave_out to go on without them"


def missing_band(path: Path) -> str:
    """A band file is not there."""
    return f"{path}: no such file; a patch needs all bands, unpack the archive again"


def unreadable_band(path: Path, reason: object, kind: str = "a GeoTIFF") -> str:
    """A band file cannot be decoded."""
    return f"{path}: cannot be read as {kind} ({reason}); {REPLACE}"


def more(count: int) -> str:
    """How many more rows or patches have the same fault."""
    return f" (and {count} more)" if count else ""
