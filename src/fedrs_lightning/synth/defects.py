"""Planted defects: known faults of a sample, one by one, to try checks and error messages on.

Each data set has a table `DEFECTS` from the name of a defect to what changes a finished sample.
"""

from __future__ import annotations

import difflib
import shutil
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path

from fedrs_lightning.errors import ConfigError


def require_known(names: Sequence[str], valid: Collection[str], alone: Collection[str], why: str, of: str = "") -> None:
    """Refuse names that no defect has, and company for those that stand `alone`, which messages say `why`.

    `of` names the data set where its defects are not the only ones that a message could mean.

    Raises:
        ConfigError: with the nearest valid name.
    """
    for name in names:
        if name not in valid:
            near = difflib.get_close_matches(name, valid, n=1)
            advice = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(valid)}"
            raise ConfigError(f"unknown defect '{name}'{f' of {of}' if of else ''}; {advice}")
        if name in alone and len(names) > 1:
            raise ConfigError(f"defect '{name}' {why}, so it cannot be combined with others")


def truncate(path: Path) -> None:
    """Cut off the last third of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


def remove_folders(root: Path) -> None:
    """Remove all folders in a folder."""
    for folder in [path for path in root.iterdir() if path.is_dir()]:
        shutil.rmtree(folder)


def zip_folders(root: Path) -> None:
    """Put archives in the place of all folders in a folder."""
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        zip_folder(folder)


def zip_folder(folder: Path) -> None:
    """Put an archive with the folder's files in its place."""
    with zipfile.ZipFile(folder.with_suffix(".zip"), "w") as archive:
        for path in sorted(folder.rglob("*.*")):
            archive.writestr(zipfile.ZipInfo(f"{folder.name}/{path.relative_to(folder).as_posix()}"), path.read_bytes())
    shutil.rmtree(folder)


def add_junk(root: Path, folder: Path, double: str) -> None:
    """Add the files that desktops leave behind: to `root`, and to one of its folders, there also beside `double`."""
    (root / ".DS_Store").write_bytes(b"\x00\x00\x00\x01Bud1")
    (folder / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    (folder / f"._{double}").write_bytes(b"\x00\x05\x16\x07")
