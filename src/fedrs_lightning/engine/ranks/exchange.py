"""What crosses ranks: uploads to rank 0 in cohort order, the new server state back to all.

Ordered point-to-point sends instead of a reduction: partial float32 sums would depend on the number of ranks, and a
method may look at every upload. Uploads are packed once, into buffers that are reused from round to round; what does
not fit the memory budget is spooled to a file and read back piece by piece.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor

from fedrs_lightning.engine.ranks.contact import contact
from fedrs_lightning.errors import FedrsError, TrainingError
from fedrs_lightning.states import Entry, PackedState, layout_of, nbytes, pack
from fedrs_lightning.types import Client, State, Upload


class UploadBuffers:
    """Room for one round's packed uploads on this rank.

    Args:
        budget: bytes that may stay in memory; further uploads go to files.
        folder: for those files.
    """

    def __init__(self, budget: float, folder: Path) -> None:
        self.budget, self.folder = budget, Path(folder)
        self._kept: list[Tensor] = []
        self._taken = 0
        self._used = 0
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._files: list[Path] = []
        self._open: list[PackedState] = []

    def clear(self) -> None:
        """Forget the round; memory stays reserved for the next one, files go."""
        for packed in self._open:
            packed.close()
        for path in self._files:
            path.unlink(missing_ok=True)
        self._taken = self._used = 0
        self._files, self._open = [], []

    def fits(self, size: int) -> bool:
        """Whether an upload of `size` bytes may stay in memory."""
        return self._used + size <= self.budget

    def memory(self, size: int) -> Tensor:
        """A uint8 buffer that is this upload's until `clear`."""
        if self._taken == len(self._kept):
            self._kept.append(torch.empty(size, dtype=torch.uint8))
        if self._kept[self._taken].numel() < size:
            self._kept[self._taken] = torch.empty(size, dtype=torch.uint8)
        buffer = self._kept[self._taken]
        self._taken += 1
        self._used += size
        return buffer[:size]

    def scratch(self, size: int) -> Tensor:
        """A uint8 buffer for a moment."""
        if self._scratch.numel() < size:
            self._scratch = torch.empty(size, dtype=torch.uint8)
        return self._scratch[:size]

    def put(self, state: State, name: str) -> PackedState:
        """Copy a state into this round's room."""
        size = layout_of(state)[1]
        if self.fits(size):
            return pack(state, out=self.memory(size))
        return self.spool(pack(state, out=self.scratch(size)), name)

    def spool(self, packed: PackedState, name: str) -> PackedState:
        """Write a packed state to a file of this round."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._files.append(self.folder / f"{name}.safetensors")
        self._open.append(packed.spool(self._files[-1]))
        return self._open[-1]


@dataclass
class _Header:
    """What rank 0 needs to know of an upload before its bytes."""

    upload: Upload  # without its state
    rank: int
    layout: list[Entry]
    size: int
    content: int
    keeps_memory: bool


@dataclass
class Gathered:
    """One round's uploads.

    Attributes:
        uploads: in cohort order on rank 0, empty elsewhere.
        bytes_up: bytes of all uploads, without padding; on every rank.
        keeps_memory: ids of clients that wrote a memory version; on every rank.
        num_steps: optimiser steps of all clients; on every rank.
    """

    uploads: list[Upload] = field(default_factory=list)
    bytes_up: int = 0
    keeps_memory: list[int] = field(default_factory=list)
    num_steps: int = 0


class Exchange:
    """The only place that talks to other ranks during a round.

    Args:
        fabric: launched.
        buffers: this rank's room for uploads.
    """

    def __init__(self, fabric: L.Fabric, buffers: UploadBuffers) -> None:
        self.fabric, self.buffers = fabric, buffers
        self.rank, self.world_size = fabric.global_rank, fabric.world_size
        self._turn = 0
        self._flat = [torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)]

    def barrier(self) -> None:
        """Wait for all ranks.

        Raises:
            LostContact: one is gone.
        """
        if self.world_size > 1:
            with contact():
                self.fabric.barrier()

    def collect(self, value: Any) -> list[Any]:
        """One small Python value of every rank, on every rank, in rank order."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        with contact():
            dist.all_gather_object(values, value)
        return values

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Around what a rank does alone: when it fails on one rank, all raise, so that none waits for ever.

        Raises:
            FedrsError: the failure of the lowest rank, of the same kind and text everywhere.
        """
        failure: FedrsError | None = None
        try:
            yield
        except FedrsError as error:
            failure = error
        if failure is not None and self.world_size == 1:
            raise failure
        known = self.collect(None if failure is None else (type(failure).__name__, str(failure)))
        for name, text in filter(None, known):
            raise {kind.__name__: kind for kind in FedrsError.__subclasses__()}.get(name, TrainingError)(text)

    def gather(self, mine: dict[int, Upload], order: Sequence[Client], keeps_memory: set[int]) -> Gathered:
        """Bring every upload of the cohort to rank 0.

        Args:
            mine: packed uploads of this rank's clients.
            order: the cohort.
            keeps_memory: which of this rank's clients wrote a memory version.
        """
        headers = [_header(upload, self.rank, upload.client.id in keeps_memory) for upload in mine.values()]
        known = {header.upload.client.id: header for part in self.collect(headers) for header in part}
        gathered = Gathered()
        for client in order:
            header = known[client.id]
            gathered.bytes_up += header.content
            gathered.num_steps += header.upload.num_steps
            if header.keeps_memory:
                gathered.keeps_memory.append(client.id)
            if self.rank == 0:
                upload = mine[client.id] if header.rank == 0 else self._receive(header)
                gathered.uploads.append(upload)
            elif header.rank == self.rank:
                self._send(mine[client.id], header.size)
        return gathered

    def broadcast(self, state: State) -> State:
        """Rank 0's state on every rank, in host memory; valid until the call after the next one."""
        if self.world_size == 1:
            return state
        layout, size = layout_of(state) if self.rank == 0 else ([], 0)
        with contact():
            layout, size = self.fabric.broadcast((layout, size))
            self._turn = 1 - self._turn
            if self._flat[self._turn].numel() < size:
                self._flat[self._turn] = torch.zeros(size, dtype=torch.uint8)
            flat = self._flat[self._turn][:size]
            if self.rank == 0:
                pack(state, out=flat)
            if size:
                dist.broadcast(flat, src=0)
        return state if self.rank == 0 else dict(PackedState(layout, flat))

    def _send(self, upload: Upload, size: int) -> None:
        assert isinstance(upload.state, PackedState)
        if size:
            with contact():
                dist.send(upload.state.bytes_into(self.buffers.scratch(size)), dst=0)

    def _receive(self, header: _Header) -> Upload:
        stays = self.buffers.fits(header.size)
        data = self.buffers.memory(header.size) if stays else self.buffers.scratch(header.size)
        if header.size:
            with contact():
                dist.recv(data, src=header.rank)
        packed = PackedState(header.layout, data)
        state = packed if stays else self.buffers.spool(packed, f"received-{header.upload.client.id}")
        return replace(header.upload, state=state)


def _header(upload: Upload, rank: int, keeps_memory: bool) -> _Header:
    state = upload.state
    assert isinstance(state, PackedState)
    return _Header(replace(upload, state={}), rank, state.layout, state.size, nbytes(state), keeps_memory)
