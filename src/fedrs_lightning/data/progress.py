"""How far long work is: a bar on a terminal, a line a minute in a log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

EVERY = 60.0  # seconds between lines of a log
THREADS = 16  # at most, unless more are asked for

Item = TypeVar("Item")


class Meter:
    """Counts samples that are done, and shows rate and remaining time.

    Args:
        title: what is done.
        total: samples.
        done: of them before this run; they count for the share, not for the rate.
        bytes_each: of a sample, for megabytes a second; 0 shows none.
        unit: of what is counted.
    """

    def __init__(self, title: str, total: int, done: int = 0, bytes_each: float = 0.0, unit: str = "samples") -> None:
        console = Console(stderr=True)
        self.title, self.total, self.before, self.done, self.bytes_each, self.unit = (
            title,
            total,
            done,
            done,
            bytes_each,
            unit,
        )
        self.start = self._told = time.monotonic()
        self._plain = not console.is_terminal
        self._bars = bars(console, bytes_each, unit)
        self._bar = self._bars.add_task(title, total=total, completed=done)

    def __enter__(self) -> Meter:
        self._bars.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.__exit__(kind, error, trace)

    def advance(self, steps: int) -> None:
        """Count `steps` more."""
        self.done += steps
        self._bars.advance(self._bar, steps)
        now = time.monotonic()
        if self._plain and now - self._told >= EVERY:
            self._told = now
            print(self.line(now - self.start), file=sys.stderr, flush=True)

    def line(self, seconds: float) -> str:
        """One line on the work of the last `seconds`."""
        speed = (self.done - self.before) / max(seconds, 1e-9)
        left = f", {_duration((self.total - self.done) / speed)} left" if speed else ""
        share = f"{self.done:,} of {self.total:,} {self.unit} ({100 * self.done / max(self.total, 1):.0f} %)"
        return f"{self.title}: {share}, {rate(speed, self.bytes_each, self.unit)}{left}"


def bars(console: Console, bytes_each: float, unit: str) -> Progress:
    """Bars with rate and remaining time; nothing where the console is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(bytes_each, unit),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


def rate(speed: float, bytes_each: float, unit: str = "samples") -> str:
    """Samples a second, and megabytes a second where the size is known."""
    count = f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"
    return f"{count} {unit}/s" + (f", {speed * bytes_each / 1e6:,.1f} MB/s" if bytes_each else "")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


class _Rate(ProgressColumn):
    def __init__(self, bytes_each: float, unit: str) -> None:
        super().__init__()
        self.bytes_each, self.unit = bytes_each, unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(rate(speed, self.bytes_each, self.unit) if speed else "", style="progress.data.speed")


def in_threads(work: Callable[[Item], int], items: Iterable[Item], threads: int | None, meter: Meter) -> None:
    """Do all items, each giving the number of samples it stands for.

    Threads, as the decoders release the interpreter lock. Results are awaited in order, so the first faulty file in
    sample order is the one that is named.

    Args:
        work: does one item.
        items: in order.
        threads: at a time; None takes one a core, at most `THREADS`.
        meter: is told.
    """
    with ThreadPoolExecutor(max_workers=threads or min(THREADS, os.cpu_count() or 1)) as pool, meter:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in futures:
                meter.advance(future.result())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
