"""Memory that the ranks of one machine share: what one of them writes, the others read without a copy on the way.

A block has no name in any folder: it is reached through the process that made it, and is gone with that process, so
that nothing is left behind by a kill. Where the system offers no such memory, and for what exceeds a budget, a block is
a file of the run directory, mapped into memory.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import socket
import struct
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedrs_lightning.files import naming_the_place

TOKEN = 16
"""Bytes by which a rank knows that it reads the block that was meant, and not another machine's."""

BLOCK = 2**25
"""Bytes of a block unless more are asked for; pages that nobody touches take no memory."""


SEATS = 3
"""Pieces of memory in which a rank's network lives in turn, at most; more would save little time."""


class Block:
    """Bytes in memory or in a mapped file.

    Attributes:
        path: by which other ranks of this machine open it.
        key: that no other block has, whatever its path.
        number: the open file.
        data: uint8 [size].
    """

    def __init__(self, path: str, number: int, size: int, key: str = "") -> None:
        self.path, self.number, self.key = path, number, key or secrets.token_hex(8)
        self.data = torch.frombuffer(mmap.mmap(number, max(1, size)), dtype=torch.uint8)[:size]
        weakref.finalize(self, os.close, number)

    @classmethod
    def in_memory(cls, size: int, folder: Path) -> Block:
        """A block that goes with this process; in `folder` where the system knows no such memory."""
        if not hasattr(os, "memfd_create"):
            return cls.in_file(size, folder / f"memory-{secrets.token_hex(4)}")
        number = os.memfd_create("fedrs")
        os.ftruncate(number, max(1, size))
        return cls(f"/proc/{os.getpid()}/fd/{number}", number, size)

    @classmethod
    def in_file(cls, size: int, path: Path) -> Block:
        """A block in a new file, whose space is taken at once.

        Raises:
            RunError: there is no room on the disk.
        """
        with naming_the_place(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.posix_fallocate(number, 0, max(1, size))  # a full disk is an error here, and a signal later
            except OSError:
                os.close(number)
                path.unlink(missing_ok=True)
                raise
        return cls(str(path), number, size)

    @classmethod
    def opened(cls, path: str, size: int, key: str = "") -> Block:
        """A block that another rank made."""
        return cls(path, os.open(path, os.O_RDWR), size, key)

    def place(self, start: int, size: int) -> Place:
        """Where these bytes of the block lie."""
        return Place(self.path, self.key, len(self.data), start, size)


@dataclass(frozen=True)
class Place:
    """Where packed bytes lie: in which block of the rank that holds them, and from which byte on."""

    path: str
    key: str
    block_size: int
    start: int
    size: int


class Room:
    """Room for one round's packed uploads of a rank.

    Args:
        budget: bytes that may lie in memory; further uploads go to mapped files.
        folder: for those files.
    """

    def __init__(self, budget: float, folder: Path) -> None:
        self.budget, self.folder = budget, Path(folder)
        self._alone = threading.Lock()
        self._blocks: list[Block] = []
        self._in_memory = self._in_files = 0
        self._free: list[tuple[Block, int]] = []  # block and first free byte, of this round

    def take(self, size: int) -> tuple[Tensor, Place]:
        """`size` bytes that are the caller's until `clear`.

        Raises:
            RunError: there is no room on the disk.
        """
        with self._alone:  # a thread that receives uploads takes some too
            fits = (n for n, (block, start) in enumerate(self._free) if start + size <= len(block.data))
            number = next(fits, None)
            if number is None:
                self._add(size)
                number = len(self._free) - 1
            block, start = self._free[number]
            self._free[number] = (block, start + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
            return block.data[start : start + size], block.place(start, size)

    def clear(self) -> None:
        """Forget the round. Memory and files stay reserved for the next one."""
        self._free = [(block, 0) for block in self._blocks]

    def close(self) -> None:
        """Give everything back; what others have opened they may still read."""
        for block in self._blocks:
            if Path(block.path).parent == self.folder:
                Path(block.path).unlink(missing_ok=True)
        self._blocks, self._free, self._in_memory = [], [], 0

    def _add(self, size: int) -> None:
        left = self.budget - self._in_memory
        if size <= left:
            length = max(size, int(min(BLOCK, left)))
            block = Block.in_memory(length, self.folder)
            self._in_memory += length
        else:
            length = max(size, BLOCK)
            block = Block.in_file(length, self.folder / f"uploads-{self._in_files}")
            self._in_files += 1
        self._blocks.append(block)
        self._free.append((block, 0))


class Seats:
    """Pieces of memory in which a rank's network lives in turn: one is trained in, others wait for the sum.

    Args:
        size: bytes of a network.
        sent: bytes of it that are uploaded.
        budget: bytes that the seats together may have; there are two at least.
        folder: where they lie if they cannot lie in memory.
    """

    def __init__(self, size: int, sent: int, budget: float, folder: Path) -> None:
        self.size, self.sent, self.folder = size, sent, folder
        self.most = int(max(2, min(SEATS, budget // max(1, size))))
        self._blocks = [Block.in_memory(size, folder)]
        self._waiting: dict[int, Block] = {}  # by place in the order
        self.current = self._blocks[0]

    def leave(self, position: int, seat: Block) -> Place:
        """Let the upload in a seat wait for its turn; returns where it lies."""
        self._waiting[position] = seat
        return seat.place(0, self.sent)

    def take(self, turn: int) -> bool:
        """Make a free seat the current one. False where there is none: all wait, and no more may be made."""
        self._waiting = {position: block for position, block in self._waiting.items() if position >= turn}
        free = [block for block in self._blocks if block not in self._waiting.values() and block is not self.current]
        if not free and len(self._blocks) < self.most:
            free = [Block.in_memory(self.size, self.folder)]
            self._blocks += free
        if free:
            self.current = free[0]
        return bool(free)

    def clear(self) -> None:
        """The round is over: nothing waits."""
        self._waiting = {}


class Copies:
    """Copies of uploads that wait for the sum; the room of those that are in it is used again.

    Args:
        room: of the round.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._made: list[tuple[int, Tensor, Place]] = []

    def of(self, position: int, state: Tensor, turn: int) -> Place:
        """Where a copy of the upload at this place in the order lies; those before `turn` are in the sum."""
        done = next((number for number, made in enumerate(self._made) if made[0] < turn), None)
        _, copy, place = (-1, *self._room.take(len(state))) if done is None else self._made.pop(done)
        copy.copy_(state)
        self._made.append((position, copy, place))
        return place

    def clear(self) -> None:
        """The round is over."""
        self._made = []


class Tickets:
    """Numbers that several processes draw, each number once.

    Args:
        block: of at least eight bytes that all of them have opened for themselves.
    """

    SIZE = 8

    def __init__(self, block: Block) -> None:
        self._block = block  # a lock is the opened file's

    def begin(self) -> None:
        """From 0 again."""
        os.pwrite(self._block.number, struct.pack("<q", 0), 0)

    def draw(self) -> int:
        """The next number."""
        fcntl.flock(self._block.number, fcntl.LOCK_EX)
        try:
            (number,) = struct.unpack("<q", os.pread(self._block.number, 8, 0))
            os.pwrite(self._block.number, struct.pack("<q", number + 1), 0)
        finally:
            fcntl.flock(self._block.number, fcntl.LOCK_UN)
        return int(number)


class Neighbours:
    """Which ranks share this machine's memory, found by trying: host names alone may deceive.

    Args:
        rank: of this process.
        collect: gives a value of every rank to all, in rank order.
        folder: where blocks lie if they cannot lie in memory.
        near: whether memory is to be shared at all; False treats every rank as a machine of its own.

    Attributes:
        leaders: of every rank, the lowest rank whose memory it can read, perhaps its own.
    """

    def __init__(self, rank: int, collect: Callable[[Any], list[Any]], folder: Path, near: bool = True) -> None:
        self._token = Block.in_memory(TOKEN, folder)
        token = secrets.token_bytes(TOKEN)
        self._token.data.copy_(torch.frombuffer(bytearray(token), dtype=torch.uint8))
        own = (socket.gethostname(), self._token.path, token)
        self.rank, self._collect = rank, collect
        known = collect(own)
        reached = (number for number, (host, path, token) in enumerate(known[:rank]) if host == own[0])
        leader = next((number for number in reached if near and _reads(*known[number][1:])), rank)
        self.leaders: list[int] = collect(leader)
        self.leader = self.leaders[rank]
        self._opened: dict[str, Block] = {}

    def share(self, size: int, folder: Path) -> tuple[Block | None, Block]:
        """A block of the machine's leader: as the leader made it, as this rank opened it; a meeting of all ranks.

        The first must be kept: a block goes with whoever made it.
        """
        made = Block.in_memory(size, folder) if self.leader == self.rank else None
        place = self._collect(None if made is None else made.place(0, size))[self.leader]
        return made, Block.opened(place.path, place.block_size, place.key)

    def read(self, place: Place) -> Tensor:
        """The bytes at a place in a block of a neighbour, uint8; a view."""
        if place.key not in self._opened:
            self._opened[place.key] = Block.opened(place.path, place.block_size, place.key)
        return self._opened[place.key].data[place.start : place.start + place.size]


def _reads(path: str, token: bytes) -> bool:
    try:
        block = Block.opened(path, TOKEN)
    except OSError:  # another machine, container or user
        return False
    return bytes(block.data.tolist()) == token
