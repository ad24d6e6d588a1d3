"""A pack whose bytes are not what was packed ends a run in one line; a whole one is read once."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from fedrs_lightning.data import IID, FederatedDataset, OwnImages
from fedrs_lightning.data.packs import images, verification
from fedrs_lightning.data.packs.fields import Field
from fedrs_lightning.data.packs.images import ImagePack
from fedrs_lightning.data.packs.index import read_index
from fedrs_lightning.data.packs.pack import Pack
from fedrs_lightning.data.packs.verification import Verification, known_whole
from fedrs_lightning.errors import ConfigError, DataError

from .number_files import make_spec


@pytest.fixture
def pack(tmp_path):
    return make_spec(tmp_path / "source").pack(tmp_path / "cache")


def flip(path, place=-5):
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def flip_unnoticed(path, place=-5):
    """As a disk that rots does: size and time of the file stay."""
    state = path.stat()
    with path.open("r+b") as file:
        file.seek(place, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(place, os.SEEK_END)
        file.write(bytes([byte ^ 4]))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def found_by(folder, mode):
    own = Verification([folder], mode)
    own.finish()
    return own.checked


def test_a_whole_pack_is_read_once_and_again_when_a_file_changed(pack):
    assert found_by(pack, "never") == []
    assert found_by(pack, "once") == [pack]
    assert found_by(pack, "once") == []
    assert found_by(pack, "always") == [pack]
    for change in (
        lambda path: os.utime(path, (1, 1)),
        lambda path: path.replace(path.with_name("a")) and shutil.copy2(path.with_name("a"), path),
    ):
        change(pack / "part.npy")
        assert not known_whole(pack, read_index(pack))
        assert found_by(pack, "once") == [pack]
        assert found_by(pack, "once") == []
    memory = verification._memory(pack)
    assert memory.parent == pack.parent
    for content in ("", "[", "[" * 10**5, "{}", "null", '{"sha256": 1}'):
        memory.write_text(content)
        assert found_by(pack, "once") == [pack]


@pytest.mark.parametrize("name", ["image.npy", "part.npy", "image.moments.npy", "index.json"])
def test_a_flipped_bit_is_one_line(pack, name):
    found_by(pack, "once")
    flip(pack / name)
    with pytest.raises(DataError, match=r"the pack is damaged \(.*\); delete this folder, it is made again") as raised:
        found_by(pack, "once")
    assert "\n" not in str(raised.value)
    with pytest.raises(DataError):
        found_by(pack, "once")  # nothing was remembered
    if name not in ("image.npy", "part.npy"):  # of these, opening the pack reads every byte
        with pytest.raises(DataError, match="the pack is damaged"):
            Pack(pack)


def test_a_bit_that_flips_without_a_trace_is_found_by_always(pack):
    found_by(pack, "once")
    flip_unnoticed(pack / "image.npy")
    assert found_by(pack, "once") == []
    with pytest.raises(DataError, match=r"\(shard 0 \(samples 0 to 149\): image\.npy is not what was packed\)"):
        found_by(pack, "always")


def test_reading_ends_when_damage_is_found(pack):
    flip(pack / "image.npy")
    own = Verification([pack], "once")
    opened = Pack(pack, own)
    with pytest.raises(DataError, match="is not what was packed"):
        own.finish()
    out = {name: torch.empty((1, *field.shape), dtype=field.bits) for name, field in opened.fields.items()}
    with pytest.raises(DataError, match="is not what was packed"):
        opened.read(torch.zeros(1, dtype=torch.int64), out, None)


CUT = """
import sys, torch
from pathlib import Path
from fedrs_lightning.data.packs.pack import Pack
from fedrs_lightning.data.packs.source import PackedSource, Part
from fedrs_lightning.errors import DataError
source = PackedSource([Part(Pack(Path(sys.argv[1])))], {})
source.gather([149])
path = Path(sys.argv[1]) / "image.npy"
with path.open("r+b") as file:
    file.truncate(100)
try:
    source.gather([149])
except DataError as error:
    print(error)
"""


def test_a_pack_that_is_cut_while_it_is_mapped_is_one_line(pack):
    run = [sys.executable, "-c", CUT, str(pack)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip().endswith("(image.npy was cut while it was read); delete this folder, it is made again")


@pytest.fixture
def dataset(tmp_path, layouts):
    rng = np.random.default_rng(0)
    for number in range(12):
        pixels = rng.integers(0, 255, (3, 16, 16)).astype(np.uint8)
        layouts.tiff(tmp_path / "own" / "ab"[number % 2] / f"{number}.tif", pixels)

    def make(**options):
        archive = OwnImages(str(tmp_path / "own"), classes=["a", "b"], in_channels=3)
        return FederatedDataset(archive, IID(2), cache_dir=str(tmp_path / "cache"), **options)

    return make


def test_a_federation_records_the_digest_of_what_was_read(dataset, tmp_path):
    data = dataset()
    data.prepare()
    manifest = data.federation(0).manifest
    data.verified()
    (folder,) = data.verification.checked
    assert manifest["archives"][0]["samples_sha256"] == [read_index(folder).sha256]
    stored = np.load(folder / "image.npy")
    index = json.loads((folder / "index.json").read_text())
    shard = hashlib.sha256(stored.tobytes())
    assert index["shards"][0]["sha256"]["image"] == shard.hexdigest()
    assert index["sha256"] == hashlib.sha256(shard.digest()).hexdigest()
    flip(folder / "image.npy")
    again = dataset()
    again.prepare()
    with pytest.raises(DataError, match="delete this folder, it is made again"):
        again.verified()
    shutil.rmtree(folder)
    again = dataset()
    again.prepare()
    assert again.federation(0).manifest["archives"] == manifest["archives"]
    again.verified()
    trusting = dataset(verify="never")
    trusting.prepare()
    trusting.verified()
    assert trusting.verification.checked == []
    with pytest.raises(ConfigError, match="verify must be always, once or never"):
        dataset(verify="often")


def test_verification_is_at_least_half_as_fast_as_hashing_is(tmp_path, monkeypatch):
    """Hashing alone, of bytes in memory by one thread, is what a fast disk delivers at best."""
    monkeypatch.setattr(verification, "THREADS", 1)
    monkeypatch.setattr(images, "SHARD", 2**23)
    spec = make_spec(tmp_path / "source", 40)
    big = np.random.default_rng(0).integers(0, 65536, (2, 768, 768)).astype(np.uint16)
    fields = {"image": Field(big.shape, "uint16")}
    folder = ImagePack("big", spec.ids, fields, {}, lambda: "", lambda number: {"image": big}).pack(tmp_path / "cache")
    content = np.load(folder / "image.npy").tobytes()

    def fastest(work):
        def timed():
            start = time.process_time()
            work()
            return time.process_time() - start

        return min(timed() for _ in range(3))

    plain = fastest(lambda: hashlib.sha256(content).digest())
    index = read_index(folder)
    assert fastest(lambda: verification.verify(folder, index)) < 2 * plain


def test_a_run_on_a_damaged_pack_ends_in_one_line(dataset, tmp_path, capsys):
    """From the command line, with exit code 2 and without a result."""
    from fedrs_lightning.cli.main import main

    dataset().prepare()
    (folder,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    flip(folder / "image.npy")
    config = {
        "task": {"class_path": "ClassificationTask", "init_args": {"backbone": "resnet18"}},
        "method": {"class_path": "FedAvg"},
        "schedule": {"num_rounds": 1, "batch_size": 4},
        "fabric": {"accelerator": "cpu", "devices": 1},
        "run": {"root": str(tmp_path / "runs"), "name": "a", "plot": False},
        "data": {
            "archive": {
                "class_path": "OwnImages",
                "init_args": {"root": str(tmp_path / "own"), "classes": ["a", "b"], "in_channels": 3},
            },
            "partition": {"class_path": "IID", "init_args": {"num_clients": 2}},
            "cache_dir": str(tmp_path / "cache"),
        },
    }
    (tmp_path / "x.yaml").write_text(json.dumps(config))
    assert main(["fit", "--config", str(tmp_path / "x.yaml")]) == 2
    said = capsys.readouterr().err
    assert f"fedrs fit: {folder}: the pack is damaged (shard 0 (samples 0 to 11): image.npy" in said
    assert "Traceback" not in said
    assert not list((tmp_path / "runs").rglob("result.json"))
