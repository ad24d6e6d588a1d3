from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrs_lightning.data.rasters.class_tables import ISPRS, LOVEDA, LabelDecoder, class_table, without
from fedrs_lightning.errors import ConfigError, DataError

TABLE = {
    (255, 255, 255): 0,
    (0, 0, 255): 1,
    (0, 255, 255): 2,
    (0, 255, 0): 3,
    (255, 255, 0): 4,
    (255, 0, 0): 5,
    (0, 0, 0): 255,
}
channel = st.sampled_from([0, 1, 7, 8, 9, 100, 246, 247, 248, 254, 255])


def column(colours):
    return np.asarray(colours, dtype=np.uint8).T[:, None]


@given(st.lists(st.tuples(channel, channel, channel), min_size=1, max_size=40))
def test_the_decoding_rule(colours):
    """Exact, else within 8 of every channel, else unknown: searched one pixel at a time."""
    wanted, unknown = [], 0
    for colour in colours:
        near = [
            label for known, label in TABLE.items() if max(abs(a - b) for a, b in zip(known, colour, strict=True)) <= 8
        ]
        wanted.append(near[0] if near else 255)
        unknown += not near
    ids, found = ISPRS.decode(column(colours))
    assert ids[0].tolist() == wanted
    assert found == unknown


def test_the_nearest_of_two_close_colours_wins():
    table = class_table({"a": [10, 10, 10], "b": [16, 10, 10]}, [])
    assert table.decode(column([(12, 10, 10), (14, 10, 10), (24, 10, 10), (25, 10, 10)]))[0].tolist() == [
        [0, 1, 1, 255]
    ]


def test_clutter_is_ignored_without_being_unknown():
    ids, unknown = without(ISPRS, "clutter").decode(column([(255, 0, 0), (255, 255, 0), (0, 0, 0)]))
    assert ids.tolist() == [[255, 4, 255]]
    assert unknown == 0
    with pytest.raises(ValueError, match="not the last class"):
        without(ISPRS, "car")


def test_loveda_values_are_shifted_and_wide_values_looked_up():
    ids, unknown = LOVEDA.decode(np.arange(9, dtype=np.uint8)[None, None])
    assert ids.tolist() == [[255, 0, 1, 2, 3, 4, 5, 6, 255]]
    assert unknown == 1
    table = class_table({"a": 300, "b": 7}, [0])
    ids, unknown = table.decode(np.asarray([[[300, 7, 0, 1]]], dtype=np.uint16))
    assert ids.tolist() == [[0, 1, 255, 255]]
    assert unknown == 1


@pytest.mark.parametrize(("strange", "fails"), [(1, False), (2, True)])
def test_more_than_one_percent_unknown_names_the_file(strange, fails):
    decoder = LabelDecoder(ISPRS, Path("somewhere/label.tif"))
    for part in range(2):  # counted over all ranges of a file
        pixels = np.full((3, 1, 50), 255, dtype=np.uint8)
        pixels[:, 0, : strange if part else 0] = 100
        decoder(pixels)
    if fails:
        with pytest.raises(
            DataError, match=r"somewhere/label\.tif: 2 of 100 pixels have colours outside the palette .* interchanged"
        ):
            decoder.finish()
    else:
        decoder.finish()
        assert decoder.unknown == 1


@pytest.mark.parametrize(
    ("classes", "ignored", "message"),
    [
        ({}, [], "must name 1 to 254 classes"),
        ({"a": 1, "b": [1, 2, 3]}, [], "all colours .* or all values"),
        ({"a": [1, 2]}, [], "three numbers of 0 to 255"),
        ({"a": [1, 2, 256]}, [], "three numbers of 0 to 255"),
        ({"a": 2**32}, [], "must be -2147483648 to 4294967295"),
        ({"a": 1, "b": 1}, [], "twice"),
        ({"a": 1}, [1], "twice"),
    ],
)
def test_class_tables_are_checked(classes, ignored, message):
    with pytest.raises(ConfigError, match=message):
        class_table(classes, ignored)
