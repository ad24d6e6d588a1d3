"""Decode images once into a memory-mapped array, so that a batch is one gather.

A pack is a folder of the cache, named by a hash over the source files (relative paths, sizes, modification times), the
decode settings and the format version. A changed source or setting is another pack. It appears by one rename of a
finished folder: a pack that exists is whole, whoever else packs at the same time and whatever was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from fedrs_lightning.errors import DataError, RunError
from fedrs_lightning.files import read_json
from fedrs_lightning.types import Batch

FORMAT = 1
CHUNK = 64  # images of one work item
STALE_SECONDS = 24 * 3600.0
_GATHERED_AS = {np.dtype(np.uint8): np.dtype(np.uint8), np.dtype(np.uint16): np.dtype(np.int16)}


@dataclass(frozen=True)
class SourceFile:
    """One image file of a source folder.

    Attributes:
        id: path relative to the folder, with `/`; the sample's id.
        path: where it lies.
        label: class of the sample.
    """

    id: str
    path: Path
    label: int


@dataclass(frozen=True)
class PackSpec:
    """What is packed, and how.

    Attributes:
        name: start of the pack folder's name, such as `eurosat-rgb`.
        files: in sample order.
        shape: of each decoded image, [C, H, W].
        dtype: `uint8` or `uint16`.
        settings: everything that decides the decoded values, as plain JSON values.
        decode: path to array of `shape` and `dtype`; raises DataError naming the file.
    """

    name: str
    files: Sequence[SourceFile]
    shape: tuple[int, int, int]
    dtype: str
    settings: dict[str, Any]
    decode: Callable[[Path], np.ndarray]


class PackedSource:
    """Samples of a pack: `image` and `label` by global index.

    Attributes:
        images: [N, C, H, W] memory map (uint8, or uint16).
        labels: int64 [N].
        moments: int64 [N, 2, C], sum and sum of squares over each image's pixels.
        digest: SHA-256 of the image bytes.
        sample_ids: id of each sample.
    """

    def __init__(self, folder: Path) -> None:
        try:
            index = read_json(folder / "index.json")
        except RunError as error:
            raise DataError(f"{folder}: the pack is damaged ({error}); delete this folder, it is made again") from None
        self.folder, self.digest, self.sample_ids = folder, str(index["sha256"]), tuple(index["sample_ids"])
        try:
            # Copy on write: torch wants writable memory, the file stays untouched.
            self.images: np.ndarray = np.load(folder / "images.npy", mmap_mode="c", allow_pickle=False)
            self.moments: np.ndarray = np.load(folder / "moments.npy", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{folder}: the pack is damaged ({error}); delete this folder, it is made again") from None
        expected = (len(self.sample_ids), *index["shape"])
        if self.images.shape != expected or str(self.images.dtype) != index["dtype"] or len(self.moments) != len(self.sample_ids):
            raise DataError(f"{folder}: the pack is damaged (images {self.images.shape}); delete this folder, it is made again")
        self.labels = torch.tensor(index["labels"], dtype=torch.int64)
        # index_select knows no uint16; moving bits as int16 is the same.
        self._bits = torch.from_numpy(self.images.view(_GATHERED_AS[self.images.dtype]))

    def __len__(self) -> int:
        return len(self.labels)

    def gather(self, indices: np.ndarray | Tensor, *, pin_memory: bool = False) -> Batch:
        """`image` [B, C, H, W] as stored and `label` int64 [B] of the given samples, in their order."""
        wanted = torch.as_tensor(indices, dtype=torch.int64)
        image = torch.empty((len(wanted), *self._bits.shape[1:]), dtype=self._bits.dtype, pin_memory=pin_memory)
        torch.index_select(self._bits, 0, wanted, out=image)
        label = self.labels[wanted]
        if pin_memory:
            label = label.pin_memory()
        return {"image": image.view(torch.uint16) if image.dtype == torch.int16 else image, "label": label}

    def mean_std(self, indices: np.ndarray) -> tuple[list[float], list[float]]:
        """Mean and (population) standard deviation of each channel over the samples, in stored units.

        From exact integer sums, so the order of samples does not matter.
        """
        return mean_std(len(indices) * int(np.prod(self.images.shape[2:])), exact_sums(self.moments[indices]))


def exact_sums(moments: np.ndarray) -> list[list[int]]:
    """Sum of int64 moments [N, 2, C] over N without overflow."""
    sums = [[0] * moments.shape[2] for _ in range(2)]
    for start in range(0, len(moments), 1024):  # int64 holds 1024 crops of uint16; Python integers hold the rest
        part = moments[start : start + 1024].sum(axis=0)
        sums = [[old + int(new) for old, new in zip(*rows, strict=True)] for rows in zip(sums, part.tolist(), strict=True)]
    return sums


def mean_std(count: int, sums: list[list[int]]) -> tuple[list[float], list[float]]:
    """Mean and (population) deviation of each channel from the sums and sums of squares of `count` pixels."""
    mean = [first / count for first in sums[0]]
    std = [((count * second - first * first) ** 0.5) / count for first, second in zip(*sums, strict=True)]
    return mean, std


def cache_folder(given: str | os.PathLike[str] | None) -> Path:
    """Where packs are kept: the argument, else `$FEDRS_CACHE`, else `fedrs-lightning` in the platform's cache folder."""
    if given is not None:
        return Path(given).expanduser()
    if os.environ.get("FEDRS_CACHE"):
        return Path(os.environ["FEDRS_CACHE"]).expanduser()
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "fedrs-lightning"
    if os.name == "nt" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "fedrs-lightning"
    return Path.home() / ".cache" / "fedrs-lightning"


def fingerprint(files: Sequence[SourceFile]) -> str:
    """SHA-256 over the sorted relative paths with sizes and modification times."""
    lines = []
    for file in files:
        try:
            status = file.path.stat()
        except OSError as error:
            raise DataError(f"{file.path}: cannot be read ({error.strerror}); check the file and its permissions") from None
        lines.append(f"{file.id}\x1f{status.st_size}\x1f{status.st_mtime_ns}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def pack_folder(spec: PackSpec, cache: Path) -> Path:
    """Folder of the pack that belongs to the source as it is now; it may not exist yet."""
    key = {
        "format": FORMAT,
        "source": fingerprint(spec.files),
        "labels": [file.label for file in spec.files],
        "shape": spec.shape,
        "dtype": spec.dtype,
        "settings": spec.settings,
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache / f"{spec.name}-{digest[:20]}"


def pack(spec: PackSpec, cache: Path) -> Path:
    """Make the pack if it does not exist yet.

    Returns:
        Its folder.

    Raises:
        DataError: the first file, in sample order, that cannot be decoded; or the cache cannot be written.
    """
    return build(pack_folder(spec, cache), spec.name, lambda: fingerprint(spec.files), lambda folder: _write(spec, folder))


def build(final: Path, name: str, state: Callable[[], str], write: Callable[[Path], None]) -> Path:
    """Make a pack folder if it does not exist yet, by one rename of a finished one.

    Args:
        final: the folder, in the cache.
        name: of what is packed, for messages.
        state: fingerprint of the source; it must not change while it is packed.
        write: fills a folder.

    Raises:
        DataError: what `write` raises; the source changed meanwhile; or the cache cannot be written.
    """
    if final.is_dir():
        return final
    cache = final.parent
    building = cache / f".building-{final.name}-{uuid.uuid4().hex[:12]}"
    try:
        building.mkdir(parents=True)
        _remove_stale(cache, final.name)
        before = state()
        write(building)
        if state() != before:
            raise DataError(f"{cache}: the source of {name} changed while it was packed; run the command again")
        try:
            building.rename(final)
        except OSError:
            if not final.is_dir():  # another process finished the same pack first: the same content
                raise
    except OSError as error:
        place = error.filename or cache
        raise DataError(f"{place}: cannot write the pack ({error.strerror}); free space, or set cache_dir or FEDRS_CACHE") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return final


def _write(spec: PackSpec, folder: Path) -> None:
    count, channels = len(spec.files), spec.shape[0]
    images = np.lib.format.open_memmap(folder / "images.npy", mode="w+", dtype=np.dtype(spec.dtype), shape=(count, *spec.shape))
    moments = np.empty((count, 2, channels), dtype=np.int64)

    def fill(start: int) -> int:
        stop = min(start + CHUNK, count)
        for number in range(start, stop):
            images[number] = spec.decode(spec.files[number].path)
        wide = images[start:stop].astype(np.int64)
        moments[start:stop, 0] = wide.sum(axis=(2, 3))
        moments[start:stop, 1] = np.square(wide).sum(axis=(2, 3))
        return stop - start

    in_threads(fill, range(0, count, CHUNK), 16, f"packing {spec.name}", count)
    images.flush()
    digest = hashlib.sha256()
    for start in range(0, count, 1024):
        digest.update(images[start : start + 1024].data)
    np.save(folder / "moments.npy", moments, allow_pickle=False)
    index = {
        "format": FORMAT,
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "settings": spec.settings,
        "source": fingerprint(spec.files),
        "sha256": digest.hexdigest(),
        "labels": [file.label for file in spec.files],
        "sample_ids": [file.id for file in spec.files],
    }
    (folder / "index.json").write_text(json.dumps(index) + "\n", encoding="utf-8")
    flush_folder(folder)


def flush_folder(folder: Path) -> None:
    """Put every file of a finished pack on the disk before it gets its name."""
    for path in folder.iterdir():
        with path.open("rb") as handle:
            os.fsync(handle.fileno())


def in_threads(work: Callable[[int], int], items: Iterable[int], threads: int, title: str, total: int) -> None:
    """Do all items, each giving the number of steps it stands for, with a progress bar.

    Threads, as the decoders release the interpreter lock. Results are awaited in order, so the first faulty file in
    sample order is the one that is named.
    """
    with ThreadPoolExecutor(max_workers=min(threads, os.cpu_count() or 1)) as pool, progress_bar() as progress:
        bar = progress.add_task(title, total=total)
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in futures:
                progress.advance(bar, future.result())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def progress_bar() -> Progress:
    """A bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


def _remove_stale(cache: Path, name: str) -> None:
    """Remove what interrupted runs left behind; a running one is younger."""
    for folder in cache.glob(f".building-{name}-*"):
        with suppress(FileNotFoundError):  # its owner may have just renamed it
            if time.time() - folder.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
