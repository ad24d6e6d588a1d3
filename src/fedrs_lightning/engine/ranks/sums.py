"""Sums to which ranks add while others still train: in one order, whoever finishes first, so that the bits never vary.

The order is that of the cohort as it is worked through (`cohort.in_order`). A client's upload is added when all before
it are in. The rank that finds it is the next's turn adds its own live parameters, without a copy, and everything that
waits behind them; a rank that comes too early leaves a copy for others to add and trains on.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple

from torch import Tensor

from fedrs_lightning.engine.ranks.shared import Block, Neighbours, Place, Room
from fedrs_lightning.flat import FlatLayout
from fedrs_lightning.states import add_to, total_dtype

RECORD = 8192
"""Bytes of the ledger a client; only what is written takes memory."""

WAIT = 0.2
"""Seconds that a rank waits for the one that is adding. An addition is short, and a copy costs as much."""


class RunningSum:
    """Weighted sum of packed states in float64; of integers the largest value.

    Args:
        layout: of the states.
        data: uint8, at least `size_of(layout)` bytes, where the sum lies.
    """

    def __init__(self, layout: FlatLayout, data: Tensor) -> None:
        self.runs = layout.runs()
        self.totals: list[Tensor] = []
        start = 0
        for run in self.runs:
            dtype = total_dtype(run.dtype)
            length = (run.stop - run.start) // run.dtype.itemsize * dtype.itemsize
            self.totals.append(data[start : start + length].view(dtype))
            start += length

    @staticmethod
    def size_of(layout: FlatLayout) -> int:
        """Bytes of the sum."""
        runs = layout.runs()
        return sum((run.stop - run.start) // run.dtype.itemsize * total_dtype(run.dtype).itemsize for run in runs)

    def add(self, states: Sequence[Tensor], factors: Sequence[float], fresh: bool) -> None:
        """Add packed states, uint8 each, in this order; the first ones replace what an earlier round left."""
        for run, total in zip(self.runs, self.totals, strict=True):
            add_to(total, [run.of(state) for state in states], factors, fresh)

    def into(self, out: Tensor) -> None:
        """Write the sum, rounded to the states' dtypes, as a packed state."""
        for run, total in zip(self.runs, self.totals, strict=True):
            run.of(out).copy_(total)


class Ledger:
    """Whose turn it is, and where the uploads lie that wait for theirs: a block that all ranks of a machine open.

    It is read and written by system calls, which keep their order between processes on every kind of processor.

    Args:
        block: at least `size_of(number of clients)` bytes.
    """

    def __init__(self, block: Block) -> None:
        self._file = block.number
        self._block = block

    @staticmethod
    def size_of(num_clients: int) -> int:
        """Bytes for a cohort of so many clients."""
        return RECORD * (num_clients + 1)

    def begin(self) -> None:
        """A new round: nobody's upload is in."""
        self._write(0, self._read(0)[0] + 1, 0)

    @property
    def turn(self) -> int:
        """Number of uploads that are in; also the place of the next in the order."""
        return self._read(0)[1]

    @turn.setter
    def turn(self, value: int) -> None:
        self._write(0, self._read(0)[0], value)

    def post(self, position: int, place: Place) -> None:
        """Leave an upload for whoever adds next."""
        content = json.dumps(astuple(place)).encode()
        start = RECORD * (position + 1)
        os.pwrite(self._file, content, start + 16)
        self._write(start, self._read(0)[0], len(content))

    def posted(self, position: int) -> Place | None:
        """Where the upload lies, if it waits."""
        start = RECORD * (position + 1)
        round, length = self._read(start)
        if round != self._read(0)[0]:
            return None
        return Place(*json.loads(os.pread(self._file, length, start + 16)))

    @contextmanager
    def adding(self, patience: float) -> Iterator[bool]:
        """Hold the sum alone, or give up after so many seconds: False. A process that dies lets go."""
        until = time.monotonic() + patience
        while not (held := self._lock()) and time.monotonic() < until:
            time.sleep(5e-4)
        try:
            yield held
        finally:
            if held:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _read(self, start: int) -> tuple[int, int]:
        first, second = struct.unpack("<qq", os.pread(self._file, 16, start))
        return first, second

    def _write(self, start: int, first: int, second: int) -> None:
        os.pwrite(self._file, struct.pack("<qq", first, second), start)


class SharedSum:
    """A `RunningSum` to which the ranks of one machine add in turn.

    Args:
        total: in a block that all of them have opened.
        ledger: theirs too.
        neighbours: whose posted uploads are read.
        room: for uploads of this rank that wait.
        size: bytes of a packed state.
    """

    def __init__(self, total: RunningSum, ledger: Ledger, neighbours: Neighbours, room: Room, size: int) -> None:
        self.total, self.ledger, self.neighbours, self.room, self.size = total, ledger, neighbours, room, size
        self._factors: list[float] = []
        self._waiting: dict[int, tuple[Tensor, Place]] = {}  # of this rank, by place in the order
        self._spare: list[tuple[Tensor, Place]] = []

    def begin(self, factors: Sequence[float]) -> None:
        """A new round with these weights, in the order of the cohort."""
        self._factors, self._waiting, self._spare = list(factors), {}, []

    def put(self, position: int, state: Tensor) -> None:
        """Add a packed state, uint8, or leave a copy of it. It may change afterwards."""
        with self.ledger.adding(WAIT) as mine:
            if mine and self._advance(position, state) > position:
                return
        self._reclaim()
        copy, place = self._spare.pop() if self._spare else self.room.take(self.size)
        copy.copy_(state)
        self._waiting[position] = copy, place
        self.ledger.post(position, place)
        with self.ledger.adding(0.0) as mine:  # its turn may have come meanwhile
            if mine:
                self._advance()

    def finish(self, out: Tensor) -> None:
        """Add what still waits and write the sum; when all ranks are done, on one of them."""
        with self.ledger.adding(60.0) as mine:
            turn = self._advance() if mine else -1
        assert turn == len(self._factors), f"{turn} of {len(self._factors)} uploads are in the sum"
        self.total.into(out)

    def _advance(self, position: int = -1, state: Tensor | None = None) -> int:
        """Add all states whose turn it is, among them the given one; returns the next turn."""
        turn = self.ledger.turn
        while states := self._ready(turn, position, state):
            self.total.add(states, self._factors[turn : turn + len(states)], fresh=turn == 0)
            turn += len(states)
            self.ledger.turn = turn
        return turn

    def _ready(self, turn: int, position: int, state: Tensor | None) -> list[Tensor]:
        states: list[Tensor] = []
        while turn < len(self._factors):
            if turn == position and state is not None:
                states.append(state)
            elif (place := self.ledger.posted(turn)) is not None:
                states.append(self._waiting[turn][0] if turn in self._waiting else self.neighbours.read(place))
            else:
                break
            turn += 1
        return states

    def _reclaim(self) -> None:
        turn = self.ledger.turn
        for position in [position for position in self._waiting if position < turn]:
            self._spare.append(self._waiting.pop(position))
