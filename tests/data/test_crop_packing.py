import numpy as np
import pytest

from fedrs_lightning.data.archives.isprs.potsdam import Potsdam
from fedrs_lightning.data.archives.isprs.vaihingen import Vaihingen
from fedrs_lightning.data.packs.crop_packs import CropPack, CropSpec, crops_folder, pack_crops
from fedrs_lightning.data.packs.crop_source import CropSource, Part
from fedrs_lightning.data.packs.crops import stitch
from fedrs_lightning.data.rasters.rows import read_whole
from fedrs_lightning.errors import DataError

AREAS, SIZES = ("1", "11", "2"), ((61, 83), (20, 37), (45, 52))


@pytest.fixture
def root(tmp_path, layouts):
    layouts.vaihingen(tmp_path / "V", AREAS, SIZES)
    return tmp_path / "V"


def spec_of(root, role="train", size=32, overlap=0, gsd="native"):
    dataset = Vaihingen(str(root), gsd=gsd, labels_train="full")
    survey = dataset.survey()
    return CropSpec("v", survey.train, survey.folder, role, size, overlap, 3, "uint8", 5, dataset.settings())


def whole(tile):
    with tile.open() as opened:
        return opened.image.rows(0, tile.size[0]), opened.ids.rows(0, tile.size[0])[0]


@pytest.mark.parametrize("gsd", ["native", "5cm"])
def test_training_crops_hold_the_tile_and_padding(root, cache, gsd):
    spec = spec_of(root, gsd=gsd)
    pack = CropPack(pack_crops(spec, cache))
    assert pack.index.tiles == ("1", "11")
    for crop in range(len(pack)):
        image, ids = whole(spec.tiles[pack.index.tile[crop]])
        row, column = pack.index.row[crop], pack.index.column[crop]
        part, mask = image[:, row : row + 32, column : column + 32], ids[row : row + 32, column : column + 32]
        height, width = mask.shape
        assert np.array_equal(pack.images[crop, :, :height, :width], part)
        assert np.array_equal(pack.masks[crop, :height, :width], mask)
        assert not pack.images[crop, :, height:].any()
        assert (pack.masks[crop, height:] == 255).all()
        assert (pack.masks[crop, :, width:] == 255).all()
        assert np.array_equal(pack.moments[crop], [part.astype(int).sum((1, 2)), (part.astype(int) ** 2).sum((1, 2))])
        assert pack.pixels[crop] == height * width
        assert np.array_equal(
            pack.counts[crop], np.bincount(pack.masks[crop].ravel(), minlength=256)[[0, 1, 2, 3, 4, 255]]
        )


@pytest.mark.parametrize("overlap", [0, 12])
def test_test_crops_hold_every_labelled_pixel_once(root, cache, overlap):
    """Counts of all crops are those of the tiles, and masks put together are the labels."""
    spec = spec_of(root, "test", overlap=overlap)
    pack = CropPack(pack_crops(spec, cache))
    together = stitch(pack.masks, pack.index)
    for tile in spec.tiles:
        assert np.array_equal(together[tile.id], whole(tile)[1])
    labels = np.concatenate([whole(tile)[1].ravel() for tile in spec.tiles])
    assert np.array_equal(pack.counts[:, :5].sum(axis=0), np.bincount(labels, minlength=256)[:5])
    assert np.array_equal(stitch(pack.images[:, 0], pack.index)["1"], whole(spec.tiles[0])[0][0])


def test_packs_are_kept_and_made_again_when_something_changes(root, cache):
    first = pack_crops(spec_of(root), cache)
    assert pack_crops(spec_of(root), cache) == first
    others = {
        crops_folder(spec, cache) for spec in (spec_of(root, size=16), spec_of(root, "test"), spec_of(root, overlap=4))
    }
    assert len(others | {first}) == 4
    assert CropPack(pack_crops(spec_of(root), cache / "again")).digest == CropPack(first).digest
    path = root / "top/top_mosaic_09cm_area1.tif"
    path.touch()
    assert crops_folder(spec_of(root), cache) != first


def test_a_faulty_tile_leaves_no_pack(root, cache):
    path = root / "top_mosaic_09cm_area11.tif"
    pixels = read_whole(path)
    pixels[:, :, 30:] = 77
    import rasterio

    with rasterio.open(path, "r+") as raster:
        raster.write(pixels)
    with pytest.raises(DataError, match=r"area11\.tif: 140 of 740 pixels have colours outside the palette"):
        pack_crops(spec_of(root), cache)
    assert list(cache.iterdir()) == []


def test_a_damaged_pack_says_so(root, cache):
    folder = pack_crops(spec_of(root), cache)
    (folder / "masks.npy").write_bytes((folder / "masks.npy").read_bytes()[:500])
    with pytest.raises(DataError, match=r"the pack is damaged .*delete this folder"):
        CropPack(folder)


def test_unknown_pixels_are_counted_by_tile(tmp_path, cache, layouts):
    layouts.potsdam(tmp_path, ("2_10", "2_11"))
    path = tmp_path / "5_Labels_all/top_potsdam_2_11_label.tif"
    pixels = read_whole(path)
    pixels[:, 5, :7] = 100
    import rasterio

    with rasterio.open(path, "r+") as raster:
        raster.write(pixels)
    dataset = Potsdam(str(tmp_path), labels_train="full")
    survey = dataset.survey()
    spec = CropSpec("p", survey.train, survey.folder, "train", 40, 0, 3, "uint8", 5, dataset.settings())
    assert CropPack(pack_crops(spec, cache)).unknown == {"2_11": 7}  # overlapping crops do not count them twice


def test_a_source_gathers_from_several_packs(root, cache):
    train, test = (CropPack(pack_crops(spec_of(root, role), cache)) for role in ("train", "test"))
    table = np.full(256, 255, np.uint8)
    table[:5] = [9, 8, 7, 6, 255]
    source = CropSource([Part(train, "a/train", 0), Part(test, "b/test", 1, table)])
    assert len(source) == len(train) + len(test)
    assert source.sample_ids[0] == "a/train/1/0_0"
    mixed = np.asarray([len(train) + 1, 2, len(train), 0])
    batch = source.gather(mixed)
    assert batch["domain"].tolist() == [1, 0, 1, 0]
    assert np.array_equal(batch["image"], np.stack([test.images[1], train.images[2], test.images[0], train.images[0]]))
    assert np.array_equal(
        batch["mask"], np.stack([table[test.masks[1]], train.masks[2], table[test.masks[0]], train.masks[0]])
    )
    alone = source.gather(mixed[:1])
    assert np.array_equal(alone["mask"][0], batch["mask"][0])
    assert np.array_equal(alone["image"][0], batch["image"][0])
    batch["mask"].zero_()  # a batch is the caller's own
    assert train.masks.any()
    everything = np.arange(len(source))
    pixels = source.class_pixels(everything, 10)
    values = np.concatenate([train.masks.ravel(), table[test.masks].ravel()])
    assert np.array_equal(pixels, np.bincount(values, minlength=256)[[*range(10), 255]])
    count, sums = source.sums(everything)
    assert count == train.pixels.sum() + test.pixels.sum()
    assert sums == (train.moments.sum(0) + test.moments.sum(0)).tolist()
    tiles = source.stitch(train.masks, np.arange(len(train)))
    assert set(tiles) == {"a/train/1", "a/train/11"}
    assert source.tiles(mixed) == ["a/train/1", "b/test/1"]


def test_sizes_do_not_mix(root, cache):
    small, large = (CropPack(pack_crops(spec_of(root, size=size), cache)) for size in (16, 32))
    source = CropSource([Part(small, "a", 0), Part(large, "b", 0)])
    with pytest.raises(ValueError, match="different sizes"):
        source.gather(np.asarray([0, len(small)]))
