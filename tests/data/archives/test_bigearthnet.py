import json
import os
import shutil
import sys
from datetime import date
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch

from fedrs_lightning.data import IID, BigEarthNet, ByAttribute, Dirichlet, Domain, FederatedDataset
from fedrs_lightning.data.archives.bigearthnet.archive import MEAN, STD
from fedrs_lightning.data.archives.bigearthnet.files import ALL_BANDS, BANDS, BANDS_10M, BANDS_20M, CLASSES, band_path
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.files import read_json


@pytest.fixture
def v2(data_root) -> Path:
    return data_root / "bigearthnet_v2"


@pytest.fixture
def v1pixels(data_root) -> Path:
    return data_root / "bigearthnet_v2_v1pixels"


def dataset_of(root, **options):
    """Options go to the archive or to the data set, whichever has them."""
    names = signature(BigEarthNet).parameters
    own = {name: options.pop(name) for name in list(options) if name in names}
    return FederatedDataset(BigEarthNet(str(root), **own), **options)


def opened(root, **options):
    dataset = dataset_of(root, **options)
    dataset.prepare()
    return dataset.federation(0)


def facts(federation):
    return federation.manifest["archives"][0]["facts"]


def archive(real: Path, out: Path, count: int) -> list[str]:
    """An archive with both tables and copies of `count` clean patches, those for training first; gives their ids."""
    from pyarrow import parquet

    (out / "BigEarthNet-S2").mkdir(parents=True)
    table = parquet.read_table(real / "metadata.parquet")
    table = table.take(np.argsort(np.asarray(table["split"]) != "train", kind="stable")).slice(0, count)
    parquet.write_table(table, out / "metadata.parquet")
    shutil.copy(real / "metadata_for_patches_with_snow_cloud_or_shadow.parquet", out)
    ids = table["patch_id"].to_pylist()
    for name in ids:
        folder = band_path(real / "BigEarthNet-S2", name, "B02").parent
        shutil.copytree(folder, out / "BigEarthNet-S2" / folder.parent.name / name, copy_function=shutil.copy)
    return ids


def raw(images: Path, patch_id: str, band: str) -> np.ndarray:
    with rasterio.open(band_path(images, patch_id, band)) as raster:
        return raster.read(1)


def test_real_summer_is_austria(v2):
    federation = opened(v2)
    (client,) = federation.clients
    assert (client.id, client.name, len(client.train), len(client.test)) == (0, "Austria", 5, 5)
    assert (len(federation.source), len(federation.test), len(federation.validation)) == (16, 5, 6)
    assert all("_20170613T" in name and "T33UUP" in name for name in federation.sample_ids)
    batch = federation.source.gather(np.arange(16))
    for place, name in enumerate(federation.sample_ids):
        for field, bands in (("image10", BANDS_10M), ("image20", BANDS_20M)):
            for channel, band in enumerate(bands):
                assert (batch[field][place, channel].numpy() == raw(v2 / "BigEarthNet-S2", name, band)).all()
    assert batch["label"].dtype == torch.float32
    shown = {CLASSES[place] for place in np.flatnonzero(batch["label"][federation.sample_ids.index(name)])}
    assert shown == labels_of(v2, name)
    manifest = json.loads(json.dumps(federation.manifest))
    assert manifest == federation.manifest
    assert manifest["clients"][0]["train"]["class_counts"] == batch["label"][client.train].sum(0).int().tolist()
    about = facts(federation)
    assert (about["flagged"], about["synthetic"], about["left_out"]["num_samples"]) == (False, None, 0)
    assert manifest["archives"][0]["split"] == {"rule": "published", "left_out": 0}
    assert dataset_of(v2).acquired(name) == date(2017, 6, 13)


def labels_of(root: Path, patch_id: str) -> set[str]:
    from pyarrow import parquet

    rows = parquet.read_table(root / "metadata.parquet").to_pylist()
    return set(next(row["labels"] for row in rows if row["patch_id"] == patch_id))


def test_flagged_patches_on_request(v2, tmp_path):
    federation = opened(v2, flagged=True, season="all")
    assert [(client.name, len(client.train)) for client in federation.clients] == [("Finland", 1), ("Austria", 6)]
    assert len(federation.source) == 21
    archive(v2, tmp_path / "a", 1)
    (tmp_path / "a" / "metadata_for_patches_with_snow_cloud_or_shadow.parquet").unlink()
    with pytest.raises(DataError, match=r"flagged patches .* are wanted, but the table that lists them is missing"):
        opened(tmp_path / "a", flagged=True)


def test_several_countries(v1pixels):
    summer, every = (BigEarthNet(str(v1pixels), season=season).listing() for season in ("summer", "all"))
    assert summer.client_order == ("Finland", "Ireland", "Austria", "Switzerland")
    assert [int((summer.splits == name).sum()) for name in ("train", "validation", "test")] == [4, 1, 2]
    assert every.client_order == ("Finland", "Ireland", "Serbia", "Austria", "Lithuania", "Portugal", "Switzerland")
    assert len(every.ids) == 28
    assert every.attributes["month"].tolist() == [int(name[15:17]) for name in every.ids]
    assert every.attributes["tile"].tolist() == [name.split("_")[5] for name in every.ids]
    six = opened(v1pixels, season="all", countries=list(every.client_order[:6]))
    assert [client.name for client in six.clients] == list(every.client_order[:6])
    assert (len(six.source), len(six.test), len(six.validation)) == (27, 8, 7)
    with pytest.raises(DataError, match=r"client 6 \(Switzerland\) has 0 training samples, .*leave it out"):
        opened(v1pixels, season="all")
    two = opened(v1pixels, season="all", countries=["Austria", "Finland"])
    assert [(client.id, client.name) for client in two.clients] == [(0, "Austria"), (1, "Finland")]
    for name, options in {"Belgium": {}, "Finland": {"season": [1]}}.items():
        with pytest.raises(DataError, match=f"country {name} has no patches left|no patches left"):
            opened(v1pixels, countries=[name], **options)


def test_version_one_is_refused(data_root):
    with pytest.raises(DataError, match=r"this is BigEarthNet v1\.0"):
        opened(data_root / "bigearthnet_v1")


def test_pack_files_and_lmdb_hold_the_same_bits(v2, tmp_path):
    lmdb = pytest.importorskip("lmdb")
    from safetensors.numpy import save

    federation = opened(v2)
    environment = lmdb.open(str(tmp_path / "lmdb"), map_size=2**25)
    with environment.begin(write=True) as transaction:
        for name in federation.sample_ids:
            transaction.put(name.encode(), save({band: raw(v2 / "BigEarthNet-S2", name, band) for band in ALL_BANDS}))
    environment.close()
    (tmp_path / "lmdb" / "lock.mdb").unlink()
    order = np.random.default_rng(0).permutation(16)
    wanted = federation.source.gather(order)
    others = [opened(v2, storage="files"), opened(tmp_path / "lmdb", metadata=str(v2 / "metadata.parquet"))]
    for other in others:
        assert other.sample_ids == federation.sample_ids
        found = other.source.gather(order)
        assert all((found[name].numpy() == wanted[name].numpy()).all() for name in wanted)
    assert facts(others[1])["variant"] == "LMDB of safetensors (rico-hdl)"
    hashes = [made.manifest["archives"][0]["samples_sha256"] for made in (federation, *others)]
    assert hashes[0] == hashes[2] != hashes[1] == [None]


def test_faulty_lmdb(v2, tmp_path, monkeypatch):
    lmdb = pytest.importorskip("lmdb")
    from pyarrow import parquet
    from safetensors.numpy import save

    ids = parquet.read_table(v2 / "metadata.parquet")["patch_id"].to_pylist()
    parquet.write_table(parquet.read_table(v2 / "metadata.parquet").slice(0, 1), tmp_path / "metadata.parquet")
    good = {band: raw(v2 / "BigEarthNet-S2", ids[0], band) for band in BANDS}
    values = {
        "cannot be read as a safetensors dictionary": b"damaged",
        "B8A: no such file; a patch needs all bands": save({band: good[band] for band in BANDS if band != "B8A"}),
        "B11: has 1 band of uint16, 59 x 60 pixels": save(good | {"B11": good["B11"][:, 1:].copy()}),
        "B02: is zero everywhere": save(good | {"B02": np.zeros_like(good["B02"])}),
    }
    for number, (text, value) in enumerate(values.items()):
        with (
            lmdb.open(str(tmp_path / f"{number}"), map_size=2**22) as environment,
            environment.begin(write=True) as transaction,
        ):
            transaction.put(ids[0].encode(), value)
        with pytest.raises(DataError, match=text):
            opened(tmp_path / f"{number}", metadata=str(tmp_path / "metadata.parquet"))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "data.mdb").write_bytes(b"nonsense" * 1000)
    with pytest.raises(DataError, match="cannot be read as an LMDB"):
        opened(tmp_path / "bad", metadata=str(tmp_path / "metadata.parquet"))
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "data.mdb").touch()
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(DataError, match=r"pip install 'fedrs-lightning\[lmdb\]'"):
        opened(tmp_path / "without", metadata=str(tmp_path / "metadata.parquet"))


def test_rows_without_a_patch(v2, tmp_path):
    root = tmp_path / "a"
    ids = archive(v2, root, 16)
    gone = band_path(root / "BigEarthNet-S2", ids[3], "B02").parent
    shutil.rmtree(gone)
    with pytest.raises(
        DataError, match=f"1 of 16 patches of the table are not on disk, the first is {ids[3]}.*missing: leave_out"
    ):
        opened(root)
    federation = opened(root, missing="leave_out")
    assert sorted(federation.sample_ids) == sorted(set(ids) - {ids[3]})
    assert facts(federation)["left_out"]["ids"] == [ids[3]]
    shutil.rmtree(gone.parent)
    gone.parent.mkdir()
    with pytest.raises(DataError, match="16 of 16 patches of the table are not on disk"):
        opened(root, missing="leave_out")


def write_band(path: Path, pixels: np.ndarray) -> None:
    path.unlink()
    profile = {
        "driver": "GTiff",
        "count": 1,
        "height": pixels.shape[0],
        "width": pixels.shape[1],
        "dtype": pixels.dtype,
    }
    with rasterio.open(
        path, "w", **profile, crs="EPSG:32633", transform=rasterio.Affine(10, 0, 0, 0, -10, 0)
    ) as raster:
        raster.write(pixels, 1)


@pytest.mark.parametrize("storage", ["pack", "files"])
def test_faulty_bands_are_named(storage, v2, tmp_path):
    (name,) = archive(v2, tmp_path / "a", 1)
    path = band_path(tmp_path / "a" / "BigEarthNet-S2", name, "B11")

    def read() -> None:
        opened(tmp_path / "a", storage=storage).source.gather(np.arange(1))

    read()
    ones = np.ones((60, 60), np.uint16)
    for pixels, text in (
        (ones[:59], "has 1 band of uint16, 60 x 59 pixels, but must have one of uint16, 60 x 60"),
        (ones.astype(np.int32), "has 1 band of int32"),
        (ones * 0, "is zero everywhere"),
    ):
        write_band(path, pixels)
        with pytest.raises(DataError, match=f"{path.name}: {text}"):
            read()
    path.write_bytes(b"II*\0 nothing")
    with pytest.raises(DataError, match=f"{path.name}: cannot be read as a GeoTIFF"):
        read()
    path.unlink()
    with pytest.raises(DataError, match=f"{path.name}: no such file; a patch needs all bands"):
        read()


def test_fingerprints_notice_changes(v2, tmp_path):
    (name,) = archive(v2, tmp_path / "a", 1)
    path = band_path(tmp_path / "a" / "BigEarthNet-S2", name, "B11")

    def look() -> list[str]:
        return [
            opened(tmp_path / "a", fingerprint=kind, storage="files").manifest["archives"][0]["source_sha256"]
            for kind in ("files", "folders")
        ]

    before = look()
    assert look() == before
    os.utime(path, (1, 1))
    touched = look()
    assert touched[0] != before[0]
    assert touched[1] == before[1]
    path.with_name("extra").touch()
    assert look()[1] != before[1]


@pytest.mark.parametrize("bands", [BANDS, ("B12", "B02")])
def test_statistics_against_plain_float64(bands, v1pixels):
    options = {"season": "all", "countries": ["Ireland", "Austria", "Finland"], "bands": list(bands)}
    federation = opened(v1pixels, normalise="federated", **options)
    pixels = [
        [
            np.stack(
                [raw(v1pixels / "BigEarthNet-S2", federation.sample_ids[place], band) for place in client.train]
            ).astype(np.float64)
            for band in bands
        ]
        for client in federation.clients
    ]
    pooled = [np.concatenate([own[place].ravel() for own in pixels]) for place in range(len(bands))]
    about = federation.manifest["normalisation"]
    (found,) = about["of"].values()
    np.testing.assert_allclose(found["mean"], [values.mean() for values in pooled], rtol=1e-12)
    np.testing.assert_allclose(found["std"], [values.std() for values in pooled], rtol=1e-9)
    sent = {"up": 3 * 8 * (1 + 2 * len(bands)), "down": 3 * 16 * len(bands)}
    assert federation.setup_bytes == about["setup_bytes"] == sent
    own = opened(v1pixels, normalise="per_client", **options)
    assert own.setup_bytes == {"up": 0, "down": 0}
    image = own.transform(own.source.gather(own.clients[2].test))["image"]
    for channel, band in enumerate(bands):
        if band in BANDS_10M:
            values = np.stack(
                [raw(v1pixels / "BigEarthNet-S2", own.sample_ids[place], band) for place in own.clients[2].test]
            )
            mean, std = pixels[2][channel].mean(), pixels[2][channel].std()
            np.testing.assert_allclose(image[:, channel].numpy(), (values - mean) / std, rtol=1e-4, atol=1e-4)
    stated = own.manifest["normalisation"]["of"]
    assert list(stated) == [f"client {name}" for name in options["countries"]]
    np.testing.assert_allclose(stated["client Finland"]["mean"], [values.mean() for values in pixels[2]], rtol=1e-12)


def test_published_statistics_follow_the_bands(v2):
    federation = opened(v2, bands=["B12", "B02"], resize="rsim", image_size=64)
    given = federation.manifest["normalisation"]["of"]["BigEarthNet"]
    assert given == {"mean": [MEAN[9], MEAN[0]], "std": [STD[9], STD[0]]}
    assert facts(federation)["resize"] == "20 m bands bicubic on float32, align_corners=True"
    assert federation.manifest["image_size"] == 64
    assert federation.transform(federation.source.gather(np.arange(2)))["image"].shape == (2, 2, 64, 64)


def test_options_are_checked():
    for options, text in (
        ({"season": "winter"}, "season must be summer, all, or a list"),
        ({"countries": ["Spain"]}, "countries must be Finland, .*got 'Spain'"),
        ({"countries": []}, "countries must name at least one"),
        ({"bands": ["B01"]}, "bands must be B02"),
        ({"bands": ["B02", "B02"]}, "each once"),
        ({"resize": "nearest"}, "resize must be torch or rsim"),
        ({"normalise": "train"}, "normalise must be published"),
        ({"missing": "skip"}, "missing must be error or leave_out"),
        ({"storage": "ram"}, "storage must be pack or files"),
        ({"fingerprint": "none"}, "fingerprint must be files or folders"),
        ({"protocols": ["mean"]}, "protocols must be global, personal_common"),
        ({"crop_size": 64}, "crop_size is for archives of tiles"),
        ({"image_size": 0}, "image_size must be 1 to 16384"),
    ):
        with pytest.raises(ConfigError, match=text):
            dataset_of("anywhere", **options)


def test_synthetic_marker_is_recorded(v2, tmp_path):
    archive(v2, tmp_path / "a", 1)
    marker = tmp_path / "a" / "SYNTHETIC.json"
    marker.write_text('{"seed": 3}')
    assert opened(tmp_path / "a").manifest["synthetic"] == read_json(marker)


def test_results_are_of_test_data_of_ones_own(v2):
    assert opened(v2).headline == "personal_own"
    with pytest.raises(ConfigError, match="protocols must name personal_own, which results report"):
        dataset_of(v2, protocols=["global"]).prepare()


def test_a_partition_of_ones_own_replaces_the_countries(v1pixels):
    """Published splits stay, and the test set is common: nobody owns a patch any more."""
    six = ["Finland", "Ireland", "Serbia", "Austria", "Lithuania", "Portugal"]
    countries = opened(v1pixels, season="all", countries=six)
    train = np.concatenate([client.train for client in countries.clients])
    months = opened(v1pixels, season="all", countries=six, partition=ByAttribute("month"))
    for client in months.clients:
        assert {int(months.sample_ids[index][15:17]) for index in client.train} == {int(client.name)}
        assert client.test is None
    assert np.array_equal(np.sort(np.concatenate([client.train for client in months.clients])), np.sort(train))
    assert np.array_equal(months.test, countries.test)
    assert months.headline is None
    assert months.manifest["archives"][0]["partition"] == {"class": "ByAttribute", "attribute": "month"}
    by_country = opened(v1pixels, season="all", countries=six, partition=ByAttribute("country"))
    assert {client.name: client.train.tolist() for client in by_country.clients} == {
        client.name: client.train.tolist() for client in countries.clients
    }
    assert [
        len(client.train) for client in opened(v1pixels, season="all", countries=six, partition=IID(3)).clients
    ] == [len(part) for part in np.array_split(train, 3)]
    for options, message in (
        ({"partition": Dirichlet(2, 0.3)}, "a partition by class is for one class an image"),
        ({"partition": IID(2), "normalise": "per_client"}, "per_client needs an archive that says whose"),
        ({"partition": ByAttribute("season")}, "no attribute 'season'; they have country, month, tile"),
    ):
        with pytest.raises(ConfigError, match=message):
            opened(v1pixels, season="all", **options)


def test_a_seeded_split_is_drawn_within_each_country(v1pixels):
    drawn = opened(v1pixels, season="all", countries=["Austria", "Finland"], split="seeded", train_fraction=0.5)
    assert drawn.manifest["archives"][0]["split"]["rule"] == "seeded, within each client"
    sizes = [(len(client.train), len(client.test)) for client in drawn.clients]
    both = opened(v1pixels, season="all", countries=["Austria", "Finland"])
    owners = both.source.extras["label"].shape[0]
    assert sum(map(sum, sizes)) == owners
    assert all(abs(train - test) <= 1 for train, test in sizes)


def test_seasons_as_domains(v1pixels):
    """Two archives of one kind: labels, bands and statistics of both, clients by domain and country."""
    countries = ["Ireland", "Austria"]
    domains = [Domain(season, BigEarthNet(season=season, countries=countries)) for season in ("summer", "all")]
    made = FederatedDataset(domains=domains, root=str(v1pixels), normalise="per_client")
    made.prepare()
    federation = made.federation(0)
    names = ["summer Ireland", "summer Austria", "all Ireland", "all Austria"]
    assert [client.name for client in federation.clients] == names
    assert federation.source.gather(federation.test[:1])["label"].shape == (1, 19)
    groups = federation.source.extras["group"].numpy()
    assert all((groups[client.train] == client.id).all() for client in federation.clients)
    assert federation.sample_ids[0].startswith("summer/S2")
    mixed = [Domain("a", BigEarthNet(bands=["B02", "B11"])), Domain("b", BigEarthNet(bands=["B11", "B02"]))]
    other = [Domain("a", BigEarthNet()), Domain("b", BigEarthNet(resize="rsim"))]
    for unlike in (mixed, other):
        with pytest.raises(ConfigError, match="same stored bands, chosen in the same order and resized alike"):
            FederatedDataset(domains=unlike)


def test_how_far_the_kernels_lie_apart_on_real_bands(v2):
    """What docs/data.md says of the two kernels, and of statistics that are taken before the resize."""
    kinds = [opened(v2, bands=list(BANDS_20M), resize=kernel, augment=False) for kernel in ("torch", "rsim")]
    batch = kinds[0].source.gather(np.arange(len(kinds[0].source)))
    places = [BANDS.index(band) for band in BANDS_20M]
    scale, shift = (torch.tensor([values[place] for place in places])[None, :, None, None] for values in (STD, MEAN))
    resized, other = ((kind.transform(dict(batch))["image"] * scale + shift).double() for kind in kinds)
    stored = batch["image20"].to(torch.float64)
    axes = (0, 2, 3)
    apart = (resized - other).abs().mean(axes) / stored.std(axes)
    assert 0.04 < apart.min() < apart.max() < 0.08
    assert (resized.mean(axes) / stored.mean(axes) - 1).abs().max() < 0.001
    assert (resized.std(axes) / stored.std(axes) - 1).abs().max() < 0.003
