"""What can be wrong with a BigEarthNet folder, in words: the reader and the checker say the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

REPLACE = "replace it from the archive"


def no_flagged_table(path: Path) -> str:
    """Flagged patches are wanted, and the table that names them is missing."""
    return (
        f"{path}: flagged patches (snow, cloud, shadow) are wanted, but the table that lists them is missing; put "
        "metadata_for_patches_with_snow_cloud_or_shadow.parquet there, set flagged_metadata to where it lies, or set "
        "flagged: false"
    )


def no_patches_of(country: str, season: str, present: Sequence[str]) -> str:
    """A country that was asked for has nothing left."""
    there = f"countries with patches: {', '.join(present)}" if present else "no country has any"
    return f"country {country} has no patches left ({season}); take it out of countries or change season ({there})"


def nothing_left(path: Path, season: str) -> str:
    """The season's filter dropped all."""
    return f"{path}: no patches left ({season}); set season: all, or check the table"


def not_on_disk(images: Path, missing: Sequence[str], total: int) -> str:
    """Rows of the table without a patch."""
    return (
        f"{images}: {len(missing)} of {total} patches of the table are not on disk, the first is {missing[0]}; unpack "
        "the whole archive, "
        "or set missing: leave_out to go on without them"
    )


def missing_band(path: Path) -> str:
    """A band file is not there."""
    return f"{path}: no such file; a patch needs all bands, unpack the archive again"


def bad_band(path: Path, count: int, dtype: str, width: int, height: int, side: int) -> str | None:
    """What is wrong with a band file by its header, or None."""
    if (count, dtype, width, height) == (1, "uint16", side, side):
        return None
    return (
        f"{path}: has {count} band{'s' if count != 1 else ''} of {dtype}, {width} x {height} pixels, but must have "
        "one of uint16, "
        f"{side} x {side}; {REPLACE}"
    )


def zero_band(path: Path) -> str:
    """A band without any value: zero marks missing pixels."""
    return f"{path}: is zero everywhere, which marks missing pixels; {REPLACE}"


def unreadable_band(path: Path, reason: object, kind: str = "a GeoTIFF") -> str:
    """A band file cannot be decoded."""
    return f"{path}: cannot be read as {kind} ({reason}); {REPLACE}"


def no_permission(path: Path) -> str:
    """A file or folder may not be read."""
    return f"{path}: no permission to read it; run chmod u+r{'x' if path.is_dir() else ''} on it"


def more(count: int) -> str:
    """How many more rows or patches have the same fault."""
    return f" (and {count} more)" if count else ""
