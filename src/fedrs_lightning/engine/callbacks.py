"""Callbacks that Fabric calls by name: `on_run_start`, `on_round_start`, `on_step`, `on_round_end`, `on_run_end`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedrs_lightning.progress import Meter, Progress

if TYPE_CHECKING:
    from fedrs_lightning.engine.engine import Engine


class ProgressBars:
    """A bar over rounds and one inside the round; in a log file one plain line a round instead.

    Args:
        console: where to draw; whether it is a terminal that can move its cursor decides between bars and lines.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console
        self._progress: Progress | None = None
        self._rounds = self._steps = 0

    def on_run_start(self, engine: Engine) -> None:
        """Draw the bars, or say what starts."""
        if engine.rank != 0:
            return
        self._progress = Progress(self.console)
        if not self._progress.shown:
            where = f"continues after round {engine.round}" if engine.round else "starts"
            size = f"{len(engine.clients)} clients, {engine.schedule.num_rounds} rounds, {engine.world_size} rank(s)"
            self._progress.say(f"{engine.name} {where}: {size}")
        self._progress.note(engine.name)
        self._rounds = self._progress.add(Meter("round", engine.schedule.num_rounds, engine.round, unit=""))
        self._steps = self._progress.add(Meter("step", None, unit=""))
        self._progress.__enter__()

    def on_round_start(self, engine: Engine, num_steps: int, num_clients: int) -> None:
        """Start the inner bar over."""
        if self._progress is not None:
            title = f"step of {num_clients} client{'' if num_clients == 1 else 's'}"
            self._progress.restart(self._steps, title, num_steps)

    def on_step(self) -> None:
        """Advance the inner bar."""
        if self._progress is not None and self._progress.shown:
            self._progress.advance(self._steps)

    def on_round_end(self, engine: Engine, record: dict[str, Any]) -> None:
        """Advance the outer bar and show the headline."""
        if self._progress is None:
            return
        value, number = record["metrics"].get(engine.headline), record["round"]
        scores = f"loss {record['metrics']['train/loss']:.3f}"
        scores += "" if value is None else f", {engine.headline} {value:.4f}"
        self._progress.note(f"{engine.name}, round {number}: {scores}")
        self._progress.advance(self._rounds)
        if not self._progress.shown:
            seconds = record["timing"]["seconds"]
            self._progress.say(f"round {number}/{engine.schedule.num_rounds}: {scores}, {seconds:.1f} s")

    def on_run_end(self, engine: Engine) -> None:
        """Take the bars away."""
        if self._progress is not None:
            self._progress.__exit__()
            self._progress = None
