"""The files of a pack: arrays that are written shard by shard, each shard with its hash.

An array is one .npy file over all samples, so that readers map it whole. A shard is a range of samples: once its bytes
are on the disk, a small file beside the arrays (its mark) says so and holds the hash of each array's bytes. Work that
was interrupted goes on with the shards that have no mark, after the others were compared with their hashes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrs_lightning.data.packs.fields import Field
from fedrs_lightning.data.packs.index import UNREADABLE, PackIndex, read_index
from fedrs_lightning.errors import DataError
from fedrs_lightning.files import atomic_path, write_text
from fedrs_lightning.progress import Meter, in_threads

READ = 8 * 2**20  # bytes
MARKS = "shards"
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
_RESERVES_NOT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)

Put = Callable[[str, int, np.ndarray], None]
"""`put(array, first, values [n, *shape])` writes samples `first` to `first + n - 1` of an array."""


@dataclass(frozen=True)
class Plan:
    """What a pack holds and how it is made.

    Attributes:
        arrays: of each sample; readers map these files.
        tables: small values of each sample, such as sums over its pixels; readers load these files.
        bounds: first sample of each shard, and the number of samples.
        fill: `fill(first, stop, put)` writes the arrays of these samples with `put`, each sample once, and gives their
            rows of each table. Called from many threads.
        about: what else the index says, plain JSON values.
        step: samples of one call of `fill`; None makes a shard in one call.
    """

    arrays: Mapping[str, Field]
    tables: Mapping[str, Field]
    bounds: Sequence[int]
    fill: Callable[[int, int, Put], Mapping[str, np.ndarray]]
    about: dict[str, Any]
    step: int | None = None

    @property
    def count(self) -> int:
        """Samples."""
        return self.bounds[-1]

    @property
    def bytes_each(self) -> int:
        """Bytes of a sample in all arrays."""
        return sum(field.nbytes for field in self.arrays.values())


class _Shard:
    """Samples `first` to `stop - 1`, which are being made: their rows of each table, the hash of each array's bytes."""

    def __init__(self, plan: Plan, number: int, folder: Path) -> None:
        self.first, self.stop = plan.bounds[number : number + 2]
        self.mark = folder / MARKS / f"{number:06d}.npz"
        count, tables = self.stop - self.first, plan.tables.items()
        self.tables = {name: np.zeros((count, *entry.shape), entry.dtype) for name, entry in tables}
        self.sha256: dict[str, str] = {}
        self.left = 0  # calls of `fill` that are not done

    def entry(self) -> dict[str, Any]:
        """What marks and index say."""
        return {"first": self.first, "stop": self.stop, "sha256": self.sha256}

    def save_mark(self) -> None:
        """Say on the disk that the shard is there."""
        with atomic_path(self.mark, durable=True) as path, path.open("wb") as handle:
            content: dict[str, Any] = {
                "shard": np.frombuffer(json.dumps(self.entry()).encode(), np.uint8),
                **self.tables,
            }
            np.savez(handle, **content)

    def read_mark(self) -> bool:
        """Whether the shard has a mark that fits; what it says is put into the shard."""
        try:
            with np.load(self.mark, allow_pickle=False) as mark:
                entry = json.loads(mark["shard"].tobytes())
                tables = {name: mark[name] for name in self.tables}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return False
        expected, found = ([(own.shape, own.dtype) for own in each.values()] for each in (self.tables, tables))
        if (entry["first"], entry["stop"]) != (self.first, self.stop) or found != expected:
            return False
        self.tables, self.sha256 = tables, entry["sha256"]
        return True


class ArrayFile:
    """An array of a pack in the making, by plain reads and writes: dirty pages of a map would count as memory."""

    def __init__(self, path: Path, entry: Field, count: int) -> None:
        self.path, self.each, self.bytes = path, entry.nbytes, entry.nbytes * count
        self.handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with path.open("r+b") as header:
            descr = np.lib.format.dtype_to_descr(np.dtype(entry.dtype))
            shape = (count, *entry.shape)
            np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
            self.offset = header.tell()

    def reserve(self) -> bool:
        """Take the space for all samples on the disk; False where the file system cannot."""
        if not hasattr(os, "posix_fallocate"):
            return False
        try:
            os.posix_fallocate(self.handle, 0, self.offset + self.bytes)
        except OSError as error:
            if error.errno in _RESERVES_NOT:
                return False
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        return True

    def missing(self) -> int:
        """Bytes that are not on the disk yet."""
        return max(0, self.offset + self.bytes - os.fstat(self.handle).st_blocks * 512)

    def put(self, first: int, values: np.ndarray) -> None:
        """Write samples from number `first` on."""
        content, place = np.ascontiguousarray(values).data.cast("B"), self.offset + first * self.each
        try:
            while content:
                written = os.pwrite(self.handle, content, place)
                content, place = content[written:], place + written
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def sha256(self, first: int, stop: int) -> str:
        """Hash of the bytes of samples `first` to `stop - 1`."""
        return _sha256(self.handle, self.offset + first * self.each, (stop - first) * self.each)


def make(folder: Path, plan: Plan, threads: int | None, title: str) -> int:
    """Make the shards that are not there, then tables and index; gives how many samples were made and not found.

    Raises:
        DataError: what `plan.fill` raises.
        OSError: a file cannot be written; names it.
    """
    for left in folder.glob(".*.tmp"):
        left.unlink()
    if (folder / "index.json").exists():  # it was interrupted at the very end
        shutil.rmtree(folder / MARKS, ignore_errors=True)
        if not damages(folder, threads):
            return 0
        (folder / "index.json").unlink()
    with ExitStack() as stack:
        arrays = {name: ArrayFile(folder / f"{name}.npy", entry, plan.count) for name, entry in plan.arrays.items()}
        for array in arrays.values():
            stack.callback(os.close, array.handle)
        _reserve(folder, arrays.values())
        shards = [_Shard(plan, number, folder) for number in range(len(plan.bounds) - 1)]
        missing = _missing(plan, shards, arrays, threads)
        steps = []
        for shard in missing:
            starts = range(shard.first, shard.stop, plan.step or max(1, shard.stop - shard.first))
            steps += [(shard, start, min(start + starts.step, shard.stop)) for start in starts]
            shard.left = len(starts)
        lock = threading.Lock()

        def put(name: str, first: int, values: np.ndarray) -> None:
            arrays[name].put(first, values)

        def work(step: tuple[_Shard, int, int]) -> int:
            shard, first, stop = step
            for name, rows in plan.fill(first, stop, put).items():
                shard.tables[name][first - shard.first : stop - shard.first] = rows
            with lock:
                shard.left -= 1
                whole = shard.left == 0
            if whole:
                for name, array in arrays.items():
                    os.fsync(array.handle)
                    shard.sha256[name] = array.sha256(shard.first, shard.stop)
                shard.save_mark()
            return stop - first

        todo = sum(shard.stop - shard.first for shard in missing)
        in_threads(work, steps, threads, Meter(title, plan.count, plan.count - todo, plan.bytes_each))
        for array in arrays.values():
            os.fsync(array.handle)
    _conclude(folder, plan, shards)
    return todo


def _reserve(folder: Path, arrays: Iterable[ArrayFile]) -> None:
    """Find a disk that is too small at once, and not hours later.

    Raises:
        OSError: see `FULL`; where nothing was made yet, what was taken is given back.
    """
    try:
        missing = sum(array.missing() for array in arrays if not array.reserve())
        if missing > shutil.disk_usage(folder).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    except OSError as error:
        if error.errno in FULL and not (folder / MARKS).is_dir():
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _missing(plan: Plan, shards: list[_Shard], arrays: Mapping[str, ArrayFile], threads: int | None) -> list[_Shard]:
    """Shards that have no mark, or other bytes than it says. What marks hold is put into the others."""
    marked = [shard for shard in shards if shard.read_mark()]
    whole: set[_Shard] = set()

    def compare(shard: _Shard) -> int:
        if shard.sha256 == {name: array.sha256(shard.first, shard.stop) for name, array in arrays.items()}:
            whole.add(shard)
        return shard.stop - shard.first

    if marked:
        total = sum(shard.stop - shard.first for shard in marked)
        in_threads(compare, marked, threads, Meter("checking what an interrupted run left", total, 0, plan.bytes_each))
    missing = [shard for shard in shards if shard not in whole]
    for shard in missing:
        shard.mark.unlink(missing_ok=True)
    return missing


def _conclude(folder: Path, plan: Plan, shards: Sequence[_Shard]) -> None:
    """Write tables and index; the marks have served."""
    hashes = {}
    for name, entry in plan.tables.items():
        table = np.concatenate([np.empty((0, *entry.shape), entry.dtype), *(shard.tables[name] for shard in shards)])
        with atomic_path(folder / f"{name}.npy", durable=True) as path, path.open("wb") as handle:
            np.save(handle, table, allow_pickle=False)
        hashes[name] = hashlib.sha256(table.tobytes()).hexdigest()
    digest = hashlib.sha256()
    for shard in shards:
        for name in plan.arrays:
            digest.update(bytes.fromhex(shard.sha256[name]))
    arrays = {name: asdict(entry) for name, entry in plan.arrays.items()}
    index = plan.about | {"arrays": arrays, "tables": hashes, "shards": [shard.entry() for shard in shards]}
    index["sha256"] = digest.hexdigest()
    write_text(folder / "index.json", json.dumps(index) + "\n", durable=True)
    shutil.rmtree(folder / MARKS, ignore_errors=True)


def damages(folder: Path, threads: int | None = None) -> list[str]:
    """What is wrong with a finished pack: shards whose bytes are not those of the index, tables and index themselves.

    Every byte is read, and a bar shows how far. An empty list says that the pack is whole.
    """
    try:
        index = read_index(folder)
    except DataError as error:
        return [str(error).removeprefix(f"{folder}: ")]
    size = sum(entry.nbytes for entry in index.arrays.values())
    return damages_of(folder, index, threads, Meter(f"checking {folder.name}", index.count, 0, size))


def damages_of(folder: Path, index: PackIndex, threads: int | None = None, meter: Meter | None = None) -> list[str]:
    """As `damages`, of a pack whose index was read; without a meter nothing is shown."""
    damaged: dict[int, str] = {}

    def compare(number: int) -> int:
        shard = index.shards[number]
        first, stop = shard.first, shard.stop
        own = index.arrays.items()
        hashes = {name: _stored(folder / f"{name}.npy", entry, index.count, first, stop) for name, entry in own}
        if wrong := [f"{name}.npy" for name, found in hashes.items() if found != shard.sha256[name]]:
            damaged[number] = f"shard {number} (samples {first} to {stop - 1}): {', '.join(wrong)}"
        return stop - first

    if meter is None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(compare, range(len(index.shards))))
    else:
        in_threads(compare, range(len(index.shards)), threads, meter)
    lines = [damaged[number] for number in sorted(damaged)]
    for name, expected in index.tables.items():
        try:
            table = read_table(folder / f"{name}.npy")
        except UNREADABLE as error:
            lines.append(f"{name}.npy cannot be read ({error})")
        else:
            if hashlib.sha256(table.tobytes()).hexdigest() != expected:
                lines.append(f"{name}.npy holds other values")
    return lines


def read_table(path: Path) -> np.ndarray:
    """A table of a pack.

    Raises:
        OSError, ValueError: it cannot be read, or is not as long as its header says.
    """
    with path.open("rb") as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("has another format")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        left = path.stat().st_size - file.tell()
        if dtype != np.int64 or math.prod(shape) * 8 != left:
            raise ValueError("is no table of its length")
        return np.frombuffer(file.read(), np.int64).reshape(shape)


def _stored(path: Path, entry: Field, count: int, first: int, stop: int) -> str:
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file) if version == (1, 0) else ((), False, None)
            if shape != (count, *entry.shape) or dtype != np.dtype(entry.dtype):
                return ""
            return _sha256(file.fileno(), file.tell() + first * entry.nbytes, (stop - first) * entry.nbytes)
    except UNREADABLE:
        return ""


def _sha256(handle: int, place: int, length: int) -> str:
    digest, end = hashlib.sha256(), place + length
    while place < end:
        block = os.pread(handle, min(READ, end - place), place)
        if not block:
            return ""  # the file ends too early
        digest.update(block)
        place += len(block)
    return digest.hexdigest()
