"""What can be wrong with a BigEarthNet folder, in words: the reader and the checker say the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

REPLACE = "replace it from the archive"
EXPECTED = (
    "expected BigEarthNet-S2/<product>/<patch>/<patch>_B02.tif, "
    "with product folders such as S2A_MSIL2A_20170613T101031_N9999_R022_T33UUP"
)


def some(names: Sequence[str], shown: int = 5) -> str:
    """The first few names, with dots where there are more."""
    return ", ".join(names[:shown]) + (", ..." if len(names) > shown else "")


def no_folder(path: Path) -> str:
    """The root is not there."""
    return f"{path}: no such folder; set root to the BigEarthNet folder that you downloaded and unpacked"


def a_file(path: Path) -> str:
    """The root is a file."""
    return f"{path}: is a file; set root to the BigEarthNet folder"


def empty_folder(path: Path) -> str:
    """The root has no entry."""
    return f"{path}: the folder is empty; {EXPECTED}"


def no_tree(path: Path, found: Sequence[str]) -> str:
    """The root holds something else."""
    return f"{path}: no BigEarthNet v2.0 tree; {EXPECTED}, found: {some(found)}"


def wrong_level(path: Path, right: Path, kind: str) -> str:
    """The root is one level too high or too low."""
    return f"{path}: is {kind}; set root to {right}"


def still_packed(path: Path) -> str:
    """The archive was downloaded and not unpacked."""
    name, folder = path.name, path.parent
    if ".tar.gza" in name:  # split in parts: .tar.gzaa, .tar.gzab
        command = f"cat {folder / name.split('.tar.gz')[0]}.tar.gz* | tar -xz -C {folder}"
    elif name.endswith(".zst"):
        command = f"tar --zstd -xf {path} -C {folder}"
    else:
        command = f"tar -xf {path} -C {folder}"
    return f"{path}: is still packed; unpack it with: {command}"


def version_one(path: Path, sign: str) -> str:
    """The tree is that of the first release."""
    return (
        f"{path}: this is BigEarthNet v1.0 ({sign}); its pixels, labels and splits are others than those of v2.0 and "
        "the two must not be "
        "mixed; download BigEarthNet v2.0 (BigEarthNet-S2.tar.zst and metadata.parquet)"
    )


def no_table(path: Path, setting: str) -> str:
    """A metadata table is missing."""
    return (
        f"{path}: no such table; put metadata.parquet from the BigEarthNet v2.0 archive there, "
        f"or set {setting} to where it lies"
    )


def no_flagged_table(path: Path) -> str:
    """Flagged patches are wanted, and the table that names them is missing."""
    return (
        f"{path}: flagged patches (snow, cloud, shadow) are wanted, but the table that lists them is missing; put "
        "metadata_for_patches_with_snow_cloud_or_shadow.parquet there, set flagged_metadata to where it lies, or set "
        "flagged: false"
    )


def no_pyarrow() -> str:
    """The library that reads the tables is missing."""
    return "reading metadata.parquet needs the package pyarrow, which is not installed; run: pip install pyarrow"


def no_lmdb(path: Path) -> str:
    """The library that reads an LMDB is missing."""
    return (
        f"{path}: is an LMDB; reading it needs the package lmdb, which is not installed; "
        "run: pip install 'fedrs-lightning[lmdb]'"
    )


def unreadable_table(path: Path, reason: object) -> str:
    """A table cannot be parsed."""
    return f"{path}: cannot be read as a Parquet table ({reason}); {REPLACE}"


def lacking_columns(path: Path, lacking: Sequence[str], present: Sequence[str]) -> str:
    """A table has other columns."""
    return (
        f"{path}: has no column {', '.join(lacking)}"
        f" (columns: {some(present, 9) or 'none'}); use the table of BigEarthNet v2.0"
    )


def empty_cell(path: Path, column: str, patch: str, more: int = 0) -> str:
    """A cell has no value."""
    return f"{path}: {column} of patch {patch}{_more(more)} is empty; {REPLACE}"


def bad_patch_id(path: Path, patch: str, more: int = 0) -> str:
    """A patch is not named as in v2.0."""
    return (
        f"{path}: '{patch}'{_more(more)} is no patch id of v2.0, such as "
        f"S2A_MSIL2A_20170613T101031_N9999_R022_T33UUP_26_57; {REPLACE}"
    )


def twice(path: Path, patch: str, more: int = 0) -> str:
    """A patch has two rows."""
    return f"{path}: patch {patch}{_more(more)} has two rows; a patch may be in one table only, and once; {REPLACE}"


def in_two_places(path: Path, patch: str, first: str, second: str, more: int = 0) -> str:
    """A patch has two rows that put it into two splits or countries."""
    return (
        f"{path}: patch {patch}{_more(more)} is in {first} and in {second}; a patch may "
        f"be in one split and one country only; {REPLACE}"
    )


def unknown_split(path: Path, patch: str, split: str, more: int = 0) -> str:
    """A split has another name."""
    hint = "; it is called 'validation'" if split.lower() in ("val", "valid", "dev") else ""
    return f"{path}: split of patch {patch}{_more(more)} is '{split}', but must be train, validation or test{hint}"


def unknown_label(path: Path, patch: str, label: str, more: int = 0) -> str:
    """A label is not one of the nineteen."""
    return (
        f"{path}: label '{label}' of patch {patch}{_more(more)} is not one of the 19 BigEarthNet classes; "
        "use the table of v2.0"
    )


def no_label(path: Path, patch: str, more: int = 0) -> str:
    """A patch has an empty list of labels."""
    return f"{path}: patch {patch}{_more(more)} has no label; {REPLACE}"


def unknown_country(path: Path, patch: str, country: str, known: Sequence[str], more: int = 0) -> str:
    """A country is not one of the ten."""
    return f"{path}: country '{country}' of patch {patch}{_more(more)} is not one of {', '.join(known)}"


def no_patches_of(country: str, season: str, present: Sequence[str]) -> str:
    """A country that was asked for has nothing left."""
    there = f"countries with patches: {', '.join(present)}" if present else "no country has any"
    return f"country {country} has no patches left ({season}); take it out of countries or change season ({there})"


def nothing_left(path: Path, season: str) -> str:
    """The season's filter dropped all."""
    return f"{path}: no patches left ({season}); set season: all, or check the table"


def no_training_patches(country: str, season: str) -> str:
    """A country cannot be a client."""
    return (
        f"country {country} has no training patches ({season}), so that a run refuses it as a client; "
        "name the others in countries"
    )


def not_on_disk(images: Path, missing: Sequence[str], total: int) -> str:
    """Rows of the table without a patch."""
    return (
        f"{images}: {len(missing)} of {total} patches of the table are not on disk, the first is {missing[0]}; unpack "
        "the whole archive, "
        "or set missing: leave_out to go on without them"
    )


def not_in_table(folder: Path, more: int = 0) -> str:
    """A patch without a row."""
    return (
        f"{folder}: this patch{_more(more)} is in no metadata table; "
        "remove the folder or restore the tables from the archive"
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


def _more(count: int) -> str:
    return f" (and {count} more)" if count else ""
