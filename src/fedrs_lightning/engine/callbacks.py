"""Small callbacks that Fabric calls by name: `on_run_start`, `on_round_start`, `on_round_end`, `on_run_end`.

A callback may also have `on_step`, called after every optimiser step of its rank; it must cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

if TYPE_CHECKING:
    from fedrs_lightning.engine.engine import Engine


class ProgressBars:
    """A bar over rounds and one inside the round; in a log file one plain line a round instead.

    Args:
        console: where to draw; whether it is a terminal that can move its cursor decides between bars and lines.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._bars: _Bars | None = None
        self._rounds: Any = None
        self._steps: Any = None

    def on_run_start(self, engine: Engine) -> None:
        """Draw the bars, or say what starts."""
        if engine.rank != 0:
            return
        if not self.console.is_terminal or self.console.is_dumb_terminal:
            where = f"continues after round {engine.round}" if engine.round else "starts"
            size = f"{len(engine.clients)} clients, {engine.schedule.num_rounds} rounds, {engine.world_size} rank(s)"
            self._line(f"{engine.name} {where}: {size}")
            return
        self._bars = _Bars(console=self.console, transient=True)
        self._bars.note = engine.name
        self._rounds = self._bars.add_task("round", total=engine.schedule.num_rounds, completed=engine.round)
        self._steps = self._bars.add_task("step", total=None)
        self._bars.start()

    def on_round_start(self, engine: Engine, num_steps: int, num_clients: int) -> None:
        """Start the inner bar over."""
        if self._bars is not None:
            own = f"step of {num_clients} client{'' if num_clients == 1 else 's'}"
            self._bars.reset(self._steps, total=num_steps, description=own)

    def on_step(self) -> None:
        """Advance the inner bar."""
        if self._bars is not None:
            self._bars.advance(self._steps)

    def on_round_end(self, engine: Engine, record: dict[str, Any]) -> None:
        """Advance the outer bar and show the headline."""
        if engine.rank != 0:
            return
        value = record["metrics"].get(engine.headline)
        note = f"loss {record['metrics']['train/loss']:.3f}" + (
            "" if value is None else f", {engine.headline} {value:.4f}"
        )
        if self._bars is not None:
            self._bars.note = f"{engine.name}, round {record['round']}: {note}"
            self._bars.update(self._rounds, completed=record["round"])
        else:
            self._line(
                f"round {record['round']}/{engine.schedule.num_rounds}: {note}, {record['timing']['seconds']:.1f} s"
            )

    def on_run_end(self, engine: Engine) -> None:
        """Take the bars away."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _line(self, text: str) -> None:
        # One line a round, whatever the width that rich assumes for a file.
        print(text, file=self.console.file, flush=True)


class _Bars(Progress):
    """Two bars and a line of text below them, cut to the width of the terminal."""

    note = ""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TextColumn("left", style="dim"),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            **options,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars and the note."""
        yield self.make_tasks_table(self.tasks)
        yield Text(self.note, style="dim", no_wrap=True, overflow="ellipsis")
