"""Packing that is killed, runs twice at the same time, or meets a full disk."""

import errno
import fcntl
import multiprocessing
import os
import random
import resource
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedrs_lightning.data.archives.isprs.vaihingen import Vaihingen
from fedrs_lightning.data.packs import images, shards
from fedrs_lightning.data.packs.folders import packing
from fedrs_lightning.data.packs.pack import Pack
from fedrs_lightning.data.packs.tiles import CropPack
from fedrs_lightning.errors import DataError
from fedrs_lightning.files import read_json

from .number_files import decode, make_spec

FORK = multiprocessing.get_context("fork")
COUNT, SHARD = 150, 20  # samples


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(images, "SHARD", SHARD * 44)
    monkeypatch.setattr(images, "CHUNK", 7)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of a pack that nothing disturbed, by name, and its source folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "SHARD", SHARD * 44)
        folder = tmp_path_factory.mktemp("whole")
        made = make_spec(folder / "source").pack(folder / "cache")
        assert len(read_json(made / "index.json")["shards"]) == 8
        return contents(made), folder / "source"


def contents(folder):
    assert all(path.is_file() for path in folder.iterdir())
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def packed(spec, cache, threads):
    with packing(threads=threads):
        spec.pack(cache)


def in_child(work, *arguments):
    """Run in a process of its own; gives its exit code, negative for a signal."""
    child = FORK.Process(target=work, args=arguments)
    child.start()
    child.join(60)
    return child.exitcode


def killed_at(call, spec, cache):
    """Pack, and die by SIGKILL at the given call of anything that changes the disk; exits with the number of calls."""
    calls = 0

    def counted(function):
        def wrapper(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return wrapper

    for owner, name in (
        (os, "pwrite"),
        (os, "fsync"),
        (Path, "replace"),
        (Path, "rename"),
        (Path, "unlink"),
        (shutil, "rmtree"),
    ):
        setattr(owner, name, counted(getattr(owner, name)))
    packed(spec, cache, 1)
    os._exit(calls)


def test_killed_at_any_moment_and_run_again_gives_the_same_bytes(whole, tmp_path):
    """Five random places, and each of the last twelve, where index, marks and names change."""
    expected, source = whole
    spec = make_spec(source)
    calls = in_child(killed_at, 0, spec, tmp_path / "dry")
    places = [*random.Random(5).sample(range(1, calls - 12), 5), *range(calls - 11, calls + 1)]
    assert calls > 80
    for place in places:
        cache = tmp_path / str(place)
        assert in_child(killed_at, place, spec, cache) == -signal.SIGKILL
        assert contents(spec.pack(cache)) == expected
        left = {path.name for path in cache.iterdir()} - {spec.folder(cache).name}
        assert left <= {
            f".building-{spec.folder(cache).name}.lock"
        }  # killed between the rename and the removal of the lock


def test_killed_at_ten_random_times_in_a_row(whole, tmp_path):
    expected, source = whole
    clock = random.Random(7)

    def slow(path):
        time.sleep(0.004)
        return decode(path)

    spec, kills = make_spec(source, decode=slow), 0
    for _ in range(10):
        child = FORK.Process(target=packed, args=(spec, tmp_path / "cache", 2))
        child.start()
        child.join(clock.uniform(0.01, 0.12))
        child.kill()
        child.join()
        kills += child.exitcode == -signal.SIGKILL
    assert kills == 10
    assert contents(make_spec(source).pack(tmp_path / "cache")) == expected


def test_what_is_finished_is_kept_and_what_is_damaged_is_made_again(whole, tmp_path):
    expected, source = whole

    def dying(path):
        if path.stem == "100":
            os.kill(os.getpid(), signal.SIGKILL)
        return decode(path)

    assert in_child(packed, make_spec(source, decode=dying), tmp_path, 1) == -signal.SIGKILL
    (left,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert left.name == f".building-{make_spec(source).folder(tmp_path).name}"
    assert len(list((left / "shards").iterdir())) == 5
    with (left / "image.npy").open("r+b") as file:  # a byte of shard 1
        file.seek(-36 * (COUNT - 30), os.SEEK_END)
        file.write(bytes([file.read(1)[0] ^ 1]))
    (left / "shards" / "000003.npz").write_bytes(b"half")
    seen = []

    def watched(path):
        seen.append(int(path.stem))
        return decode(path)

    with packing() as made:
        assert contents(make_spec(source, decode=watched).pack(tmp_path)) == expected
    assert sorted(seen) == [*range(20, 40), *range(60, 80), *range(100, 150)]
    assert (made.packs[0].made, made.packs[0].samples) == (90, 150)


def test_crops_go_on_with_the_tiles_that_are_missing(tmp_path, layouts):
    layouts.vaihingen(tmp_path / "V", ("1", "11", "2"), ((61, 83), (20, 37), (45, 52)))
    dataset = Vaihingen(str(tmp_path / "V"), gsd="native", labels_train="full")
    listing = dataset.listing()
    tiles = [*listing.train, *listing.test]
    spec = CropPack("v", tiles, listing.folder, "train", 32, 0, 3, "uint8", 5, dataset.settings())
    expected, opened = contents(spec.pack(tmp_path / "whole")), []

    def watched(tile, last):
        def open_tile():
            opened.append(tile.id)
            if tile.id == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return tile.open()

        return replace(tile, open=open_tile)

    def work():
        with packing(threads=1):
            replace(spec, tiles=[watched(tile, "2") for tile in tiles]).pack(tmp_path / "cache")

    assert in_child(work) == -signal.SIGKILL
    again = replace(spec, tiles=[watched(tile, None) for tile in tiles])
    assert contents(again.pack(tmp_path / "cache")) == expected
    assert opened == ["2"]


# Several processes ----------------------------------------------------------------------------------------------------


def together(work, count=3):
    children = [FORK.Process(target=work) for _ in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    return [child.exitcode for child in children]


def test_of_three_processes_one_packs_and_the_others_wait(whole, tmp_path, capfd):
    expected, source = whole
    log = tmp_path / "log"

    def slow(path):
        time.sleep(0.002)
        with log.open("a") as file:
            file.write(f"{path.stem}\n")
        return decode(path)

    spec = make_spec(source, decode=slow)
    assert together(lambda: spec.pack(tmp_path / "cache")) == [0, 0, 0]
    assert len(log.read_text().splitlines()) == COUNT
    assert contents(spec.folder(tmp_path / "cache")) == expected
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert "numbers is being packed by another process; waiting for it" in capfd.readouterr().err


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_each_process_packs_for_itself(whole, tmp_path, monkeypatch, code):
    expected, source = whole
    gate = FORK.Barrier(3)

    def none(*_):
        raise OSError(code, os.strerror(code))

    def slow(path):
        if path.stem == "0":
            gate.wait(30)  # nobody goes on before all three are packing
        return decode(path)

    monkeypatch.setattr(fcntl, "flock", none)
    spec = make_spec(source, decode=slow)
    assert together(lambda: spec.pack(tmp_path / "cache")) == [0, 0, 0]
    assert contents(spec.folder(tmp_path / "cache")) == expected
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_remains_of_other_packs_go_when_they_are_old(whole, tmp_path):
    _, source = whole
    names = {"old": 0, "young": time.time(), "busy": 0}
    for name in names:
        (tmp_path / f".building-{name}").mkdir()
        (tmp_path / f".building-{name}.lock").touch()
    for name, stamp in names.items():
        for path in tmp_path.glob(f".building-{name}*"):
            os.utime(path, (stamp, stamp))
    with (tmp_path / ".building-busy.lock").open() as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        made = make_spec(source).pack(tmp_path)
    kept = {".building-young", ".building-young.lock", ".building-busy", ".building-busy.lock"}
    assert {path.name for path in tmp_path.iterdir()} == {made.name} | kept


# A full disk ----------------------------------------------------------------------------------------------------------


def limited(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def refused(pipe, spec, cache, prepare):
    prepare()
    try:
        packed(spec, cache, 1)
    except DataError as error:
        pipe.send(str(error))


def message_of(spec, cache, prepare):
    ours, theirs = FORK.Pipe()
    assert in_child(refused, theirs, spec, cache, prepare) == 0
    assert ours.poll()
    return ours.recv()


def test_too_little_space_is_noticed_before_anything_is_decoded(whole, tmp_path):
    _, source = whole

    def never(path):
        raise AssertionError("decoded")

    message = message_of(make_spec(source, decode=never), tmp_path / "cache", lambda: limited(4000))
    assert f"{tmp_path / 'cache'}: cannot write the pack" in message
    assert "ulimit -f" in message
    assert "needs 6.6 kB and" in message
    assert message.endswith("free space, or set cache_dir or FEDRS_CACHE")
    assert list((tmp_path / "cache").iterdir()) == []


def no_reservation(*_):
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def test_a_file_system_that_reserves_nothing_is_asked_what_is_free(whole, tmp_path, monkeypatch):
    _, source = whole
    monkeypatch.setattr(os, "posix_fallocate", no_reservation)
    monkeypatch.setattr(shards.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6 - 500, 500))
    with pytest.raises(
        DataError, match=r"No space left on device.*needs 6\.6 kB and 0\.5 kB are free; free space, or set cache_dir"
    ):
        make_spec(source).pack(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_disk_that_fills_up_later_leaves_whole_shards_only(whole, tmp_path):
    expected, source = whole

    def full():
        os.posix_fallocate = no_reservation
        limited(128 + 36 * 70)  # in the middle of shard 3

    spec = make_spec(source)
    message = message_of(spec, tmp_path, full)
    assert "cannot write the pack" in message
    assert message.endswith("what is finished is kept for the next run")
    (left,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert [path.name for path in sorted((left / "shards").iterdir())] == ["000000.npz", "000001.npz", "000002.npz"]
    assert not spec.folder(tmp_path).exists()
    with packing() as made:
        assert contents(spec.pack(tmp_path)) == expected
    assert made.packs[0].made == COUNT - 60


def test_other_refusals_of_the_disk_are_named(whole, tmp_path, monkeypatch):
    _, source = whole

    def broken(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", broken)
    with pytest.raises(DataError, match=r"(image|part)\.npy: cannot write the pack \(Input/output error\)"):
        make_spec(source).pack(tmp_path)


# Looking again --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: flip(folder / "part.npy", -8 * 5), "shard 7 (samples 140 to 149): part.npy"),
        (lambda folder: os.truncate(folder / "image.npy", 500), "shard 0 (samples 0 to 19): image.npy"),
        (lambda folder: flip(folder / "image.npy", 5), "shard 0 (samples 0 to 19): image.npy"),
        (lambda folder: flip(folder / "image.moments.npy", -9), "image.moments.npy holds other values"),
        (lambda folder: (folder / "part.moments.npy").unlink(), "part.moments.npy cannot be read"),
        (lambda folder: (folder / "index.json").write_text("{}"), "index.json: arrays must be a mapping, got None"),
    ],
)
def test_verification_names_what_is_damaged(whole, tmp_path, damage, message):
    _, source = whole
    folder = make_spec(source).pack(tmp_path)
    assert shards.damages(folder) == []
    damage(folder)
    assert message in shards.damages(folder)[0]
    with packing(verify=True) as made:
        assert make_spec(source).pack(tmp_path) == folder
    assert message in made.packs[0].damages[0]


def flip(path, place):
    with path.open("r+b") as file:
        file.seek(place, os.SEEK_END if place < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 255]))


def test_verification_makes_nothing(whole, tmp_path):
    _, source = whole
    with packing(verify=True) as made:
        make_spec(source).pack(tmp_path / "cache")
    assert made.packs[0].damages == ["is not packed yet, or the source changed"]
    assert not (tmp_path / "cache").exists()


def test_the_digest_is_that_of_the_content(whole, tmp_path):
    _, source = whole
    one = Pack(make_spec(source).pack(tmp_path))
    other = Pack(make_spec(source, settings={"kind": "named otherwise"}).pack(tmp_path))
    assert one.folder != other.folder
    assert one.digest == other.digest
    assert np.array_equal(one.mapped["image"].array, other.mapped["image"].array)
