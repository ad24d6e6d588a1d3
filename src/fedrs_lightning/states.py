"""Algebra on flat states (`dict[str, Tensor]`): weighted sums, packing to bytes, digests.

Plain functions. What leaves a client is packed once into one run of bytes, which is sent and kept in memory as it is,
or spooled to a file; `PackedState` reads single entries, or slices of them, back from either place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedrs_lightning.types import State, Upload

CHUNK = 262_144
"""Elements of a float64 accumulator (2 MiB): accumulator and operand stay in cache while every upload passes by."""

ALIGNMENT = 64

Entry = tuple[str, str, tuple[int, ...], int]
"""Name, dtype, shape and byte offset of a packed tensor."""


class SpooledTensor:
    """An entry of a spooled state, read slice by slice so that it never has to be in memory as a whole.

    Args:
        values: slice of a safetensors file that holds the entry flattened.
        dtype: of the entry.
        shape: of the entry.
    """

    def __init__(self, values: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape, self._values = dtype, shape, values

    def numel(self) -> int:
        """Number of elements."""
        return int(torch.Size(self.shape).numel())

    def read(self, start: int, stop: int) -> Tensor:
        """Elements [start, stop) of the flattened tensor, [stop - start]."""
        found: Tensor = self._values[start:stop] if stop > start else torch.empty(0, dtype=self.dtype)
        return found

    def load(self) -> Tensor:
        """The whole tensor."""
        return self.read(0, self.numel()).view(self.shape)


class PackedState(Mapping[str, Tensor]):
    """A state inside one run of bytes in memory, or spooled to a safetensors file.

    Args:
        layout: where each entry lies in the run of bytes.
        data: uint8 [bytes], or the path of a file that `spool` wrote.
    """

    def __init__(self, layout: Sequence[Entry], data: Tensor | Path) -> None:
        self.layout = list(layout)
        self._entries = {
            name: (getattr(torch, dtype), tuple(shape), offset) for name, dtype, shape, offset in self.layout
        }
        self._data = data
        self._file: Any = safe_open(data, "pt") if isinstance(data, Path) else None

    def entry(self, key: str) -> Tensor | SpooledTensor:
        """A view of the bytes in memory, or a handle on those in the file."""
        dtype, shape, offset = self._entries[key]
        if not isinstance(self._data, Tensor):
            return SpooledTensor(self._file.get_slice(key), dtype, shape)
        size = torch.Size(shape).numel() * dtype.itemsize
        return self._data[offset : offset + size].view(dtype).view(shape)

    @property
    def size(self) -> int:
        """Length of the run of bytes, padding included."""
        return _layout((name, *self._entries[name][:2]) for name in self)[1]

    def bytes_into(self, out: Tensor) -> Tensor:
        """The run of bytes, uint8: as it lies in memory, or read from the file into `out`."""
        if isinstance(self._data, Tensor):
            return self._data
        return pack(self, out).bytes_into(out)

    def spool(self, path: Path) -> PackedState:
        """The same state in a new file; every entry lies there flattened, so that any part of it is a slice."""
        save_file({key: value.reshape(-1) for key, value in self.items()}, path)
        return PackedState(self.layout, path)

    def __getitem__(self, key: str) -> Tensor:
        found = self.entry(key)
        return found.load() if isinstance(found, SpooledTensor) else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        """Release the file, if there is one."""
        self._file = None


def layout_of(state: Mapping[str, Tensor]) -> tuple[list[Entry], int]:
    """Layout of the packed form and its length in bytes; entries keep the state's order."""
    return _layout((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items())


def _layout(forms: Iterable[tuple[str, torch.dtype, tuple[int, ...]]]) -> tuple[list[Entry], int]:
    layout: list[Entry] = []
    offset = 0
    for name, dtype, shape in forms:
        layout.append((name, str(dtype).removeprefix("torch."), shape, offset))
        offset += -(-torch.Size(shape).numel() * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    return layout, offset


def pack(state: Mapping[str, Tensor], out: Tensor | None = None) -> PackedState:
    """Copy a state into one run of bytes in host memory.

    Args:
        state: tensors on any device.
        out: uint8 buffer to reuse, at least as long as the packed state.
    """
    layout, size = layout_of(state)
    if out is None or out.numel() < size:
        out = torch.zeros(size, dtype=torch.uint8)
    packed = PackedState(layout, out[:size])
    for name, tensor in state.items():
        packed[name].copy_(tensor)
    return packed


def nbytes(state: Mapping[str, Tensor]) -> int:
    """Bytes of all tensors: what travels, without padding."""
    if isinstance(state, PackedState):
        return sum(torch.Size(shape).numel() * dtype.itemsize for dtype, shape, _ in state._entries.values())
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def select(state: Mapping[str, Tensor], keys: Iterable[str]) -> State:
    """The entries named by `keys`, in the state's own order."""
    wanted = set(keys)
    return {key: tensor for key, tensor in state.items() if key in wanted}


def under(state: Mapping[str, Tensor], prefix: str) -> State:
    """The entries whose keys begin with `prefix`, by the rest of their keys."""
    return {key.removeprefix(prefix): tensor for key, tensor in state.items() if key.startswith(prefix)}


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """One vector [P] of all tensors' elements in the given order; a copy, detached."""
    pieces = [tensor.detach().reshape(-1) for tensor in tensors]
    return torch.cat(pieces) if pieces else torch.empty(0)


def weighted_sum(
    tensors: Sequence[Tensor | SpooledTensor], weights: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """Sum `weights[k] * tensors[k]` in the given order and in float64.

    Fixed order and wide accumulator: the same result on any number of ranks. Product and sum are rounded one after the
    other, as in a plain loop: sums of float32 numbers with rational weights often lie half-way between two float32
    numbers, where a fused multiply-add, which not every processor has, would round the other way. Works in cache-sized
    pieces, so that the float64 temporaries cost no memory traffic. Integer buffers keep the largest value
    (docs/methods.md).

    Args:
        tensors: K tensors of one shape and dtype.
        weights: float64 [K].
        dtype: of the result; that of the tensors where none is given.

    Examples:
        >>> states = [torch.tensor([0.0, 2.0]), torch.tensor([4.0, 4.0])]
        >>> weighted_sum(states, torch.tensor([0.75, 0.25], dtype=torch.float64))
        tensor([1.0000, 2.5000])
    """
    first = tensors[0]
    result = torch.empty(torch.Size(first.shape), dtype=dtype or first.dtype)
    flat = result.view(-1)
    if not first.dtype.is_floating_point:
        flat.copy_(torch.stack([piece(tensor, 0, tensor.numel()) for tensor in tensors]).amax(0))
        return result
    factors = weights.tolist()
    size = min(CHUNK, max(1, flat.numel()))
    total, term = torch.empty(size, dtype=torch.float64), torch.empty(size, dtype=torch.float64)
    for start in range(0, flat.numel(), size):
        stop = min(start + size, flat.numel())
        accumulator, operand = total[: stop - start], term[: stop - start]
        accumulator.copy_(piece(first, start, stop)).mul_(factors[0])
        for tensor, factor in zip(tensors[1:], factors[1:], strict=True):
            accumulator.add_(operand.copy_(piece(tensor, start, stop)).mul_(factor))
        flat[start:stop].copy_(accumulator)
    return result


def ordered_sum(values: Tensor, dim: int = 0) -> Tensor:
    """Sum along a dimension, from the first element to the last: the same bits on every processor.

    The order of `torch.sum` depends on the width of the processor's vectors, and that of a matrix product on its BLAS.
    What a server computes is therefore summed here, by `dot`, or by `weighted_sum`.
    """
    return values.cumsum(dim).select(dim, -1)


def dot(first: Tensor, second: Tensor) -> Tensor:
    """Inner products along the last dimension, [..., P] and [..., P] -> [...], added as in `ordered_sum`."""
    return ordered_sum(first * second, -1)


def piece(tensor: Tensor | SpooledTensor, start: int, stop: int) -> Tensor:
    """Elements [start, stop) of the flattened tensor; of a spooled one no more than these is read."""
    return tensor.read(start, stop) if isinstance(tensor, SpooledTensor) else tensor.detach().reshape(-1)[start:stop]


def entries(uploads: Sequence[Upload], key: str) -> list[Tensor | SpooledTensor]:
    """Entry `key` of every upload, left on disk where the upload is spooled."""
    return [
        upload.state.entry(key) if isinstance(upload.state, PackedState) else upload.state[key] for upload in uploads
    ]


def first_not_finite(state: Mapping[str, Tensor]) -> str | None:
    """Name of the first floating entry with a NaN or infinity, or None.

    A sum is one read pass; only a sum that is not finite is looked at more closely.

    Examples:
        >>> first_not_finite({"model/a": torch.ones(2), "model/b": torch.tensor([1.0, torch.nan])})
        'model/b'
    """
    for key, tensor in state.items():
        if not tensor.is_floating_point() or bool(torch.isfinite(tensor.sum())):
            continue
        if not bool(torch.isfinite(tensor).all()):
            return key
    return None


def digest(*states: Mapping[str, Tensor]) -> str:
    """SHA-256 over the sorted (name, dtype, shape, bytes) of one or more states.

    Equal digests mean equal bits. Later states may repeat names of earlier ones; their order counts.

    Examples:
        >>> digest({"a": torch.zeros(1), "b": torch.ones(1)}) == digest({"b": torch.ones(1), "a": torch.zeros(1)})
        True
        >>> digest({"a": torch.tensor([0.0])}) == digest({"a": torch.tensor([-0.0])})  # equal numbers, other bits
        False
    """
    total = hashlib.sha256()
    for state in states:
        for key in sorted(state):
            tensor = state[key].detach().cpu().contiguous()
            total.update(f"{key}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
            total.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
        total.update(b"\xff")
    return total.hexdigest()
