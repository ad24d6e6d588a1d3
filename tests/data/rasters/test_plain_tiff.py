"""Band files are read directly where they are plain, and by GDAL otherwise: the same pixels."""

import numpy as np
import pytest
import rasterio

from fedrs_lightning.data.archives.bigearthnet import files as layout
from fedrs_lightning.data.rasters.plain_tiff import plain_pixels

FORMS = {
    "plain": {},
    "one strip": {"blockysize": 60},
    "a strip a row": {"blockysize": 1},
    "with nodata": {"nodata": 0},
    "deflate": {"compress": "deflate"},
    "tiled": {"tiled": True, "blockxsize": 16, "blockysize": 16},
    "big endian": {"ENDIANNESS": "BIG"},
    "bigtiff": {"BIGTIFF": "YES"},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_band_file_has_the_same_pixels(tmp_path, layouts, form):
    pixels = np.random.default_rng(0).integers(0, 65536, (1, 60, 60)).astype(np.uint16)
    path = layouts.tiff(tmp_path / "p_B05.tif", pixels, **FORMS[form])
    direct = plain_pixels(path, 60)
    assert (direct is None) == (form in ("deflate", "tiled", "big endian", "bigtiff"))
    assert direct is None or np.array_equal(direct, pixels[0])
    assert np.array_equal(layout.read_band(path, "B05"), pixels[0])
    assert layout.read_band(path, "B05").dtype == np.uint16
    assert plain_pixels(path, 120) is None
    content = path.read_bytes()
    for length in (0, 7, 100, len(content) - 1):
        path.write_bytes(content[:length])
        assert plain_pixels(path, 60) is None


def test_real_bands(data_root):
    paths = sorted((data_root / "bigearthnet_v2").rglob("*_B*.tif"))[:120]
    sizes = set()
    for path in paths:
        with rasterio.open(path) as raster:
            expected = raster.read(1)
        direct = plain_pixels(path, len(expected))
        assert direct is not None
        assert np.array_equal(direct, expected)
        sizes.add(len(expected))
    assert sizes == {20, 60, 120}
