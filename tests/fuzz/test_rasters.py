"""Rasters with damage anywhere, and labels of any values: pixels of the promised shape, or one line."""

import io
import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from rasterio.io import MemoryFile

from fedrs_lightning.data.rasters.class_tables import LabelDecoder, Values
from fedrs_lightning.data.rasters.faults import missing_bytes
from fedrs_lightning.data.rasters.plain_tiff import first_pixels, plain_pixels
from fedrs_lightning.data.rasters.rows import open_rows
from fedrs_lightning.errors import FedrsError

from .effort import answer, tried


def tiff(**options):
    pixels = np.random.default_rng(0).integers(0, 200, (3, 20, 24))
    kind = options.pop("dtype", "uint8")
    with warnings.catch_warnings(), MemoryFile() as memory:
        warnings.simplefilter("ignore")
        with memory.open(driver="GTiff", count=3, width=24, height=20, dtype=kind, **options) as raster:
            raster.write(pixels.astype(kind))
        return memory.read()


def picture(mode, kind, **options):
    buffer, pixels = io.BytesIO(), np.random.default_rng(0).integers(0, 200, (20, 24, 4)).astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def whole():
    return {
        "plain.tif": tiff(),
        "deflate.tif": tiff(compress="deflate", nodata=7),
        "lzw.tif": tiff(compress="lzw", tiled=True, blockxsize=16, blockysize=16, dtype="uint16"),
        "float.tif": tiff(dtype="float32", nodata=float("nan")),
        "rgb.png": picture("RGB", "PNG"),
        "rgba.png": picture("RGBA", "PNG"),
        "palette.png": picture("P", "PNG"),
        "bit.png": picture("1", "PNG"),
        "deep.png": picture("I;16", "PNG"),
        "key.png": picture("L", "PNG", transparency=3),
        "rgb.jpg": picture("RGB", "JPEG"),
        "cmyk.jpg": picture("CMYK", "JPEG"),
    }


def looked_at(path):
    def look(numbers):
        with open_rows(path, numbers=numbers) as raster:
            rows = min(raster.height, 40)
            pixels = raster.rows(0, rows)
            assert pixels.shape == (raster.bands, rows, raster.width)
            assert raster.dtype in ("mixed", str(pixels.dtype))
            if raster.declares([0]):
                assert raster.nothing(0, rows, [0], every=False).shape == (rows, raster.width)

    for numbers in (False, True):
        answer(partial(look, numbers), path.name)


@tried()
@given(data=st.data())
def test_damage_anywhere(whole, tmp_path, data):
    name = data.draw(st.sampled_from(sorted(whole)))
    content = bytearray(whole[name])
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, min(len(content), data.draw(st.sampled_from([40, 400, 10**6]))) - 1))
        kind = data.draw(st.sampled_from(["byte", "cut", "word"]))
        if kind == "byte":
            content[place] = data.draw(st.integers(0, 255))
        elif kind == "word":
            content[place : place + 4] = data.draw(st.sampled_from([b"\xff" * 4, bytes(4), b"\0\0\xff\xff"]))
        elif place:
            del content[place:]
    path = tmp_path / data.draw(st.sampled_from([name, "a.tif", "a.png", "a.jpg"]))
    path.write_bytes(content)
    looked_at(path)
    assert missing_bytes(path) >= 0
    plain_pixels(path, 20)
    first_pixels(path, 20)


@tried()
@given(
    content=st.binary(max_size=200), start=st.sampled_from([b"", b"II*\0", b"MM\0*", b"\x89PNG\r\n\x1a\n", b"\xff\xd8"])
)
def test_any_bytes(tmp_path, content, start):
    for ending in (".tif", ".png", ".jpeg"):
        path = tmp_path / f"a{ending}"
        path.write_bytes(start + content)
        looked_at(path)


KINDS = st.sampled_from(["uint8", "uint16", "int16", "int32", "uint32"])
LABELS = KINDS.flatmap(lambda kind: arrays.arrays(kind, (1, 3, 4)))


@tried()
@given(
    pixels=LABELS,
    known=st.lists(st.integers(-(2**31), 2**32 - 1) | st.integers(0, 5), min_size=2, max_size=5, unique=True),
    gone=st.booleans(),
)
def test_any_label(tmp_path, pixels, known, gone):
    table = Values(tuple("abcde"[: len(known) - 1]), tuple(known[:-1]), (known[-1],))
    decoder = LabelDecoder(table, tmp_path / "a.tif")
    nothing = pixels[0] % 2 == 0 if gone else None
    ids = decoder(pixels, nothing)[0]
    unknown = 0
    for place in np.ndindex(3, 4):
        value = int(pixels[0][place])
        if nothing is not None and nothing[place]:
            assert ids[place] == 255
            continue
        unknown += value not in known
        assert ids[place] == (known.index(value) if value in known[:-1] else 255)
    assert decoder.unknown == unknown
    if unknown:
        with pytest.raises(FedrsError, match=f"such as {decoder.example};"):
            decoder.finish()
        assert int(decoder.example) not in known
    else:
        assert decoder.finish() == 0
