"""Sums to which ranks add while others still train: in one order, whoever finishes first, so that the bits never vary.

The order is that of the cohort as it is worked through (`cohort.in_order`). A rank that has trained a client leaves the
network's memory as it is for the sum, and trains the next client in another piece of memory: nothing is copied. Once a
few uploads that follow each other are there, the rank that notices adds them in one pass, since reading and writing the
sum costs more than reading an upload.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple

from torch import Tensor

from fedrs_lightning.engine.ranks.shared import Block, Place
from fedrs_lightning.flat import FlatLayout
from fedrs_lightning.states import add_to, total_dtype, write_sum

RECORD = 8192
"""Bytes of the ledger a client; only what is written takes memory."""

GROUP = 3
"""Uploads that are added in one pass, where so many follow each other. More would cost memory and save little."""


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

    def add(self, states: Sequence[Tensor], factors: Sequence[float], fresh: bool) -> bool:
        """Add packed states, uint8 each, in this order; the first ones replace what an earlier round left.

        Returns:
            Whether the sum is finite now.
        """
        finite = True
        for run, total in zip(self.runs, self.totals, strict=True):
            finite &= add_to(total, [run.of(state) for state in states], factors, fresh)
        return finite

    def into(self, out: Tensor, divisor: float) -> None:
        """Write the sum over its divisor, rounded to the states' dtypes, as a packed state. The sum is used up."""
        for run, total in zip(self.runs, self.totals, strict=True):
            write_sum(run.of(out), total, divisor)


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
    def adding(self) -> Iterator[bool]:
        """Hold the sum alone; False where another process holds it. One that dies lets go."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

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
        read: the bytes at a place in the memory of any of them.
        refuse: raises for the upload at this place in the order, which is not finite.
    """

    def __init__(
        self,
        total: RunningSum,
        ledger: Ledger,
        read: Callable[[Place], Tensor],
        refuse: Callable[[int, Tensor], None],
    ) -> None:
        self.total, self.ledger, self.read, self.refuse = total, ledger, read, refuse
        self._factors: list[float] = []

    def begin(self, factors: Sequence[float]) -> None:
        """A new round with these factors, in the order of the cohort."""
        self._factors = list(factors)

    @property
    def turn(self) -> int:
        """Uploads before this place in the order are in the sum, and their memory is free again."""
        return self.ledger.turn

    def put(self, position: int, place: Place) -> None:
        """Leave a packed state for the sum. It must stay as it is until its turn is over."""
        self.ledger.post(position, place)
        self.advance(GROUP)

    def advance(self, at_least: int = 1) -> None:
        """Add what is there, if so many uploads follow each other and nobody else is adding."""
        with self.ledger.adding() as mine:
            while mine and len(states := self._ready()) >= at_least:
                self._add(states)

    def finish(self, out: Tensor, divisor: float = 1.0) -> None:
        """Add what is left and write the sum over its divisor; on one rank, when all have put theirs."""
        with self.ledger.adding() as mine:
            assert mine, "a rank is adding although all have come together"
            if states := self._ready():
                self._add(states)
        assert self.turn == len(self._factors), f"{self.turn} of {len(self._factors)} uploads are in the sum"
        self.total.into(out, divisor)

    def _add(self, states: Sequence[Tensor]) -> None:
        turn = self.ledger.turn
        if not self.total.add(states, self._factors[turn : turn + len(states)], fresh=turn == 0):
            for position, state in enumerate(states, start=turn):
                self.refuse(position, state)
        self.ledger.turn = turn + len(states)

    def _ready(self) -> list[Tensor]:
        """States that wait and follow each other, from the one whose turn it is."""
        states: list[Tensor] = []
        turn = self.ledger.turn
        while turn < len(self._factors) and (place := self.ledger.posted(turn)) is not None:
            states.append(self.read(place))
            turn += 1
        return states
