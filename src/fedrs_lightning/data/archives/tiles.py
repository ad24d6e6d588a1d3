"""What a segmentation data set offers: tiles with an image and a label, read row by row, and facts about them."""

from __future__ import annotations

import copy
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fedrs_lightning.data.archives.eurosat.files import is_junk
from fedrs_lightning.data.rasters.rows import Rows, Window
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.files import read_json

IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Customary normalisation of the aerial benchmarks (also that of the LoveDA authors), in grey levels."""

Split = Literal["official", "by_position"]
ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".gz", ".tgz")


@dataclass
class OpenTile:
    """An opened tile.

    Attributes:
        image: [C, n, W] rows.
        ids: uint8 [1, n, W] rows of class ids, 255 = ignore.
        finish: judges the label after its last row, raising DataError; gives the number of unknown pixels.
    """

    image: Rows
    ids: Rows
    finish: Callable[[], int]


@dataclass(frozen=True)
class Tile:
    """One tile of a data set.

    Attributes:
        id: unique within the data set and split.
        files: all files that decide its pixels.
        open: opens it; raises DataError naming the file.
        size: (height, width) after resampling.
    """

    id: str
    files: tuple[Path, ...]
    open: Callable[[], AbstractContextManager[OpenTile]]
    size: tuple[int, int]


@dataclass
class Survey:
    """Tiles of a data set.

    Attributes:
        train: tiles to train on.
        test: tiles to test on; never shares pixels with `train`.
        facts: plain JSON values for the manifest: variant found, tiles left out and why, native resolution.
        folder: against which file paths are named.
    """

    train: list[Tile]
    test: list[Tile]
    folder: Path
    facts: dict[str, Any] = field(default_factory=dict)


class TileDataset(ABC):
    """A segmentation data set: one domain of a federation. The constructor does no I/O.

    Attributes:
        root: the user's folder.
        folders: names of the attributes that hold folders.
    """

    root: str
    folders: tuple[str, ...] = ("root",)

    def below(self, base: str) -> TileDataset:
        """The same data set with relative folders taken from `base`."""
        moved = copy.copy(self)
        for name in self.folders:
            given = getattr(self, name)
            if given is not None:
                setattr(moved, name, str(Path(base).expanduser() / Path(given).expanduser()))
        return moved

    @property
    @abstractmethod
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes 0, 1, ..."""

    @property
    @abstractmethod
    def in_channels(self) -> int:
        """Bands of an image."""

    @property
    def band_names(self) -> tuple[str, ...]:
        """Names of the bands as `settings` states them, numbers from 1 otherwise."""
        named = self.settings().get("bands") or range(1, self.in_channels + 1)
        return tuple(name if isinstance(name, str) else f"band {name}" for name in named)

    @property
    def unscored(self) -> tuple[str, ...]:
        """Classes that are trained on but left out of the mean."""
        return ()

    @property
    def dtype(self) -> str:
        """Type of a pixel: `uint8` or `uint16`."""
        return "uint8"

    @property
    def scale(self) -> float:
        """Factor on stored pixels before normalisation."""
        return 1 / 255

    @property
    def published(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Customary mean and deviation after `scale`; None where there are none."""
        if self.in_channels != 3 or self.dtype != "uint8":
            return None
        return tuple(value / 255 for value in IMAGENET_MEAN), tuple(value / 255 for value in IMAGENET_STD)

    @property
    @abstractmethod
    def ground(self) -> str:
        """Names the terrain: tiles of the same id in data sets of the same ground show the same place."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Everything that decides a decoded value, as plain JSON values."""

    @abstractmethod
    def survey(self) -> Survey:
        """List the tiles, reading headers only.

        Raises:
            DataError: names the folder or file, and a remedy.
        """

    def prepare(self, cache: Path) -> None:  # noqa: B027  most data sets have nothing to do
        """Compute and keep what reading a tile needs. Rank 0 only."""


def by_position(tiles: Sequence[Tile]) -> tuple[list[Tile], list[Tile]]:
    """Cut each tile across its longer side: the first three quarters, and the last.

    For development on a handful of tiles. Both parts are of one scene, so scores are no benchmark.
    """
    first: list[Tile] = []
    last: list[Tile] = []
    for tile in tiles:
        height, width = tile.size
        if min(height, width) < 4:
            raise DataError(f"{tile.files[0]}: is {height} x {width}, too small to be split by position")
        if height >= width:
            cut = height * 3 // 4
            parts = (0, 0, cut, width), (cut, 0, height - cut, width)
        else:
            cut = width * 3 // 4
            parts = (0, 0, height, cut), (0, cut, height, width - cut)
        for name, box, kept in (("first", parts[0], first), ("last", parts[1], last)):
            kept.append(replace(tile, id=f"{tile.id}-{name}", open=_Windowed(tile, box), size=(box[2], box[3])))
    return first, last


class _Windowed:
    """Opens a rectangle of a tile. Its label is judged on the rows that were read."""

    def __init__(self, tile: Tile, box: tuple[int, int, int, int]) -> None:
        self.tile, self.box = tile, box

    def __call__(self) -> AbstractContextManager[OpenTile]:
        from contextlib import contextmanager

        @contextmanager
        def opened() -> Iterator[OpenTile]:
            with self.tile.open() as whole:
                yield OpenTile(Window(whole.image, *self.box), Window(whole.ids, *self.box), whole.finish)

        return opened()


def existing_folder(root: str | os.PathLike[str], what: str) -> Path:
    """The root as a path.

    Raises:
        DataError: missing, a file, an archive, or empty.
    """
    top = Path(root).expanduser()
    if top.is_file() and top.suffix.lower() in ARCHIVES:
        raise DataError(f"{top}: is still zipped; unpack it, then set root to the unpacked folder")
    if not top.exists():
        raise DataError(f"{top}: no such folder; set root to the {what} folder that you downloaded and unpacked")
    if not top.is_dir():
        raise DataError(f"{top}: is a file; set root to the {what} folder")
    if not entries(top):
        raise DataError(f"{top}: the folder is empty; set root to the {what} folder that you downloaded and unpacked")
    return top


def entries(folder: Path) -> list[Path]:
    """Sorted contents of a folder, without what systems and viewers leave behind."""
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder) if not is_junk(entry.name))
    except PermissionError:
        raise DataError(f"{folder}: no permission to read this folder; run chmod u+rx on it") from None


def walk(folder: Path, depth: int) -> Iterator[Path]:
    """Files of a folder and of its subfolders down to `depth` levels, each folder in sorted order."""
    found = entries(folder)
    yield from (path for path in found if path.is_file())
    if depth > 0:
        for path in found:
            if path.is_dir():
                yield from walk(path, depth - 1)


def nothing_found(top: Path, expected: str, depth: int) -> DataError:
    """The error of a folder without tiles: what was expected, what is there, archives that are still packed."""
    archives = [path for path in walk(top, depth) if path.suffix.lower() in ARCHIVES]
    if archives:
        return DataError(
            f"{archives[0]}: is still zipped; unpack it, then set root to the unpacked folder (expected {expected})"
        )
    names = [path.name for path in entries(top)]
    return DataError(f"{top}: expected {expected}, found: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}")


def synthetic_marker(folder: Path, levels: int = 3) -> Path | None:
    """`SYNTHETIC.json` in the folder or up to `levels` above it, if the sample is synthetic."""
    for place in (folder, *list(folder.resolve().parents)[:levels]):
        if (place / "SYNTHETIC.json").is_file():
            return place / "SYNTHETIC.json"
    return None


def synthetic_facts(folder: Path) -> dict[str, Any] | None:
    """Content of `SYNTHETIC.json`, for the manifest; None for real data."""
    marker = synthetic_marker(folder)
    return None if marker is None else dict(read_json(marker))


def numeric(name: str) -> tuple[int, ...]:
    """Sort key of names that hold numbers, such as 2_10."""
    return tuple(int(part) for part in re.findall(r"\d+", name))


def one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    """Check a setting.

    Raises:
        ConfigError: the value is not allowed.
    """
    choices = list(allowed)
    if value not in choices:
        raise ConfigError(f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}, got '{value}'")
