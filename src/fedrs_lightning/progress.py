"""How far long work is: bars on a terminal, lines in a log, at most one a minute unless the work speaks for itself."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rich import progress as bars
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Column
from rich.text import Text

EVERY = 60.0  # seconds between lines of a log
THREADS = 16  # at most, unless more are asked for

Item = TypeVar("Item")


class Meter:
    """A piece of work and how much of it is done.

    Args:
        title: what is done.
        total: how much there is to do; None where it is not known yet.
        done: of it before; it counts for the share, not for the rate.
        bytes_each: of a unit, for megabytes a second; 0 shows none.
        unit: of what is counted; without one neither rates nor lines in a log are shown.
    """

    def __init__(
        self, title: str, total: int | None, done: int = 0, bytes_each: float = 0.0, unit: str = "samples"
    ) -> None:
        self.title, self.total, self.before, self.done = title, total, done, done
        self.bytes_each, self.unit = bytes_each, unit
        self.start = self.told = time.monotonic()

    def line(self, seconds: float) -> str:
        """One line on the work of the last `seconds`."""
        speed = (self.done - self.before) / max(seconds, 1e-9)
        total = self.total or 0
        left = f", {_duration((total - self.done) / speed)} left" if speed else ""
        share = f"{self.done:,} of {total:,} {self.unit} ({100 * self.done / max(total, 1):.0f} %)"
        return f"{self.title}: {share}, {rate(speed, self.bytes_each, self.unit)}{left}"


class Progress:
    """Bars over work whose amount is known, with a line of text below them; a context manager.

    Where nobody looks on, `say` prints plain lines, and a bar with a unit prints one a minute by itself.

    Args:
        console: where to draw; whether it is a terminal that can move its cursor decides between bars and lines.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.shown = self.console.is_terminal and not self.console.is_dumb_terminal
        self._bars = _Bars(console=self.console, disable=not self.shown, transient=True)
        self._meters: list[Meter] = []

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bars.stop()

    def add(self, meter: Meter) -> int:
        """A bar for a piece of work; returns its number."""
        self._meters.append(meter)
        fields: dict[str, Any] = {"unit": meter.unit, "bytes_each": meter.bytes_each}
        return self._bars.add_task(escape(meter.title), total=meter.total, completed=meter.done, **fields)

    def advance(self, bar: int, steps: int = 1) -> None:
        """Count `steps` more."""
        self._bars.advance(bar, steps)  # type: ignore[arg-type]
        meter = self._meters[bar]
        meter.done += steps
        if self.shown or not meter.unit:
            return
        now = time.monotonic()
        if now - meter.told >= EVERY:
            meter.told = now
            self.say(meter.line(now - meter.start))

    def restart(self, bar: int, title: str, total: int) -> None:
        """Begin a bar anew."""
        self._bars.reset(bar, total=total, description=escape(title))  # type: ignore[arg-type]

    def note(self, text: str) -> None:
        """Put a line of text below the bars."""
        self._bars.note = text

    def say(self, text: str) -> None:
        """One line that stays: above the bars, or in the log, whatever the width that rich assumes for a file."""
        if self.shown:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self.console.file, flush=True)


class _Bars(bars.Progress):
    """Bars, and a line of text below them that is cut to the width of the terminal."""

    note = ""

    def __init__(self, **options: Any) -> None:
        whole: Any = {"table_column": Column(no_wrap=True)}
        title, bar = bars.TextColumn("{task.description}", **whole), bars.BarColumn(bar_width=None)
        count, elapsed = bars.MofNCompleteColumn(**whole), bars.TimeElapsedColumn(**whole)
        left = (bars.TextColumn("left", style="dim"), bars.TimeRemainingColumn(**whole))
        super().__init__(title, bar, count, _Rate(), elapsed, *left, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars and the note."""
        yield self.make_tasks_table(self.tasks)
        yield Text(self.note, style="dim", no_wrap=True, overflow="ellipsis")


class _Rate(bars.ProgressColumn):
    def render(self, task: bars.Task) -> Text:
        unit, speed = task.fields.get("unit"), task.finished_speed or task.speed
        return Text(rate(speed, task.fields["bytes_each"], unit) if unit and speed else "", style="progress.data.speed")


def rate(speed: float, bytes_each: float, unit: str = "samples") -> str:
    """Samples a second, and megabytes a second where the size is known."""
    count = f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"
    return f"{count} {unit}/s" + (f", {speed * bytes_each / 1e6:,.1f} MB/s" if bytes_each else "")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def tracked(items: Iterable[Item], title: str, total: int, unit: str = "files") -> Iterator[Item]:
    """The items, counted as they are taken."""
    with Progress() as progress:
        bar = progress.add(Meter(title, total, unit=unit))
        for item in items:
            yield item
            progress.advance(bar)


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
    with ThreadPoolExecutor(max_workers=threads or min(THREADS, os.cpu_count() or 1)) as pool, Progress() as progress:
        bar = progress.add(meter)
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in futures:
                progress.advance(bar, future.result())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def waiting(text: str, rank: int = 0) -> contextlib.AbstractContextManager[Any]:
    """On a terminal, say what a wait of seconds is for, and take it back; on rank 0 alone."""
    console = Console(stderr=True)
    shown = console.is_terminal and not console.is_dumb_terminal and not rank
    return console.status(text) if shown else contextlib.nullcontext()
