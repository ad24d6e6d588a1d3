"""A file that names other files or addresses makes nothing be read but itself."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from fedrs_lightning.data import OwnImages, OwnRasters
from fedrs_lightning.data.rasters.rows import open_rows, read_whole
from fedrs_lightning.errors import DataError

SECRET = 77


@pytest.fixture
def server(tmp_path, layouts):
    """A local server that would give a raster, and the paths that it was asked for."""
    content, asked = layouts.tiff(tmp_path / "served.tif", np.full((1, 8, 8), SECRET, np.uint8)).read_bytes(), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content if self.command == "GET" else b"")

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}", asked
    http.shutdown()
    thread.join()
    http.server_close()


def vrt(source):
    band = f'<SimpleSource><SourceFilename relativeToVRT="0">{source}</SourceFilename><SourceBand>1</SourceBand>'
    head = '<VRTDataset rasterXSize="8" rasterYSize="8"><VRTRasterBand dataType="Byte" band="1">'
    return f"{head}{band}</SimpleSource></VRTRasterBand></VRTDataset>"


def texts(secret, address):
    remote = f"/vsicurl/{address}/served.tif"
    wms = f'<GDAL_WMS><Service name="TMS"><ServerUrl>{address}/${{z}}</ServerUrl></Service></GDAL_WMS>'
    return {
        "vrt of a file": vrt(secret),
        "vrt of an address": vrt(remote),
        "vrt of a vrt": vrt(f"&lt;VRTDataset&gt;{remote}"),
        "wms": wms,
        "wcs": f"<WCS_GDAL><ServiceURL>{address}/?</ServiceURL><CoverageName>a</CoverageName></WCS_GDAL>",
        "tile index": f"<GDALTileIndexDataset><IndexDataset>{remote}</IndexDataset></GDALTileIndexDataset>",
        "stac": f'{{"type": "FeatureCollection", "stac_version": "1.0.0", "features": [], "links": "{address}"}}',
        "postscript": f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n({secret}) (r) file\nshowpage\n",
    }


@pytest.mark.parametrize("kind", list(texts("", "")))
@pytest.mark.parametrize("ending", [".tif", ".png", ".jpg"])
def test_a_list_of_other_files_is_refused_unread(tmp_path, server, layouts, kind, ending):
    address, asked = server
    secret = layouts.tiff(tmp_path / "secret.tif", np.full((1, 8, 8), SECRET, np.uint8))
    path = tmp_path / "own/a" / f"image{ending}"
    path.parent.mkdir(parents=True)
    path.write_text(texts(secret, address)[kind])
    with pytest.raises(DataError, match=rf"image\{ending}: (cannot be read as a GeoTIFF|not an image)"):
        read_whole(path)
    (tmp_path / "own/b").mkdir()
    report = OwnImages(str(tmp_path / "own"), classes=["a", "b"], in_channels=1).check(deep=True)
    assert report.failed
    assert asked == []


def test_the_server_would_have_been_asked(tmp_path, server):
    """That the tests above can fail: GDAL, left to itself, reads such a file."""
    import rasterio

    address, asked = server
    path = tmp_path / "image.tif"
    path.write_text(vrt(f"/vsicurl/{address}/served.tif"))
    with rasterio.open(path) as raster:
        assert raster.read(1).max() == SECRET
    assert asked


def test_files_beside_a_raster_are_not_looked_for(tmp_path, server, layouts):
    """Masks, statistics and overviews beside a file may be lists of other files too."""
    address, asked = server
    pixels = np.random.default_rng(0).integers(1, 4, (1, 40, 40)).astype(np.uint8)
    for kind in ("images", "labels"):
        path = layouts.tiff(tmp_path / "train" / kind / "x.tif", pixels)
        for ending in (".msk", ".ovr"):
            path.with_name(path.name + ending).write_text(vrt(f"/vsicurl/{address}/served.tif"))
        no_data = '<PAMDataset><PAMRasterBand band="1"><NoDataValue>2</NoDataValue></PAMRasterBand></PAMDataset>'
        path.with_name(path.name + ".aux.xml").write_text(no_data)
    with open_rows(tmp_path / "train/images/x.tif") as raster:
        assert not raster.declares([0])
        assert np.array_equal(raster.rows(0, 40), pixels)
    archive = OwnRasters(str(tmp_path), classes={"a": 1, "b": 2, "c": 3}, in_channels=1, split="by_position")
    report = archive.check(deep=True)
    assert not report.failed
    assert report.counts["b"] == np.count_nonzero(pixels == 2)
    assert asked == []


def test_a_header_that_promises_too_much_is_refused(tmp_path):
    import rasterio

    path = tmp_path / "wide.tif"
    options = {"driver": "GTiff", "count": 4, "dtype": "uint16", "SPARSE_OK": True, "BIGTIFF": "YES", "tiled": True}
    with rasterio.open(path, "w", width=200_000, height=500_000, blockxsize=256, blockysize=256, **options):
        pass
    assert path.stat().st_size < 2**26
    with pytest.raises(DataError, match=r"wide\.tif: 200000 x 500000 pixels of 4 bands are 100,000,000,000 pixels"):
        read_whole(path)
