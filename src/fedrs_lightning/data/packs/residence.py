"""Where the arrays of packs lie while a run gathers batches from them.

Mapped files cost no memory of their own, but every page that was touched counts for the process until it gives it back.
A shelf gives all of them back before they exceed its budget. The kernel keeps what it can in its cache, so that the
next touch finds most pages there.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedrs_lightning.data.packs.fields import Field, as_bits

Residence = Literal["map", "ram", "device"]
GIB = 2**30
BUDGET = 4.0  # GiB
HUGE = 2 * 2**20  # bytes that the kernel may map around a page that is touched
BLOCK = 64 * 2**20  # bytes that are moved at a time
RESERVE = 0.25
"""Share of a device's whole memory that packs leave to the network, its gradients and activations."""


class MappedArray:
    """A .npy file from which rows are gathered.

    Attributes:
        array: the whole file, [N, ...]; torch wants writable memory, what is written stays in this process.
        bits: what rows are gathered from, uint16 as the int16 of the same bits: the mapped file, or a copy elsewhere.
        nbytes: of the array.
        mapped: whether rows come from the mapped file.

    Raises:
        OSError, ValueError: the file cannot be read, or is too short for what its header says.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError(f"{path.name} has another format")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            offset, count = file.tell(), int(np.prod(shape))
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        if len(self._map) < offset + count * dtype.itemsize:
            raise ValueError(f"{path.name} ends too early")
        self.array = np.frombuffer(self._map, dtype, count, offset if count else 0).reshape(shape)
        self.nbytes, self.bits, self.mapped = self.array.nbytes, as_bits(self.array), True
        self.touched = (-(-self.nbytes // max(1, len(self.array)) // HUGE) + 1) * HUGE  # by a row, at most

    def release(self) -> None:
        """Give the touched pages back to the kernel."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def move(self, device: torch.device) -> None:
        """Gather from a copy in memory, or on a device, from now on."""
        copy = torch.empty(self.bits.shape, dtype=self.bits.dtype, device=device)
        rows = max(1, BLOCK * len(self.array) // max(1, self.nbytes))
        for start in range(0, len(copy), rows):
            copy[start : start + rows].copy_(self.bits[start : start + rows])
            self.release()
        self.bits, self.mapped = copy, False


class Shelf:
    """The arrays of a source, the bytes of mapped pages that are kept, and the device where gathered rows are."""

    def __init__(self, arrays: Sequence[MappedArray]) -> None:
        self.arrays, self.budget, self.device = tuple(arrays), BUDGET * GIB, torch.device("cpu")
        self._touched, self._before = 0, 0
        self._bounded = self.nbytes > self.budget

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        return sum(array.nbytes for array in self.arrays)

    def empty(self, field: Field, rows: int, pin_memory: bool) -> Tensor:
        """Room for rows of an array, where they are gathered to."""
        pinned = pin_memory and self.device.type == "cpu"
        return torch.empty((rows, *field.shape), dtype=field.bits, device=self.device, pin_memory=pinned)

    def select(self, array: MappedArray, wanted: Tensor, out: Tensor) -> None:
        """Gather rows `wanted` (int64, on the shelf's device) of an array into `out`."""
        if not self._bounded:
            torch.index_select(array.bits, 0, wanted, out=out)
            return
        half = self.budget / 2  # what is kept at most, and what one piece may add
        rows = max(1, int(half // array.touched))
        for start in range(0, len(wanted), rows):
            piece = slice(start, start + rows)
            torch.index_select(array.bits, 0, wanted[piece], out=out[piece])
            self._touched += len(wanted[piece]) * array.touched
            if self._touched > half:  # at most; now find out how much it is
                self._touched = max(0, mapped_bytes(self._touched) - self._before)
                if self._touched > half:
                    self.release()

    def release(self) -> None:
        """Give all touched pages back to the kernel."""
        for array in self.arrays:
            array.release()
        self._touched, self._before = 0, mapped_bytes(0)

    def settle(self, residence: Residence, budget: float, device: torch.device) -> str | None:
        """Put the arrays where a run wants them, within a budget of bytes; nothing that is gathered depends on it.

        `map` keeps them mapped; `ram` copies them into memory; `device` onto the device of the run, of whose memory a
        quarter stays free (`RESERVE`). Gives why they stay mapped although the run wanted them elsewhere, or None.
        """
        self.budget, self._bounded, total = budget, self.nbytes > budget, self.nbytes
        self._touched, self._before = 0, mapped_bytes(0)
        if residence == "map":
            return None
        target = device if residence == "device" else torch.device("cpu")
        room = room_beside_the_model(*torch.cuda.mem_get_info(target)) if target.type == "cuda" else total
        if total > min(budget, room):
            said = f"fabric.residence={residence}: the packs hold {total / GIB:.2f} GiB, more than"
            most = f"the {room / GIB:.2f} GiB that are free on {target} beside a quarter kept for the model"
            most = f"fabric.residence_budget={budget / GIB:g}" if total > budget else most
            return f"{said} {most}; they stay mapped, which changes no result"
        for array in self.arrays:
            array.move(target)
        self.device, self._bounded = target, False
        return None


def room_beside_the_model(free: int, total: int) -> int:
    """Bytes of a device that packs may take, of `free` ones now and `total` in all.

    Examples:
        >>> room_beside_the_model(70, 80), room_beside_the_model(15, 80)
        (50, 0)
    """
    return max(0, free - int(RESERVE * total))


def onto(values: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device that is not waited for: a GPU copies by itself, but only from pinned memory."""
    if values.device.type != "cpu" or device.type == "cpu":
        return values.to(device)
    if device.type == "cuda" and not values.is_pinned():
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def mapped_bytes(otherwise: int) -> int:
    """Resident bytes of all files that this process maps; `otherwise` where the system does not say."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 (a Path costs as much as the call)
            return int(file.read(200).split()[2]) * mmap.PAGESIZE
    except OSError:
        return otherwise


def settle(source: Any, residence: Residence, budget: float, device: torch.device) -> str | None:
    """Put the arrays of a source where a run wants them; see `Shelf.settle`. Sources without packs say so."""
    shelf = getattr(source, "shelf", None)
    if isinstance(shelf, Shelf) and shelf.arrays:
        return shelf.settle(residence, budget, device)
    if residence == "map":
        return None
    return f"fabric.residence={residence}: the samples come from no pack, so they stay where they are"
