import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedrs_lightning.data.rasters.rows import Bands, Buffered, Mosaic, Resampled, Window, open_rows, read_whole
from fedrs_lightning.errors import DataError


class Array:
    """Rows of an array, counting how often each is read."""

    def __init__(self, pixels):
        self.pixels, (self.bands, self.height, self.width), self.dtype = pixels, pixels.shape, str(pixels.dtype)
        self.reads = np.zeros(self.height, int)

    def rows(self, start, stop):
        self.reads[start:stop] += 1
        return self.pixels[:, start:stop]


def noise(bands, height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (bands, height, width)).astype(np.uint8)


@given(starts=st.lists(st.integers(0, 30), min_size=1, max_size=8), size=st.integers(1, 10))
def test_overlapping_ranges_read_each_row_once(starts, size):
    source = Array(noise(2, 40, 3))
    buffered = Buffered(source)
    for start in sorted(starts):
        assert np.array_equal(buffered.rows(start, start + size), source.pixels[:, start : start + size])
    assert source.reads.max() == 1
    if min(starts) > 0:
        with pytest.raises(ValueError, match="asked for after"):
            buffered.rows(min(starts) - 1 if max(starts) == min(starts) else 0, 1)


@settings(deadline=None, max_examples=40)
@given(height=st.integers(5, 40), width=st.integers(5, 40), strip=st.integers(1, 30))
def test_strips_of_a_resampled_raster_join_without_a_seam(height, width, strip):
    pixels = noise(3, height, width)
    size = (round(height * 1.8), round(width * 1.8))
    whole = Resampled(Array(pixels), *size, nearest=False).rows(0, size[0])
    source = Array(pixels)
    smooth, sharp = Resampled(source, *size, nearest=False), Resampled(Array(pixels), *size, nearest=True)
    ranges = [(start, min(start + strip, size[0])) for start in range(0, size[0], strip)]
    joined = np.concatenate([smooth.rows(*span) for span in ranges], axis=1)
    assert np.array_equal(joined, whole)
    assert source.reads.max() == 1
    nearest = np.concatenate([sharp.rows(*span) for span in ranges], axis=1)
    row = np.floor((np.arange(size[0]) + 0.5) * height / size[0]).astype(int)
    column = np.floor((np.arange(size[1]) + 0.5) * width / size[1]).astype(int)
    assert np.array_equal(nearest, pixels[:, row][:, :, column])


def test_bicubic_is_that_of_pillow():
    smooth = np.kron(noise(1, 9, 8)[0], np.ones((6, 6))).astype(np.uint8)  # Pillow's own edge rule differs
    height, width = round(54 * 1.8), round(48 * 1.8)
    pillow = np.asarray(Image.fromarray(smooth.astype(np.float32)).resize((width, height), Image.Resampling.BICUBIC))
    ours = Resampled(Array(smooth[None]), height, width, nearest=False).rows(0, height)[0]
    inner = (slice(4, -4), slice(4, -4))
    assert np.abs(ours[inner] - np.clip(pillow, 0, 255)[inner]).max() <= 0.51


def test_bicubic_overshoot_is_clipped():
    pixels = np.zeros((1, 20, 20), np.uint8)
    pixels[:, :, 10:] = 255
    smooth = Resampled(Array(pixels), 36, 36, nearest=False).rows(0, 36)
    assert smooth.min() == 0
    assert smooth.max() == 255
    assert 0 < smooth[0, 0, 17] < 255
    with pytest.raises(ValueError, match="for uint8"):
        Resampled(Array(pixels.astype(np.uint16)), 36, 36, nearest=False)


def test_windows_and_bands():
    pixels = noise(4, 12, 10)
    window = Window(Bands(Array(pixels), (3, 0)), 2, 1, 8, 6)
    assert np.array_equal(window.rows(1, 5), pixels[[3, 0], 3:7, 1:7])


def test_a_mosaic_joins_pieces_and_reports_a_hole():
    pixels = noise(1, 8, 12)
    boxes = [(0, 0, 5, 7), (0, 5, 5, 7), (3, 0, 5, 7), (3, 5, 5, 7)]
    pieces = [(*box, lambda box=box: pixels[:, box[0] : box[0] + box[2], box[1] : box[1] + box[3]]) for box in boxes]
    assert np.array_equal(Mosaic(pieces, 1, "uint8", "tile").rows(1, 8), pixels[:, 1:8])
    with pytest.raises(DataError, match="tile 2_10: no piece covers row 5, column 7"):
        Mosaic(pieces[:3], 1, "uint8", "tile 2_10").rows(4, 8)


def test_kinds_of_files(tmp_path, layouts):
    wide = np.random.default_rng(0).integers(0, 65536, (5, 9, 7)).astype(np.uint16)
    assert np.array_equal(read_whole(layouts.tiff(tmp_path / "a.tif", wide)), wide)
    palette = Image.fromarray(noise(1, 6, 5)[0] % 8).convert("P")
    palette.putdata((noise(1, 6, 5)[0] % 8).ravel().tolist())
    palette.putpalette([200, 10, 10] * 256)
    palette.save(tmp_path / "p.png")
    assert np.array_equal(read_whole(tmp_path / "p.png")[0], noise(1, 6, 5)[0] % 8)  # indices, not colours
    Image.fromarray(noise(4, 6, 5).transpose(1, 2, 0)).save(tmp_path / "rgba.png")
    assert np.array_equal(read_whole(tmp_path / "rgba.png"), noise(4, 6, 5))


def test_broken_files_are_named_with_a_remedy(tmp_path, layouts):
    path = layouts.tiff(tmp_path / "a.tif", noise(3, 64, 64), compress="lzw")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(DataError, match=r"a\.tif: cannot be .*from the archive"):
        read_whole(path)
    path = layouts.tiff(tmp_path / "plain.tif", noise(3, 64, 64))
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(DataError, match=r"plain\.tif: cannot be .*from the archive"):
        read_whole(path)
    Image.fromarray(noise(3, 64, 64).transpose(1, 2, 0)).save(tmp_path / "b.png")
    (tmp_path / "b.png").write_bytes((tmp_path / "b.png").read_bytes()[:3000])
    with pytest.raises(DataError, match=r"b\.png: cannot be decoded .*from the archive"):
        read_whole(tmp_path / "b.png")
    (tmp_path / "c.png").write_text("no image")
    with pytest.raises(DataError, match=r"c\.png: not an image"):
        read_whole(tmp_path / "c.png")
    with pytest.raises(DataError, match=r"d\.png: no such file"):
        read_whole(tmp_path / "d.png")
    with pytest.raises(DataError, match=r"e\.jp2: rasters must be"), open_rows(tmp_path / "e.jp2"):
        pass
    Image.fromarray(noise(4, 6, 5).transpose(1, 2, 0), "CMYK").save(tmp_path / "f.jpg")
    with pytest.raises(DataError, match=r"f\.jpg: is of mode CMYK; save it as grey or RGB"):
        read_whole(tmp_path / "f.jpg")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_without_permission(tmp_path, layouts):
    path = layouts.tiff(tmp_path / "a.tif", noise(3, 8, 8))
    path.chmod(0)
    with pytest.raises(DataError, match=r"a\.tif: no permission to read it; run chmod u\+r on it"):
        read_whole(path)
