"""Bit depth, colour model and declared no data are those of the file, whatever a library turns it into."""

import struct
import warnings
import zlib

import numpy as np
import pytest
import rasterio
from PIL import Image

from fedrs_lightning.data import IID, FederatedDataset, OwnImages, OwnRasters
from fedrs_lightning.data.check.rasters import image_facts
from fedrs_lightning.data.rasters.rows import open_rows, read_whole
from fedrs_lightning.errors import DataError

COLOURS = {1: 0, 3: 2, 2: 4, 4: 6}  # bands to PNG's colour type


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(path, rows, width, depth, colours, extra=b""):
    """A PNG of packed rows of bytes, by the standard and without a library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">IIBBBBB", width, len(rows), depth, colours, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    content = chunk(b"IHDR", head) + extra + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    return path


def png16(path, pixels, extra=b""):
    """[C, H, W] of uint16."""
    rows = [row.astype(">u2").tobytes() for row in pixels.transpose(1, 2, 0)]
    return png(path, rows, pixels.shape[2], 16, COLOURS[len(pixels)], extra)


def packed(path, numbers, depth, colours=0, extra=b""):
    """[H, W] of numbers below 2**depth, whose width fills whole bytes."""
    bits = np.unpackbits(numbers.astype(np.uint8)[..., None], axis=2)[..., 8 - depth :]
    rows = [row.tobytes() for row in np.packbits(bits.reshape(len(numbers), -1), axis=1)]
    return png(path, rows, numbers.shape[1], depth, colours, extra)


@pytest.mark.parametrize("bands", [1, 2, 3, 4])
def test_a_png_of_16_bits_keeps_them(tmp_path, bands):
    pixels = np.random.default_rng(bands).integers(0, 4000, (bands, 9, 7)).astype(np.uint16)
    with open_rows(png16(tmp_path / "a.png", pixels)) as raster:
        assert (raster.bands, raster.dtype) == (bands, "uint16")
        assert np.array_equal(raster.rows(0, 9), pixels)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_few_bits_are_class_numbers_or_stretched_brightnesses(tmp_path, depth, layouts):
    numbers = np.random.default_rng(depth).integers(0, 2**depth, (6, 16))
    stretched = numbers * 255 // (2**depth - 1)
    tiff = layouts.tiff(tmp_path / "a.tif", numbers[None].astype(np.uint8), nbits=depth)
    for path in (packed(tmp_path / "a.png", numbers, depth), tiff):
        assert np.array_equal(read_whole(path, numbers=True)[0], numbers)
        assert np.array_equal(read_whole(path)[0], stretched)
        assert read_whole(path).dtype == np.uint8
    colours = chunk(b"PLTE", bytes(range(3 * 2**depth)))
    palette = packed(tmp_path / "p.png", numbers, depth, 3, colours)
    assert np.array_equal(read_whole(palette, numbers=True)[0], numbers)


def own(root, **options):
    settings = {"classes": ["a", "b"], "in_channels": 3, "pixel_type": "uint16", "image_size": None}
    return OwnImages(str(root), **settings | options)


def test_own_images_of_16_bits_reach_the_network_whole(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 4000, (6, 3, 8, 8)).astype(np.uint16)
    for number, each in enumerate(pixels):
        png16(tmp_path / "own" / "ab"[number % 2] / f"{number}.png", each)
    data = FederatedDataset(own(tmp_path / "own"), IID(2), validation_fraction=0.0, train_fraction=0.8)
    data.prepare()
    source = data.federation(0).source
    found = {name: source.gather([place])["image"][0].numpy() for place, name in enumerate(source.sample_ids)}
    assert len(found) == 6
    for number, each in enumerate(pixels):
        assert np.array_equal(found[f"{'ab'[number % 2]}/{number}.png"], each)
    wrong = own(tmp_path / "own", pixel_type="uint8")
    with pytest.raises(DataError, match=r"pixels are uint16, not uint8; set pixel_type: uint16, or convert"):
        wrong.check_header(tmp_path / "own/a/0.png")


def coloured(path):
    with rasterio.open(path, "r+") as raster:
        raster.write_colormap(1, {number: (number, 0, 0, 255) for number in range(256)})


def test_numbers_that_are_no_brightnesses_are_refused(tmp_path, layouts):
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 255, (8, 8)).astype(np.uint8)
    palette = Image.fromarray(numbers, "P")
    palette.putpalette(list(range(256)) * 3)
    four = np.stack([numbers] * 4)
    files = {
        "palette.png": lambda path: palette.save(path),
        "palette.tif": lambda path: coloured(layouts.tiff(path, numbers[None], photometric="palette")),
        "inks.tif": lambda path: layouts.tiff(path, four, photometric="cmyk"),
        "negative.tif": lambda path: layouts.tiff(path, numbers[None], photometric="miniswhite"),
        "inks.jpg": lambda path: Image.fromarray(four.transpose(1, 2, 0), "CMYK").save(path),
        "float.tif": lambda path: layouts.tiff(path, numbers[None].astype(np.float32)),
    }
    said = {
        "palette.png": "numbers of a palette.*save it as RGB",
        "palette.tif": "numbers of a palette.*save it as RGB",
        "inks.tif": "CMYK inks.*convert it to RGB",
        "negative.tif": "is a negative .*0 as black",
        "inks.jpg": "is of mode CMYK; save it as grey or RGB",
        "float.tif": "pixels are float32, not uint8; convert it to an 8- or 16-bit integer type",
    }
    for name, write in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name)
        archive = own(tmp_path, in_channels=1, pixel_type="uint8", bands=[1])
        with pytest.raises(DataError, match=said[name]):
            archive.check_header(tmp_path / name)


def tiles(root, **options):
    settings = {"classes": {"field": 1, "forest": 2, "water": 3}, "in_channels": 3, "pixel_type": "uint16"}
    return OwnRasters(str(root), **settings | {"split": "by_position"} | options)


def statistics(archive):
    data = FederatedDataset(archive, IID(1), crop_size=32, normalise="federated", augment=False)
    data.prepare()
    federation = data.federation(0)
    train = np.concatenate([client.train for client in federation.clients])
    return federation.manifest["normalisation"]["of"]["all clients together"], federation, train


def with_mask(path, pixels, gone, layouts):
    layouts.tiff(path, pixels)
    with (
        warnings.catch_warnings(),
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
        rasterio.open(path, "r+") as raster,
    ):
        warnings.simplefilter("ignore")
        raster.write_mask(~gone)


@pytest.mark.parametrize("kind", ["value", "mask", "alpha", "png alpha", "png colour"])
def test_declared_no_data_is_neither_trained_on_nor_counted(tmp_path, layouts, kind):
    rng = np.random.default_rng(0)
    pixels = rng.integers(500, 3000, (3, 64, 64)).astype(np.uint16)
    gone = np.zeros((64, 64), bool)
    gone[:, :20] = True
    pixels[:, gone] = 65535
    path, alpha = tmp_path / "train/images/x.tif", np.where(gone, 0, 65535).astype(np.uint16)[None]
    if kind == "value":
        layouts.tiff(path, pixels, nodata=65535)
    elif kind == "mask":
        with_mask(path, pixels, gone, layouts)
    elif kind == "alpha":
        layouts.tiff(path, np.concatenate([pixels, alpha]), photometric="rgb", alpha="yes")
        with rasterio.open(path) as raster:
            assert raster.colorinterp[3].name == "alpha"
    elif kind == "png alpha":
        png16(path.with_suffix(".png"), np.concatenate([pixels, alpha]))
    else:
        png16(path.with_suffix(".png"), pixels, chunk(b"tRNS", b"\xff" * 6))
    labels = rng.integers(1, 4, (1, 64, 64)).astype(np.uint8)
    layouts.tiff(tmp_path / "train/labels/x.tif", labels)
    found, federation, train = statistics(tiles(tmp_path))
    valid = pixels[:, :48][:, ~gone[:48]].astype(np.float64)  # the first three quarters of the tile are trained on
    # The last row of crops is moved inward, so that it overlaps: rows 16 to 31 count twice.
    twice = np.concatenate([pixels[:, :32][:, ~gone[:32]], pixels[:, 16:48][:, ~gone[16:48]]], axis=1).astype(float)
    assert valid.max() < 3000
    assert np.allclose(found["mean"], twice.mean(axis=1))
    assert np.allclose(found["std"], twice.std(axis=1))
    batch = federation.source.gather(train)
    empty = batch["mask"].numpy() == 255
    assert np.count_nonzero(empty) == 2 * 32 * 20
    assert batch["image"].numpy().transpose(0, 2, 3, 1)[empty].max() == 0
    assert federation.manifest["clients"][0]["train"]["ignored_pixels"] == 2 * 32 * 20
    report = tiles(tmp_path).check(deep=True)
    assert not report.failed
    (finding,) = [each for each in report.findings if each.severity == "warning"]
    assert "declare pixels as no data (here 31.2 % of those looked at)" in finding.message


def test_a_band_that_is_used_is_no_mask(tmp_path, layouts):
    """GDAL calls the fourth of four bands alpha unless it is told otherwise: it may well be infrared."""
    pixels = np.random.default_rng(0).integers(0, 3, (4, 40, 40)).astype(np.uint8)
    layouts.tiff(tmp_path / "train/images/x.tif", pixels, photometric="rgb", alpha="yes")
    layouts.tiff(tmp_path / "train/labels/x.tif", np.ones((1, 40, 40), np.uint8))
    tile = tiles(tmp_path, in_channels=4, pixel_type="uint8").listing().train[0]
    with tile.open() as opened:
        assert opened.valid is None
        assert np.array_equal(opened.image.rows(0, 30), pixels[:, :30])


@pytest.mark.parametrize("size", [None, 8])
def test_declared_no_data_of_own_images_counts_in_no_statistics(tmp_path, layouts, size):
    rng, kept = np.random.default_rng(1), []
    for number in range(8):
        pixels = rng.integers(500, 3000, (3, 16, 16)).astype(np.uint16)
        pixels[:, :, : 2 * number] = 65535
        layouts.tiff(tmp_path / "ab"[number % 2] / f"{number}.tif", pixels, nodata=65535)
        kept.append(pixels[:, :, 2 * number :].reshape(3, -1))
    data = FederatedDataset(own(tmp_path, image_size=size), IID(1), train_fraction=1.0, normalise="federated")
    data.prepare()
    stored = data.federation(0).manifest["normalisation"]["of"]["all clients together"]
    valid = np.concatenate(kept, axis=1).astype(np.float64)
    if size is None:
        assert np.allclose(stored["mean"], valid.mean(axis=1))
        assert np.allclose(stored["std"], valid.std(axis=1))
    else:  # of means of 2 x 2 pixels, without a trace of what is beyond the edge
        assert np.allclose(stored["mean"], valid.mean(axis=1), atol=40)
        assert max(stored["std"]) < valid.std(axis=1).min()
    files = FederatedDataset(
        own(tmp_path, image_size=size), IID(1), train_fraction=1.0, normalise="federated", storage="files"
    )
    assert files.federation(0).manifest["normalisation"]["of"]["all clients together"] == stored
    (finding,) = own(tmp_path, image_size=size).check(deep=True).findings
    assert finding.severity == "warning"
    assert "7 of 8 declare pixels as no data" in finding.message


def labelled(root, layouts, labels, **options):
    layouts.tiff(root / "train/images/x.tif", np.ones((3, 64, 64), np.uint16))
    layouts.tiff(root / "train/labels/x.tif", labels, **options)


@pytest.mark.parametrize(("dtype", "nodata"), [("int16", -9999), ("uint8", 0), ("int32", -(2**31))])
def test_no_data_of_a_label_is_ignored(tmp_path, layouts, dtype, nodata):
    labels = np.random.default_rng(0).integers(1, 4, (1, 64, 64)).astype(dtype)
    labels[:, :, :20] = nodata
    labelled(tmp_path, layouts, labels, nodata=nodata)
    with tiles(tmp_path).listing().train[0].open() as opened:
        ids = opened.ids.rows(0, 48)[0]
        assert opened.finish() == 0
    assert np.array_equal(ids, np.where(labels[0, :48] == nodata, 255, labels[0, :48] - 1))
    labelled(tmp_path, layouts, labels)  # without the declaration, and named in the configuration
    with tiles(tmp_path, ignored=[nodata]).listing().train[0].open() as opened:
        assert np.array_equal(opened.ids.rows(0, 48)[0], ids)
        assert opened.finish() == 0
    with tiles(tmp_path).listing().train[0].open() as opened:
        opened.ids.rows(0, 48)
        with pytest.raises(DataError, match=rf"960 of 3072 pixels have values outside .*, such as {nodata}; complete"):
            opened.finish()


def test_a_class_that_a_label_declares_as_no_data_is_refused(tmp_path, layouts):
    labelled(tmp_path, layouts, np.ones((1, 64, 64), np.uint8), nodata=1)
    with pytest.raises(DataError, match=r"x\.tif: declares 1 as no data, but classes names it 'field'; remove"):
        tiles(tmp_path).listing()


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_label_of_another_type_is_told_a_remedy_that_works(tmp_path, layouts, dtype):
    labelled(tmp_path, layouts, np.ones((1, 64, 64), dtype))
    with pytest.raises(DataError, match=rf"1 band of {dtype}.*convert it to an 8- or 16-bit integer type"):
        tiles(tmp_path).listing()


def flat(path, side):
    """A grey PNG of one value, written row by row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    packer, row = zlib.compressobj(1), b"\0" + b"\1" * side
    body = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    content = chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    return path


def test_large_pictures_are_read_and_larger_ones_told_what_to_do(tmp_path, recwarn):
    with open_rows(flat(tmp_path / "a.png", 14000)) as raster:
        assert (raster.height, raster.width) == (14000, 14000)
        assert int(raster.rows(0, 14000)[0, 13990:].sum()) == 140000
    head = bytearray((tmp_path / "a.png").read_bytes())
    head[16:33] = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0) + struct.pack(
        ">I", zlib.crc32(b"IHDR" + struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0))
    )
    (tmp_path / "b.png").write_bytes(head)
    Image.new("RGB", (8, 8)).save(tmp_path / "c.jpg")
    jpeg = (tmp_path / "c.jpg").read_bytes()
    place = jpeg.index(b"\xff\xc0") + 5
    (tmp_path / "c.jpg").write_bytes(jpeg[:place] + struct.pack(">HH", 65000, 65000) + jpeg[place + 4 :])
    for name in ("b.png", "c.jpg"):
        message = rf"{name}: 6\d000 x 6\d000 pixels of 3 bands are 1\d\.\d GiB, .*save it as a GeoTIFF"
        with pytest.raises(DataError, match=message):
            read_whole(tmp_path / name)
    assert not [str(each.message) for each in recwarn if "bomb" in str(each.message)]
    folder = tmp_path / "own" / "a"
    folder.mkdir(parents=True)
    (tmp_path / "c.jpg").rename(folder / "c.jpg")
    archive = OwnImages(str(tmp_path / "own"), classes=["a"], in_channels=3, image_size=8)
    (finding,) = [each for each in archive.check(deep=True).findings if each.severity == "error"]
    assert "save it as a GeoTIFF" in finding.message
    with pytest.raises(DataError, match="save it as a GeoTIFF"):
        FederatedDataset(archive, IID(1), train_fraction=1.0).prepare()


def test_a_deep_export_of_an_archive_is_found(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 3000, (3, 32, 32)).astype(np.uint16)
    facts = image_facts(png16(tmp_path / "a.png", pixels), 3, deep=True)
    (finding,) = facts.findings
    assert finding.severity == "error"
    assert "a.png: holds uint16 pixels, a re-export; the delivered files are uint8" in finding.message


def test_a_few_unknown_values_are_named(tmp_path, layouts):
    labels = np.ones((1, 64, 64), np.uint8)
    labels[0, 3, 5:9] = 9
    labelled(tmp_path, layouts, labels)
    (finding,) = [each for each in tiles(tmp_path).check(deep=True).findings if "outside" in each.message]
    assert finding.severity == "warning"
    assert "x.tif: 4 of 3072 pixels have colours or values outside the class table, such as 9; they" in finding.message
