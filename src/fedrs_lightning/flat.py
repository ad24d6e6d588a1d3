"""A state in one run of bytes: what is installed, sent, summed or written is one piece, not hundreds of small ones.

The same layout serves the live network (its parameters are views of the run), the server state, an upload on its way
and the memory that ranks share. Entries of one dtype lie side by side, so that arithmetic is one operation a dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes at whose multiples entries begin, as the allocator of torch has it: kernels keep their speed and their bits."""


@dataclass(frozen=True)
class Entry:
    """A tensor inside a run of bytes. Its memory format is kept: a channels_last weight stays one."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class Run:
    """Neighbouring entries of one dtype, padding between them included: bytes [start, stop)."""

    dtype: torch.dtype
    start: int
    stop: int

    def of(self, data: Tensor) -> Tensor:
        """The run as a vector of its dtype; a view of uint8 [bytes]. Padding is zero."""
        return data[self.start : self.stop].view(self.dtype)


class FlatLayout:
    """Where each entry of a state lies.

    Args:
        entries: in the order in which a state gives them.
        size: bytes, padding included.
    """

    def __init__(self, entries: Iterable[Entry], size: int) -> None:
        self.entries, self.size = tuple(entries), size

    @classmethod
    def of(cls, state: Mapping[str, Tensor], start: int = 0) -> FlatLayout:
        """Entries by dtype, the most frequent first, from byte `start` on. One tensor under two names lies there once.

        Tensors that are not dense in memory, such as a slice of a larger one, are laid out row by row.
        """
        places: dict[int, int] = {}
        offset = start
        for dtype in dict.fromkeys(sorted((tensor.dtype for tensor in state.values()), key=_rank)):
            for tensor in state.values():
                if tensor.dtype == dtype and id(tensor) not in places:
                    places[id(tensor)] = offset
                    offset += _padded(tensor.numel() * dtype.itemsize)
        entries = (
            Entry(name, tensor.dtype, tuple(tensor.shape), _strides(tensor), places[id(tensor)])
            for name, tensor in state.items()
        )
        return cls(entries, offset)

    def __add__(self, other: FlatLayout) -> FlatLayout:
        """Both, where the other begins behind this one."""
        return FlatLayout((*self.entries, *other.entries), max(self.size, other.size))

    def runs(self) -> list[Run]:
        """Entries of one dtype in a row, by ascending place."""
        runs: list[Run] = []
        for entry in sorted(self.entries, key=lambda entry: entry.offset):
            stop = entry.offset + _padded(entry.nbytes)
            if runs and runs[-1].dtype == entry.dtype and entry.offset <= runs[-1].stop:
                runs[-1] = Run(entry.dtype, runs[-1].start, max(stop, runs[-1].stop))
            else:
                runs.append(Run(entry.dtype, entry.offset, stop))
        return runs

    def content(self) -> int:
        """Bytes of all entries: what travels, without padding."""
        return sum(entry.nbytes for entry in self.entries)


class FlatState(Mapping[str, Tensor]):
    """A state whose tensors are views of one run of bytes. A view is made once, so that `is` tells it from a copy.

    Args:
        layout: of the entries.
        data: uint8, at least `layout.size` bytes, on any device.
    """

    def __init__(self, layout: FlatLayout, data: Tensor) -> None:
        self.layout, self.data = layout, data
        self._views = {entry.name: _view(entry, data) for entry in layout.entries}

    def __getitem__(self, key: str) -> Tensor:
        return self._views[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


def flat_copy(state: Mapping[str, Tensor], layout: FlatLayout | None = None, out: Tensor | None = None) -> FlatState:
    """Copy a state into one run of bytes.

    Args:
        state: tensors on any device.
        layout: of the copy; made from the state where none is given.
        out: uint8, at least as long as the layout says; new zeros in host memory where none is given.
    """
    layout = FlatLayout.of(state) if layout is None else layout
    copy = FlatState(layout, torch.zeros(layout.size, dtype=torch.uint8) if out is None else out)
    for name, tensor in state.items():
        copy[name].copy_(tensor)
    return copy


def placed(state: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The state on a device. What lies elsewhere goes there as one piece, so that it is waited for once."""
    away = {key: tensor for key, tensor in state.items() if tensor.device != device}
    if not away:
        return dict(state)
    layout, source = FlatLayout.of(away), next(iter(away.values())).device
    packed = flat_copy(away, layout, torch.zeros(layout.size, dtype=torch.uint8, device=source))
    return {**state, **FlatState(layout, packed.data.to(device))}


def side_by_side(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Vectors [P] in which the same place holds the same element of each tensor; views where that is possible.

    Elements come in the order of memory where all tensors have the same memory format, else row by row.
    """
    strides = {tuple(tensor.stride()) for tensor in tensors}
    if len(strides) == 1 and not tensors[0].is_contiguous() and _strides(tensors[0]) == tuple(tensors[0].stride()):
        return [tensor.detach().as_strided((tensor.numel(),), (1,)) for tensor in tensors]
    return [tensor.detach().reshape(-1) for tensor in tensors]


def in_same_places(states: Sequence[Mapping[str, Tensor]]) -> list[FlatState] | None:
    """The states, if all are flat with the same entries at the same places; else None."""
    flat = [state for state in states if isinstance(state, FlatState)]
    if len(flat) < len(states) or any(state.layout.entries != flat[0].layout.entries for state in flat):
        return None
    return flat


def _view(entry: Entry, data: Tensor) -> Tensor:
    flat = data[entry.offset : entry.offset + entry.nbytes].view(entry.dtype)
    if entry.stride == _row_by_row(entry.shape):
        return flat.view(entry.shape)
    return flat.as_strided(entry.shape, entry.stride)


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """The tensor's own where its elements fill a run of memory, else those of a contiguous one."""
    own, expected = tuple(tensor.stride()), 1
    for size, stride in sorted(zip(tensor.shape, own, strict=True), key=lambda pair: (pair[1], pair[0])):
        if size != 1:
            if stride != expected:
                return _row_by_row(tuple(tensor.shape))
            expected *= size
    return own


def _row_by_row(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _rank(dtype: torch.dtype) -> tuple[bool, str]:
    """Floating dtypes first."""
    return not dtype.is_floating_point, str(dtype)
