"""Build folders of the cache: each appears by one rename of a finished folder.

A pack that exists is whole, whoever else packs at the same time and whatever was interrupted.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedrs_lightning.errors import DataError

STALE_SECONDS = 24 * 3600.0


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
