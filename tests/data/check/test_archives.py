"""The generic check on tiles of a class of one's own, and what all checks share."""

import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedrs_lightning.data import TileArchive, TileListing
from fedrs_lightning.data.check.report import Report, class_counts, drawn, in_threads
from fedrs_lightning.data.rasters.tiles import OpenTile, Tile
from fedrs_lightning.errors import ConfigError


@dataclass
class Array:
    """Rows of an array [C, H, W]."""

    values: np.ndarray

    def __post_init__(self):
        self.bands, self.height, self.width = self.values.shape
        self.dtype = str(self.values.dtype)

    def rows(self, start, stop):
        return self.values[:, start:stop]


class Fields(TileArchive):
    """Three tiles in memory."""

    class_names, band_names = ("field", "water"), ("red", "green")

    def __init__(self, test=("c",), dtype=np.uint8):
        rng = np.random.default_rng(0)
        self.root, self.test = "nowhere", test
        self.images = {name: rng.integers(0, 255, (2, 300, 8)).astype(dtype) for name in "abc"}
        self.ids = {name: rng.choice([0, 1, 255], (1, 300, 8)).astype(np.uint8) for name in "abc"}

    def listing(self):
        tiles = {name: Tile(name, (Path(f"{name}.x"),), lambda name=name: self.open(name), (300, 8)) for name in "abc"}
        return TileListing(Path(), [tiles["a"], tiles["b"]], [tiles[name] for name in self.test])

    @contextmanager
    def open(self, name):
        yield OpenTile(Array(self.images[name]), Array(self.ids[name]), lambda: 0)


def errors(report):
    return [finding.message for finding in report.findings if finding.severity == "error"]


def test_tiles_are_read_and_their_classes_counted():
    archive = Fields()
    assert not errors(archive.check())
    report = archive.check(deep=True)
    assert not report.findings
    every = np.concatenate([ids.ravel() for ids in archive.ids.values()])
    assert report.counts == {
        "field": (every == 0).sum(),
        "water": (every == 1).sum(),
        "none of them": (every == 255).sum(),
    }
    assert archive.check(sample=2).checked == 2


def test_a_tile_in_both_splits_and_equal_ones():
    (message,) = errors(Fields(test=("b",)).check())[:1]
    assert message == "b.x: is in training and test data; a tile may be in one of them only"
    archive = Fields()
    archive.images["c"][:] = archive.images["a"]
    for deep in (False, True):
        (message,) = errors(archive.check(deep))
        assert re.fullmatch(r"c\.x: the same content as a\.x, in train and test data; remove all but one, .*", message)
    archive.images["c"][0, 299, 7] ^= 1  # beyond the strip of the header check
    assert not errors(archive.check(deep=True))
    archive.images["a"][:] = archive.images["c"][:] = 7  # plain tiles may be equal
    assert not errors(archive.check(deep=True))


def test_bands_and_type_are_those_that_the_class_names():
    found = errors(Fields(dtype=np.uint16).check())
    assert len(found) == 3
    assert found[0] == "a.x: is read as 2 bands of uint16, but Fields names 2 bands of uint8; correct the class"


def test_random_parts_keep_the_order():
    part = drawn(range(100), 10, 3)
    assert part == sorted(part) == drawn(range(100), 10, 3) != drawn(range(100), 10, 4)
    assert len(set(part)) == 10
    assert drawn(range(5), 9, 0) == drawn(range(5), None, 0) == list(range(5))
    with pytest.raises(ConfigError, match="--sample must be at least 1, got 0"):
        drawn(range(5), 0, 0)


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_threads_keep_the_order(count):
    assert list(in_threads(lambda number: number**2, range(count))) == [(each, each**2) for each in range(count)]


def test_counts_of_owners_and_splits():
    report = Report("Own", "here")
    splits, owners = np.asarray(["test", "train", "train", ""]), np.asarray(["b", "a", "b", "b"])
    report.count(("x", "y"), np.asarray([0, 1, 1, 1]), splits, owners)
    assert report.counts == {"x": 1, "y": 3}
    assert report.clients == {"a train": [0, 1], "b train": [0, 1], "b test": [1, 0], "b": [0, 1]}
    assert class_counts(np.asarray([[1, 1], [0, 1]], np.float32), 2) == [1, 2]
