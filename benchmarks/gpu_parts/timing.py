"""What the engine says of its rounds."""

from __future__ import annotations

import time
from typing import Any


class Timings:
    """A callback of the engine: when each round ended, and its record's own timing."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.rounds: list[dict[str, float]] = []

    def on_round_end(self, record: dict[str, Any], **_: Any) -> None:
        self.ends.append(time.perf_counter())
        self.rounds.append(dict(record["timing"]))
