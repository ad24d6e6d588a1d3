"""Indexes and files of packs that somebody damaged: refused in one line, or as they were."""

import copy
import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedrs_lightning.data.packs.fields import Field
from fedrs_lightning.data.packs.images import ImagePack
from fedrs_lightning.data.packs.pack import Pack
from fedrs_lightning.data.packs.shards import damages
from fedrs_lightning.data.packs.source import PackedSource, Part
from fedrs_lightning.data.packs.tiles import CropPack
from fedrs_lightning.data.packs.verification import Verification

from .effort import answer, tried

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from(
        [0, 1, -1, 2**31, 2**63, 10**400, 1e308, "", "../../etc/passwd", "object", "float64", [], {}, [[]]]
    ),
    st.text(max_size=5),
    st.recursive(st.integers(-3, 3), lambda inner: st.lists(inner, max_size=3), max_leaves=6),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@pytest.fixture(scope="module")
def packs(tmp_path_factory):
    """A pack of images and one of crops, with what each holds."""
    folder, rng = tmp_path_factory.mktemp("fuzz"), np.random.default_rng(0)
    pixels = rng.integers(0, 255, (9, 2, 4, 4)).astype(np.uint8)
    fields = {"image": Field((2, 4, 4), "uint8")}
    ids = [f"{number}" for number in range(9)]
    images = ImagePack("images", ids, fields, {}, lambda: "", lambda number: {"image": pixels[number]}).pack(folder)
    import rasterio

    from fedrs_lightning.data.rasters.class_tables import Values
    from fedrs_lightning.data.rasters.tiles import Reading

    paths = [folder / f"{kind}.tif" for kind in ("image", "label")]
    for path, dtype in zip(paths, ("uint8", "uint8"), strict=True):
        options = {"driver": "GTiff", "count": 1, "width": 10, "height": 7, "dtype": dtype}
        with rasterio.open(path, "w", **options) as raster:
            raster.write(rng.integers(0, 2, (1, 7, 10)).astype(dtype))
    tile = Reading((0,), Values(("a", "b"), (0, 1))).tile("tile", *paths)
    crops = CropPack("crops", [tile], folder, "train", 4, 0, 1, "uint8", 2, {}).pack(folder)
    return [(each, contents(each)) for each in (images, crops)]


def contents(folder):
    source = PackedSource([Part(Pack(folder))], {})
    batch = source.gather(torch.arange(len(source)))
    return {name: values.numpy().copy() for name, values in batch.items()}


def places(value, path=()):
    """Paths to everything in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def refused_or_right(folder, expected):
    def read():
        found = contents(folder)
        Verification([folder], "always").finish()
        assert damages(folder, 1) == []
        return found

    found = answer(read, folder)
    if found is None:
        return
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


@tried()
@given(data=st.data())
def test_any_field_of_an_index(packs, tmp_path_factory, data):
    folder, expected = data.draw(st.sampled_from(packs))
    copied = shutil.copytree(folder, tmp_path_factory.mktemp("index") / "pack")
    index = json.loads((copied / "index.json").read_text())
    index.pop("settings")
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(sorted(places(index), key=str)))
        content, inner = copy.deepcopy(index), None
        inner = content
        for key in path[:-1]:
            inner = inner[key]
        if not path:
            content = data.draw(ODD)
        elif data.draw(st.booleans()) and isinstance(inner, dict):
            del inner[path[-1]]
        else:
            inner[path[-1]] = data.draw(ODD)
        (copied / "index.json").write_text(json.dumps(content))
        refused_or_right(copied, expected)
    shutil.rmtree(copied.parent)


@tried()
@given(data=st.data())
def test_any_byte_of_any_file(packs, tmp_path_factory, data):
    folder, expected = data.draw(st.sampled_from(packs))
    copied = shutil.copytree(folder, tmp_path_factory.mktemp("bytes") / "pack")
    path = data.draw(st.sampled_from(sorted(copied.iterdir())))
    content = bytearray(path.read_bytes())
    kind = data.draw(st.sampled_from(["flip", "cut", "longer", "gone", "other"]))
    place = data.draw(st.integers(0, len(content) - 1))
    if kind == "flip":
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del content[place:]
    elif kind == "longer":
        content[place:place] = data.draw(st.binary(min_size=1, max_size=8))
    elif kind == "other":
        content = bytearray(
            data.draw(st.sampled_from([b"[" * 10**5, b"{" * 9, b"\xff\xfe", b"1" * 5000, b"\x93NUMPY"]))
        )
    path.write_bytes(content)
    if kind == "gone":
        path.unlink()
    refused_or_right(copied, expected)
    shutil.rmtree(copied.parent)
