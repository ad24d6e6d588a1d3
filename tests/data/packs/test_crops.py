import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrs_lightning.data.packs.crops import crop_index, owned, starts, stitch

sides, sizes = st.integers(1, 26), st.integers(1, 12)


@given(side=st.integers(1, 700), size=st.integers(1, 90), data=st.data())
def test_a_grid_covers_a_side_inside_it(side, size, data):
    overlap = data.draw(st.integers(0, size - 1))
    grid = starts(side, size, overlap)
    assert grid[0] == 0
    assert (np.diff(grid) > 0).all()
    assert (np.diff(grid) <= size - overlap).all()
    assert grid[-1] == max(0, side - size)


@settings(deadline=None)
@given(height=sides, width=sides, size=sizes, data=st.data())
def test_every_pixel_belongs_to_the_crop_with_the_nearest_centre(height, width, size, data):
    overlap = data.draw(st.integers(0, size - 1))
    index = crop_index([("tile", height, width)], size, overlap)
    owner, distance = np.full((height, width), -1), np.full((height, width), np.inf)
    rows, columns = np.mgrid[:height, :width]
    for crop in range(len(index)):  # plain search in the plane, in order of the crops
        inside = (rows >= index.row[crop]) & (rows < index.row[crop] + size)
        inside &= (columns >= index.column[crop]) & (columns < index.column[crop] + size)
        row = index.row[crop] + (min(size, height) - 1) / 2
        column = index.column[crop] + (min(size, width) - 1) / 2
        away = np.where(inside, (rows - row) ** 2 + (columns - column) ** 2, np.inf)
        owner[away < distance], distance = crop, np.minimum(distance, away)
    counted = np.zeros((height, width), int)
    for crop in range(len(index)):
        top, bottom, left, right = index.owned_box(crop)
        counted[top:bottom, left:right] += 1
        assert (owner[top:bottom, left:right] == crop).all()
    assert (counted == 1).all()  # a partition: nothing lost, nothing twice


@settings(deadline=None)
@given(height=sides, width=sides, size=sizes, data=st.data())
def test_stitching_takes_each_pixel_once_from_its_owner(height, width, size, data):
    overlap = data.draw(st.integers(0, size - 1))
    index = crop_index([("a", height, width), ("b", width, height)], size, overlap)
    predictions = np.broadcast_to(np.arange(len(index))[:, None, None], (len(index), size, size)).copy()
    tiles = stitch(predictions, index)
    assert {name: tile.shape for name, tile in tiles.items()} == {"a": (height, width), "b": (width, height)}
    sizes_ = np.bincount(np.concatenate([tile.ravel() for tile in tiles.values()]), minlength=len(index))
    for crop in range(len(index)):
        top, bottom, left, right = index.owned_box(crop)
        assert (tiles[index.tiles[index.tile[crop]]][top:bottom, left:right] == crop).all()
        assert sizes_[crop] == (bottom - top) * (right - left)


def test_ties_go_to_the_lower_crop_and_official_sizes_give_official_counts():
    assert owned(starts(6, 4, 2), 6, 4).tolist() == [0, 0, 0, 1, 1, 1]
    assert owned(starts(5, 4, 3), 5, 4).tolist() == [0, 0, 0, 1, 1]  # the middle pixel is as near to both
    assert len(crop_index([("2_10", 6000, 6000)], 512)) == 144
    assert len(crop_index([("0", 1024, 1024)], 512)) == 4


def test_wrong_predictions_and_overlaps_are_refused():
    index = crop_index([("a", 8, 8)], 4)
    with pytest.raises(ValueError, match=r"predictions must be \[4, 4, 4\], got \[3, 4, 4\]"):
        stitch(np.zeros((3, 4, 4)), index)
    with pytest.raises(ValueError, match="overlap must be in"):
        starts(8, 4, 4)
    part = stitch(np.full((1, 4, 4), 7), index, np.asarray([2]))["a"]
    assert (part[4:, :4] == 7).all()
    assert (part == 7).sum() == 16
    assert (part == 255).sum() == 48
