"""Class tables: which colour or value of a label raster means which class, and the one rule that decodes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedrs_lightning.errors import ConfigError, DataError

IGNORE = 255
TOLERANCE = 8  # grey levels a channel; the known stray colour (252, 255, 0) is 3 away from the car's
MOST_UNKNOWN = 0.01  # share of a file's pixels
LOWEST, HIGHEST = -(2**31), 2**32 - 1  # of a label's values: those of int32 and uint32


@dataclass(frozen=True)
class Palette:
    """Colours of a label raster.

    Attributes:
        names: of the classes 0, 1, ...
        colours: (red, green, blue) of each class.
        ignored: colours that mean 255 without being counted as unknown.
    """

    names: tuple[str, ...]
    colours: tuple[tuple[int, int, int], ...]
    ignored: tuple[tuple[int, int, int], ...] = ()

    def decode(self, pixels: np.ndarray) -> tuple[np.ndarray, int]:
        """Ids of colours, and how many pixels had none.

        An exact colour gives its id; else the nearest one, where every channel differs by at most 8; else 255.

        Args:
            pixels: uint8 [3, h, w].

        Returns:
            ids uint8 [h, w], and the number of pixels of unknown colour.
        """
        labels = [*range(len(self.colours)), *[IGNORE] * len(self.ignored)]
        wanted = list(zip((*self.colours, *self.ignored), labels, strict=True))
        code = (pixels[0].astype(np.uint32) << 16) | (pixels[1].astype(np.uint32) << 8) | pixels[2]
        ids, open_ = np.full(code.shape, IGNORE, dtype=np.uint8), np.ones(code.shape, dtype=bool)
        for (red, green, blue), label in wanted:
            same = code == (red << 16 | green << 8 | blue)
            ids[same] = label
            open_ &= ~same
        if not open_.any():
            return ids, 0
        stray = pixels[:, open_].astype(np.int16)  # [3, U]
        best = np.full(stray.shape[1], TOLERANCE + 1, dtype=np.int16)
        nearest = np.full(stray.shape[1], IGNORE, dtype=np.uint8)
        for colour, label in wanted:
            distance = np.abs(stray - np.asarray(colour, dtype=np.int16)[:, None]).max(axis=0)
            closer = distance < best
            best[closer], nearest[closer] = distance[closer], label
        ids[open_] = nearest
        return ids, int(np.count_nonzero(best > TOLERANCE))


@dataclass(frozen=True)
class Values:
    """Numbers of a label raster.

    Attributes:
        names: of the classes 0, 1, ...
        values: number of each class.
        ignored: numbers that mean 255 without being counted as unknown.
    """

    names: tuple[str, ...]
    values: tuple[int, ...]
    ignored: tuple[int, ...] = ()

    @property
    def span(self) -> str:
        """The numbers that a label may hold, 255 aside, such as `0 to 7`."""
        known = sorted({*self.values, *self.ignored} - {IGNORE})
        return f"{known[0]} to {known[-1]}"

    def decode(self, pixels: np.ndarray) -> tuple[np.ndarray, int]:
        """Ids of numbers, and how many pixels had none; as `Palette.decode`, but exact.

        Args:
            pixels: integers [1, h, w].
        """
        if pixels.dtype == np.uint8:
            table, known = np.full(256, IGNORE, dtype=np.uint8), np.zeros(256, dtype=bool)
            for label, value in enumerate((*self.values, *self.ignored)):
                if 0 <= value < 256:
                    table[value], known[value] = label if label < len(self.values) else IGNORE, True
            return table[pixels[0]], int(np.count_nonzero(~known[pixels[0]]))
        ids, unknown = np.full(pixels.shape[1:], IGNORE, dtype=np.uint8), ~np.isin(pixels[0], self.ignored)
        for label, value in enumerate(self.values):
            same = pixels[0] == value
            ids[same] = label
            unknown &= ~same
        return ids, int(np.count_nonzero(unknown))


ClassTable = Palette | Values
Table = TypeVar("Table", Palette, Values)

ISPRS = Palette(
    names=("impervious surfaces", "building", "low vegetation", "tree", "car", "clutter"),
    colours=((255, 255, 255), (0, 0, 255), (0, 255, 255), (0, 255, 0), (255, 255, 0), (255, 0, 0)),
    ignored=((0, 0, 0),),
)
"""Potsdam and Vaihingen; black is the eroded boundary."""

ISPRS_CONVERTED = Values(ISPRS.names, (1, 2, 3, 4, 5, 6), (0, IGNORE))
"""Index PNGs of MMSegmentation's converters: 0 is the boundary, not impervious surfaces."""

_LAND = ("background", "building", "road", "water", "barren", "forest", "agriculture")
LOVEDA = Values(_LAND, (1, 2, 3, 4, 5, 6, 7), (0,))
"""0 is no-data; background is a scored class."""

LOVEDA_SHIFTED = Values(LOVEDA.names, (0, 1, 2, 3, 4, 5, 6), (IGNORE,))
"""Masks that somebody already shifted by one."""

LOVEDA_COLOURS = (
    *((255, 255, 255), (255, 0, 0), (255, 255, 0), (0, 0, 255)),
    *((159, 129, 183), (0, 255, 0), (255, 195, 128)),
)
"""For display only."""


def without(table: Table, name: str) -> Table:
    """The table with the last class ignored.

    Raises:
        ValueError: `name` is not the last class, so that ids would move.
    """
    if table.names[-1] != name:
        raise ValueError(f"{name} is not the last class of {table.names}")
    key, codes = ("colours", table.colours) if isinstance(table, Palette) else ("values", table.values)
    shorter: Any = {"names": table.names[:-1], key: codes[:-1], "ignored": (*table.ignored, codes[-1])}
    return replace(table, **shorter)


def class_table(classes: Mapping[str, int | Sequence[int]], ignored: Sequence[int | Sequence[int]]) -> ClassTable:
    """A table from a config: class name to a colour (three numbers) or a value.

    Raises:
        ConfigError: empty, colours and values mixed, out of range, or one meaning two classes.
    """
    entries = [*classes.values(), *ignored]
    if not classes or len(classes) > IGNORE - 1:
        raise ConfigError(f"classes must name 1 to {IGNORE - 1} classes, got {len(classes)}")
    colours = [tuple(int(part) for part in entry) for entry in entries if not isinstance(entry, int)]
    numbers = [entry for entry in entries if isinstance(entry, int)]
    if colours and numbers:
        raise ConfigError("classes and ignored must be all colours [red, green, blue] or all values, not both")
    if any(len(colour) != 3 or not all(0 <= part <= 255 for part in colour) for colour in colours):
        raise ConfigError("a colour of classes or ignored must be three numbers of 0 to 255")
    if any(not LOWEST <= number <= HIGHEST for number in numbers):
        raise ConfigError(f"a value of classes or ignored must be {LOWEST} to {HIGHEST}")
    if len(set(colours)) + len(set(numbers)) != len(entries):
        raise ConfigError("classes and ignored name a colour or value twice")
    names, count = tuple(classes), len(classes)
    if numbers:
        return Values(names, tuple(numbers[:count]), tuple(numbers[count:]))
    triples = [(colour[0], colour[1], colour[2]) for colour in colours]
    return Palette(names, tuple(triples[:count]), tuple(triples[count:]))


def unknown_example(table: ClassTable, pixels: np.ndarray) -> str:
    """The most frequent colour or value of pixels [C, h, w] that a table does not know, in words."""
    found, counts = np.unique(pixels.reshape(len(pixels), -1), axis=1, return_counts=True)
    for place in np.argsort(-counts, kind="stable"):
        if table.decode(found[:, place, None, None])[1]:
            own = found[:, place].tolist()
            return str(tuple(own)) if len(own) > 1 else str(own[0])
    raise ValueError("the table knows all of them")


class LabelDecoder:
    """Decodes one label file range by range, and counts what it did not know.

    Args:
        table: what colours or values mean.
        path: for the error.
        hint: what to do about too many unknown pixels in this file.
        strict: what the file holds, for the error, where a single unknown pixel is one too many.
    """

    def __init__(self, table: ClassTable, path: Path, hint: str = "", strict: str = "") -> None:
        self.table, self.path, self.strict = table, path, strict
        self.hint = hint or "is it an image and no label, or are image and label interchanged?"
        self.unknown = self.pixels = 0
        self.example = ""

    def __call__(self, pixels: np.ndarray, nothing: np.ndarray | None = None) -> np.ndarray:
        """Ids uint8 [1, h, w] of [3, h, w] colours or [1, h, w] values; `nothing` bool [h, w] is no data, so 255."""
        if nothing is not None and nothing.any():
            table = self.table
            known = table.colours[0] if isinstance(table, Palette) else table.values[:1]
            pixels = np.where(nothing, np.asarray(known)[:, None, None], pixels.astype(np.int64))
            pixels = pixels.astype(np.uint8) if isinstance(table, Palette) else pixels
        ids, unknown = self.table.decode(pixels)
        if unknown and not self.example:
            self.example = unknown_example(self.table, pixels)
        if nothing is not None:
            ids[nothing] = IGNORE
        self.unknown += unknown
        self.pixels += ids.size
        return ids[None]

    def finish(self) -> int:
        """Judge the file, after its last range; gives the number of unknown pixels.

        Raises:
            DataError: more than 1 % of the pixels were unknown, or any where the file is read strictly.
        """
        if self.unknown > (0 if self.strict else MOST_UNKNOWN * self.pixels):
            outside = (
                "colours outside the palette" if isinstance(self.table, Palette) else "values outside the class table"
            )
            what = self.strict or f"{outside} (more than 1 %)"
            raise DataError(
                f"{self.path}: {self.unknown} of {self.pixels} pixels have {what}, such as {self.example}; {self.hint}"
            )
        return self.unknown
