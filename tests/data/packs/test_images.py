import json
import os
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrs_lightning.data.packs.fields import mean_std
from fedrs_lightning.data.packs.files import DecodedFiles
from fedrs_lightning.data.packs.folders import cache_folder
from fedrs_lightning.data.packs.pack import Pack
from fedrs_lightning.data.packs.source import PackedSource, Part
from fedrs_lightning.errors import DataError

from .number_files import decode, make_spec


def source_of(samples):
    return PackedSource([Part(samples)], {"label": torch.arange(150) % 3, "group": torch.arange(150)})


def paths(spec, folder):
    return [folder / name.partition("/")[2] for name in spec.ids]


def names(cache):
    return sorted(path.name for path in cache.iterdir())


def test_a_pack_holds_what_the_files_hold(tmp_path, cache):
    spec = make_spec(tmp_path / "source")
    folder = spec.pack(cache)
    packed = spec.open(cache)
    source = source_of(packed)
    assert packed.folder == folder
    wanted = np.stack([decode(path) for path in paths(spec, tmp_path / "source")])
    assert np.array_equal(packed.mapped["image"].array, wanted)
    assert np.array_equal(packed.mapped["part"].array, wanted[:, :, :2, :2] >> 8)
    assert len(source) == 150
    assert source.sample_ids[7] == "a/7.bin"
    chosen = [9, 3, 3, 149]
    batch = source.gather(torch.tensor(chosen))
    assert (batch["image"].dtype, batch["part"].dtype) == (torch.uint16, torch.uint8)
    assert np.array_equal(batch["image"].numpy(), wanted[chosen])
    assert np.array_equal(batch["part"].numpy(), wanted[chosen, :, :2, :2] >> 8)
    assert batch["label"].tolist() == [0, 0, 0, 2]
    assert batch["group"].tolist() == chosen
    assert np.array_equal(source.gather(np.asarray([5]))["image"].numpy(), wanted[[5]])
    batch["image"].view(torch.int16).zero_()  # a batch is the caller's own
    assert np.array_equal(packed.mapped["image"].array, wanted)
    with pytest.raises(ValueError, match="label has 3 entries for 150 samples"):
        PackedSource([Part(packed)], {"label": torch.arange(3)})


def test_files_give_what_the_pack_gives(tmp_path, cache):
    spec = make_spec(tmp_path / "source")
    packed, files = source_of(Pack(spec.pack(cache))), source_of(DecodedFiles(spec))
    chosen = np.asarray([4, 149, 4, 0])
    one, other = packed.gather(chosen), files.gather(chosen)
    assert list(one) == list(other) == ["image", "part", "label", "group"]
    for name, values in one.items():
        assert values.dtype == other[name].dtype
        assert np.array_equal(values.numpy(), other[name].numpy())
    assert packed.sample_ids == files.sample_ids
    for name in ("image", "part"):
        one, other = (source.parts[0].pack for source in (packed, files))
        assert np.array_equal(one.moments(name), other.moments(name))
        assert packed.sums(chosen, name) == files.sums(chosen, name)
    (tmp_path / "source" / "4.bin").write_bytes(bytes(5))
    with pytest.raises(ValueError, match="buffer size must be a multiple"):  # what decode raises reaches the caller
        files.gather(chosen)


@settings(max_examples=20, deadline=None)
@given(chosen=st.lists(st.integers(0, 149), min_size=1, max_size=60, unique=True))
def test_statistics_are_exact_whatever_the_order(numbers, chosen):
    mean, std = mean_std(*numbers.sums(np.asarray(chosen), "image"))
    pixels = numbers.parts[0].pack.mapped["image"].array[chosen].astype(np.float64)
    assert mean == pytest.approx(pixels.mean(axis=(0, 2, 3)), rel=1e-12)
    assert std == pytest.approx(pixels.std(axis=(0, 2, 3)), rel=1e-9)
    assert (mean, std) == mean_std(*numbers.sums(np.asarray(chosen)[::-1], "image"))


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    return source_of(Pack(make_spec(folder / "source").pack(folder / "cache")))


def test_packs_once_and_again_when_source_or_settings_change(tmp_path, cache):
    spec = make_spec(tmp_path / "source")
    with pytest.raises(DataError, match=r"not packed yet.*call prepare\(\) first"):
        spec.open(cache)
    first = spec.pack(cache)
    stamp = (first / "image.npy").stat().st_mtime_ns
    assert spec.pack(cache) == first
    assert (first / "image.npy").stat().st_mtime_ns == stamp
    assert make_spec(tmp_path / "source", settings={"kind": "other"}).folder(cache) != first
    changed = tmp_path / "source" / "3.bin"
    changed.write_bytes(bytes(36))
    os.utime(changed, ns=(1, 1))
    second = spec.pack(cache)
    assert second != first
    assert not Pack(second).mapped["image"].array[3].any()
    assert names(cache) == sorted([first.name, second.name])


def test_a_faulty_file_leaves_nothing_and_the_first_in_order_is_named(tmp_path, cache):
    spec = make_spec(tmp_path / "source")

    def failing(path):
        if path.stem in ("70", "140"):
            raise DataError(f"{path}: broken")
        if path.stem == "69":
            time.sleep(0.05)
        return decode(path)

    with pytest.raises(DataError, match=r"/70\.bin: broken"):
        make_spec(tmp_path / "source", decode=failing).pack(cache)
    assert names(cache) == []
    assert len(Pack(spec.pack(cache))) == 150


def test_a_source_that_changes_while_it_is_packed_is_refused(tmp_path, cache):
    def changing(path):
        if path.stem == "149":
            os.utime(path.with_name("0.bin"), ns=(5, 5))
        return decode(path)

    with pytest.raises(DataError, match="changed while it was packed; run the command again"):
        make_spec(tmp_path / "source", decode=changing).pack(cache)
    assert names(cache) == []


@pytest.mark.parametrize("damage", ["truncated", "index", "moments", "other shape"])
def test_a_damaged_pack_is_named(tmp_path, cache, damage):
    folder = make_spec(tmp_path / "source").pack(cache)
    if damage == "truncated":
        os.truncate(folder / "image.npy", 1000)
    elif damage == "moments":
        (folder / "image.moments.npy").unlink()
    elif damage == "index":
        (folder / "index.json").write_text("{")
    else:
        index = json.loads((folder / "index.json").read_text())
        index["sample_ids"].pop()
        (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=f"{folder.name}.*delete this folder"):
        Pack(folder)


def test_errors_name_the_place(tmp_path):
    spec = make_spec(tmp_path / "source")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write the pack.*cache_dir or FEDRS_CACHE"):
        spec.pack(tmp_path / "file" / "cache")
    (tmp_path / "source" / "5.bin").unlink()
    with pytest.raises(DataError, match=r"5\.bin: cannot be read"):
        spec.pack(tmp_path / "cache")


def test_where_packs_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDRS_CACHE", "/elsewhere")
    assert str(cache_folder(tmp_path)) == str(tmp_path)
    assert str(cache_folder(None)) == "/elsewhere"
    monkeypatch.delenv("FEDRS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert str(cache_folder(None)) == "/xdg/fedrs-lightning"
