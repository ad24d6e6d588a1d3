import numpy as np
import pytest
import torch

from fedrs_lightning.data.archives.isprs.potsdam import Potsdam
from fedrs_lightning.data.archives.isprs.vaihingen import Vaihingen
from fedrs_lightning.data.packs.crops import stitch
from fedrs_lightning.data.packs.pack import Pack
from fedrs_lightning.data.packs.source import PackedSource, Part
from fedrs_lightning.data.packs.tiles import CropPack
from fedrs_lightning.data.rasters.rows import read_whole
from fedrs_lightning.errors import DataError

AREAS, SIZES = ("1", "11", "2"), ((61, 83), (20, 37), (45, 52))


@pytest.fixture
def root(tmp_path, layouts):
    layouts.vaihingen(tmp_path / "V", AREAS, SIZES)
    return tmp_path / "V"


def spec_of(root, role="train", size=32, overlap=0, gsd="native"):
    dataset = Vaihingen(str(root), gsd=gsd, labels_train="full")
    listing = dataset.listing()
    return CropPack("v", listing.train, listing.folder, role, size, overlap, 3, "uint8", 5, dataset.settings())


def whole(tile):
    with tile.open() as opened:
        return opened.image.rows(0, tile.size[0]), opened.ids.rows(0, tile.size[0])[0]


@pytest.mark.parametrize("gsd", ["native", "5cm"])
def test_training_crops_hold_the_tile_and_padding(root, cache, gsd):
    spec = spec_of(root, gsd=gsd)
    pack = Pack(spec.pack(cache))
    assert pack.crops.tiles == ("1", "11")
    for crop in range(len(pack)):
        image, ids = whole(spec.tiles[pack.crops.tile[crop]])
        row, column = pack.crops.row[crop], pack.crops.column[crop]
        part, mask = image[:, row : row + 32, column : column + 32], ids[row : row + 32, column : column + 32]
        height, width = mask.shape
        assert np.array_equal(pack.mapped["image"].array[crop, :, :height, :width], part)
        assert np.array_equal(pack.mapped["mask"].array[crop, :height, :width], mask)
        assert not pack.mapped["image"].array[crop, :, height:].any()
        assert (pack.mapped["mask"].array[crop, height:] == 255).all()
        assert (pack.mapped["mask"].array[crop, :, width:] == 255).all()
        assert np.array_equal(
            pack.tables["image.moments"][crop], [part.astype(int).sum((1, 2)), (part.astype(int) ** 2).sum((1, 2))]
        )
        assert pack.tables["pixels"][crop] == height * width
        assert np.array_equal(
            pack.tables["counts"][crop],
            np.bincount(pack.mapped["mask"].array[crop].ravel(), minlength=256)[[0, 1, 2, 3, 4, 255]],
        )


@pytest.mark.parametrize("overlap", [0, 12])
def test_test_crops_hold_every_labelled_pixel_once(root, cache, overlap):
    """Counts of all crops are those of the tiles, and masks put together are the labels."""
    spec = spec_of(root, "test", overlap=overlap)
    pack = Pack(spec.pack(cache))
    together = stitch(pack.mapped["mask"].array, pack.crops)
    for tile in spec.tiles:
        assert np.array_equal(together[tile.id], whole(tile)[1])
    labels = np.concatenate([whole(tile)[1].ravel() for tile in spec.tiles])
    assert np.array_equal(pack.tables["counts"][:, :5].sum(axis=0), np.bincount(labels, minlength=256)[:5])
    assert np.array_equal(stitch(pack.mapped["image"].array[:, 0], pack.crops)["1"], whole(spec.tiles[0])[0][0])


def test_packs_are_kept_and_made_again_when_something_changes(root, cache):
    first = spec_of(root).pack(cache)
    assert spec_of(root).pack(cache) == first
    others = {spec.folder(cache) for spec in (spec_of(root, size=16), spec_of(root, "test"), spec_of(root, overlap=4))}
    assert len(others | {first}) == 4
    assert Pack(spec_of(root).pack(cache / "again")).digest == Pack(first).digest
    path = root / "top/top_mosaic_09cm_area1.tif"
    path.touch()
    assert spec_of(root).folder(cache) != first


def test_a_faulty_tile_leaves_no_pack(root, cache):
    path = root / "top_mosaic_09cm_area11.tif"
    pixels = read_whole(path)
    pixels[:, :, 30:] = 77
    import rasterio

    with rasterio.open(path, "r+") as raster:
        raster.write(pixels)
    with pytest.raises(DataError, match=r"area11\.tif: 140 of 740 pixels have colours outside the palette"):
        spec_of(root).pack(cache)
    assert list(cache.iterdir()) == []


def test_a_damaged_pack_says_so(root, cache):
    folder = spec_of(root).pack(cache)
    (folder / "mask.npy").write_bytes((folder / "mask.npy").read_bytes()[:500])
    with pytest.raises(DataError, match=r"the pack is damaged .*delete this folder"):
        Pack(folder)


def test_unknown_pixels_are_counted_by_tile(tmp_path, cache, layouts):
    layouts.potsdam(tmp_path, ("2_10", "2_11"))
    path = tmp_path / "5_Labels_all/top_potsdam_2_11_label.tif"
    pixels = read_whole(path)
    pixels[:, 5, :7] = 100
    import rasterio

    with rasterio.open(path, "r+") as raster:
        raster.write(pixels)
    dataset = Potsdam(str(tmp_path), labels_train="full")
    listing = dataset.listing()
    spec = CropPack("p", listing.train, listing.folder, "train", 40, 0, 3, "uint8", 5, dataset.settings())
    pack = Pack(spec.pack(cache))
    unknown = pack.tables["unknown"]
    found = {pack.crops.tiles[pack.crops.tile[crop]]: unknown[crop] for crop in np.flatnonzero(unknown)}
    assert found == {"2_11": 7}  # overlapping crops do not count them twice


def test_a_source_gathers_from_several_packs(root, cache):
    train, test = (Pack(spec_of(root, role).pack(cache)) for role in ("train", "test"))
    table = np.full(256, 255, np.uint8)
    table[:5] = [9, 8, 7, 6, 255]
    domain = torch.tensor([0] * len(train) + [1] * len(test))
    source = PackedSource([Part(train, "a/train/"), Part(test, "b/test/", table)], {"domain": domain})
    assert len(source) == len(train) + len(test)
    assert source.sample_ids[0] == "a/train/1/0_0"
    mixed = np.asarray([len(train) + 1, 2, len(train), 0])
    batch = source.gather(mixed)
    assert batch["domain"].tolist() == [1, 0, 1, 0]
    one, other = ({name: pack.mapped[name].array for name in ("image", "mask")} for pack in (train, test))
    images = [other["image"][1], one["image"][2], other["image"][0], one["image"][0]]
    masks = [table[other["mask"][1]], one["mask"][2], table[other["mask"][0]], one["mask"][0]]
    assert np.array_equal(batch["image"], np.stack(images))
    assert np.array_equal(batch["mask"], np.stack(masks))
    alone = source.gather(mixed[:1])
    assert np.array_equal(alone["mask"][0], batch["mask"][0])
    assert np.array_equal(alone["image"][0], batch["image"][0])
    batch["mask"].zero_()  # a batch is the caller's own
    assert train.mapped["mask"].array.any()
    everything = np.arange(len(source))
    pixels = source.class_pixels(everything, 10)
    values = np.concatenate([train.mapped["mask"].array.ravel(), table[test.mapped["mask"].array].ravel()])
    assert np.array_equal(pixels, np.bincount(values, minlength=256)[[*range(10), 255]])
    count, sums = source.sums(everything, "image")
    assert count == train.tables["pixels"].sum() + test.tables["pixels"].sum()
    assert sums == (train.tables["image.moments"].sum(0) + test.tables["image.moments"].sum(0)).tolist()
    tiles = source.stitch(train.mapped["mask"].array, np.arange(len(train)))
    assert set(tiles) == {"a/train/1", "a/train/11"}
    assert source.tiles(mixed) == ["a/train/1", "b/test/1"]


def test_sizes_do_not_mix(root, cache):
    small, large = (Pack(spec_of(root, size=size).pack(cache)) for size in (16, 32))
    source = PackedSource([Part(small, "a/"), Part(large, "b/")], {})
    with pytest.raises(ValueError, match="different sizes"):
        source.gather(np.asarray([0, len(small)]))
