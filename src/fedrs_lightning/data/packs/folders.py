"""Pack folders of the cache: interrupted ones are taken up again, finished ones appear by one rename.

A pack that exists is whole, whoever else packs at the same time and whatever was interrupted. In the making it is a
folder `.building-<its name>`, which a lock gives to one process at a time.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from fedrs_lightning.data.packs.shards import FULL, Plan, damages, make
from fedrs_lightning.errors import DataError

BUILDING = ".building-"
STALE_SECONDS = 3 * 24 * 3600.0
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@dataclass
class Pack:
    """What became of one pack: how many samples were made now, in seconds, and what is wrong where it was checked."""

    folder: Path
    samples: int
    nbytes: int
    made: int = 0
    seconds: float = 0.0
    damages: list[str] = field(default_factory=list)


@dataclass
class Orders:
    """How packs are made, or with `verify` only checked, and what became of them in the order they were asked for."""

    threads: int | None = None
    verify: bool = False
    packs: list[Pack] = field(default_factory=list)


_ORDERS: ContextVar[Orders | None] = ContextVar("orders", default=None)


@contextmanager
def packing(threads: int | None = None, verify: bool = False) -> Iterator[Orders]:
    """Whatever is packed in the body follows these orders, however deep below a data set packs."""
    orders = Orders(threads, verify)
    token = _ORDERS.set(orders)
    try:
        yield orders
    finally:
        _ORDERS.reset(token)


def ordered() -> bool:
    """Whether `packing` gives orders now, so that the packs themselves are what is wanted, and no run."""
    return _ORDERS.get() is not None


def cache_folder(given: str | os.PathLike[str] | None) -> Path:
    """Where packs are kept: the argument, else `$FEDRS_CACHE`, else our folder in the platform's cache folder."""
    if given is None:
        given = os.environ.get("FEDRS_CACHE") or None
    if given is not None:
        return Path(given).expanduser()
    platform = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return Path(platform or Path.home() / ".cache") / "fedrs-lightning"


def build(current: Callable[[], Path], name: str, plan: Plan, threads: int | None = None) -> Path:
    """Make a pack folder if it does not exist yet.

    Args:
        current: the folder that belongs to the source as it is now; it must not change while it is packed.
        name: of what is packed, for messages.
        plan: what the folder holds.
        threads: at a time, unless orders say otherwise; None takes one a core.

    Raises:
        DataError: what `plan.fill` raises; the source changed meanwhile; or the cache cannot be written. What is
            finished stays for the next run only in the last case.
    """
    orders = _ORDERS.get() or Orders()
    final, start = current(), time.monotonic()
    pack = Pack(final, plan.count, plan.count * plan.bytes_each)
    orders.packs.append(pack)
    if orders.verify:
        absent = ["is not packed yet, or the source changed"]
        pack.damages = damages(final, orders.threads) if final.is_dir() else absent
        return final
    cache = final.parent
    try:
        if not final.is_dir():
            cache.mkdir(parents=True, exist_ok=True)
            _remove_stale(cache, final)
            with _building(final, name) as folder:
                if folder is not None:
                    pack.made = _make(folder, final, current, name, plan, orders.threads or threads)
    except OSError as error:
        remedy = "free space, or set cache_dir or FEDRS_CACHE"
        if error.errno not in FULL:
            text = f"{error.filename or cache}: cannot write the pack ({error.strerror}); {remedy}"
            raise DataError(text) from None
        reason = "a file would be larger than the file system or ulimit -f allows"
        reason = reason if error.errno == errno.EFBIG else str(error.strerror)
        sizes = f"{final.name} needs {size(pack.nbytes)} and {size(shutil.disk_usage(cache).free)} are free"
        kept = "; what is finished is kept for the next run" if (cache / f"{BUILDING}{final.name}").is_dir() else ""
        raise DataError(f"{cache}: cannot write the pack ({reason}): {sizes}; {remedy}{kept}") from None
    pack.seconds = time.monotonic() - start
    return final


def _make(folder: Path, final: Path, current: Callable[[], Path], name: str, plan: Plan, threads: int | None) -> int:
    try:
        made = make(folder, plan, threads, f"packing {name}")
        if current() != final:
            raise DataError(f"{final.parent}: the source of {name} changed while it was packed; run the command again")
    except DataError:
        shutil.rmtree(folder, ignore_errors=True)  # a file that was mended, or a source that changed, is another pack
        raise
    try:
        folder.rename(final)
    except OSError:
        if not final.is_dir():  # where there are no locks, another process may have finished the same pack first
            raise
    return made


def size(count: float) -> str:
    """Bytes in words."""
    factor, unit = next((pair for pair in ((1e9, "GB"), (1e6, "MB")) if count >= pair[0]), (1e3, "kB"))
    return f"{count / factor:,.1f} {unit}"


@contextmanager
def _building(final: Path, name: str) -> Iterator[Path | None]:
    """A folder in which only this process works; None when another one finished the pack meanwhile."""
    folder, lock = final.with_name(f"{BUILDING}{final.name}"), final.with_name(f"{BUILDING}{final.name}.lock")
    with _locked(lock, f"{name} is being packed by another process; waiting for it") as locked:
        if final.is_dir():
            yield None
            return
        if not locked:
            folder = final.with_name(f"{BUILDING}{final.name}-{uuid.uuid4().hex[:12]}")
        folder.mkdir(exist_ok=True)
        try:
            yield folder
        finally:
            if not locked:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(path: Path, waiting: str | None) -> Iterator[bool]:
    """Hold the lock; False where the file system has none.

    `waiting` is said while another process has it; None raises Timeout instead of waiting.
    """
    lock = FileLock(path, fallback_to_soft=False)  # a soft lock would outlive a process that was killed elsewhere
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            if waiting is None:
                raise
            print(waiting, file=sys.stderr, flush=True)
            lock.acquire()
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        yield lock.is_locked
    finally:
        path.unlink(missing_ok=True)  # before it is let go: who waits for it sees that, and makes another
        lock.release()


def _remove_stale(cache: Path, final: Path) -> None:
    """Remove what interrupted runs of other packs left behind long ago; one that is running is younger, or locked."""
    own = f"{BUILDING}{final.name}"
    for path in cache.glob(f"{BUILDING}*"):
        with suppress(FileNotFoundError, Timeout):  # its owner may have just renamed it, or is at work
            if path.name.removesuffix(".lock") != own and time.time() - path.stat().st_mtime > STALE_SECONDS:
                with _locked(path.with_name(path.name.removesuffix(".lock") + ".lock"), None):
                    shutil.rmtree(path, ignore_errors=True)
