"""Algebra on flat states (`dict[str, Tensor]`): weighted sums, norms, digests. Plain functions.

Sums that enter the server state run in float64 and in a stated order, and no processor, BLAS, device or number of
threads decides their bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.flat import FlatLayout, FlatState, side_by_side
from fedrs_lightning.types import State, Upload

CHUNK = 262_144
"""Elements of a piece: its float64 sum and operand (4 MiB) stay in cache while every upload passes by."""

DEVICE_CHUNK = 2**24
"""The same on another device than the CPU, where a piece is a few kernels and a copy."""

_THREADS: ContextVar[int] = ContextVar("threads of a sum", default=1)
_DEVICE: ContextVar[torch.device | None] = ContextVar("device of a sum", default=None)


@contextmanager
def summing(threads: int = 1, device: torch.device | None = None) -> Iterator[None]:
    """Let `weighted_sum` use so many threads, or a device that is not the CPU. The bits are the same."""
    tokens = _THREADS.set(threads), _DEVICE.set(None if device is None or device.type == "cpu" else device)
    try:
        yield
    finally:
        _THREADS.reset(tokens[0])
        _DEVICE.reset(tokens[1])


def nbytes(state: Mapping[str, Tensor]) -> int:
    """Bytes of all tensors: what travels, without padding."""
    if isinstance(state, FlatState):
        return state.layout.content()
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
    tensors: Sequence[Tensor], weights: Tensor, dtype: torch.dtype | None = None, divisor: float = 1.0
) -> Tensor:
    """Sum `weights[k] * tensors[k]`, divided by `divisor`, in the given order and in float64.

    Fixed order and wide accumulator: the same result on any number of ranks. Product and sum are rounded one after the
    other, as in a plain loop: sums of float32 numbers with rational weights often lie half-way between two float32
    numbers, where a fused multiply-add, which not every processor has, would round the other way. Works in cache-sized
    pieces, so that the float64 temporaries cost no memory traffic. Integer buffers keep the largest value
    (docs/methods.md).

    Args:
        tensors: K tensors of one shape and dtype, in host memory.
        weights: float64 [K].
        dtype: of the result; that of the tensors where none is given.
        divisor: of the sum.

    Examples:
        >>> states = [torch.tensor([0.0, 2.0]), torch.tensor([4.0, 4.0])]
        >>> weighted_sum(states, torch.tensor([0.75, 0.25], dtype=torch.float64))
        tensor([1.0000, 2.5000])
    """
    result = torch.empty_like(tensors[0], dtype=dtype or tensors[0].dtype)
    *parts, out = side_by_side([*tensors, result])
    sum_into(out, parts, weights.tolist(), divisor)
    if out.data_ptr() != result.data_ptr():  # laid out otherwise than the tensors
        result.copy_(out.view(result.shape))
    return result


def numerators(weights: Tensor, uploads: Sequence[Upload]) -> tuple[Tensor, float]:
    """Weights over a common denominator: ones and K, or numbers of samples and their sum, where that is what they are.

    A whole number times a float32 number is exact in float64, so that such a sum rounds once less for each upload.

    Args:
        weights: float64 [K].
        uploads: whose clients they weigh.
    """
    samples = torch.tensor([upload.client.num_samples for upload in uploads], dtype=torch.float64)
    for counts in (torch.ones_like(samples), samples):
        total = ordered_sum(counts)
        if torch.equal(weights, counts / total):
            return counts, float(total)
    return weights, 1.0


def flat_sum(states: Sequence[FlatState], keys: Iterable[str], weights: Tensor, divisor: float = 1.0) -> State:
    """`weighted_sum` of these entries of flat states that have the same places: one sum a dtype."""
    wanted = set(keys)
    layout = states[0].layout
    layout = FlatLayout((entry for entry in layout.entries if entry.name in wanted), layout.size)
    total = FlatState(layout, torch.zeros(layout.size, dtype=torch.uint8))
    for run in layout.runs():
        sum_into(run.of(total.data), [run.of(state.data) for state in states], weights.tolist(), divisor)
    return dict(total)


def sum_into(out: Tensor, parts: Sequence[Tensor], factors: Sequence[float], divisor: float = 1.0) -> None:
    """`weighted_sum` of vectors [P] into `out` [P]; with the threads or the device that `summing` names."""
    device = _DEVICE.get()

    def work(start: int, stop: int) -> None:
        size = min(CHUNK if device is None else DEVICE_CHUNK, stop - start)
        total = torch.empty(size, dtype=total_dtype(parts[0].dtype), device=device)
        operand = torch.empty_like(total)
        pieces = (vector[start:stop].split(size) for vector in (out, *parts))
        for result, *others in zip(*pieces, strict=True):
            running = total[: len(result)]
            _add(running, others, factors, operand, fresh=True)
            result.copy_(_divided(running, divisor))

    _spread(len(out), work)


def add_to(total: Tensor, parts: Sequence[Tensor], factors: Sequence[float], fresh: bool) -> bool:
    """Add `factors[k] * parts[k]` to a running sum in the given order; the bits are those of one `weighted_sum`.

    Several parts at once cost less than one after the other: the sum is read and written once.

    Args:
        total: [P] of `total_dtype`, changed in place.
        parts: vectors [P] of one dtype on the device of `total`.
        factors: one a part.
        fresh: forget what `total` holds.

    Returns:
        Whether the sum is finite now. It is looked at while it is in the cache.
    """
    size = CHUNK if total.device.type == "cpu" else DEVICE_CHUNK
    sums: list[Tensor] = []

    def work(start: int, stop: int) -> None:
        operand = torch.empty(min(size, stop - start), dtype=total.dtype, device=total.device)
        pieces = (vector[start:stop].split(size) for vector in (total, *parts))
        for running, *others in zip(*pieces, strict=True):
            _add(running, others, factors, operand, fresh)
            if running.is_floating_point():
                sums.append(running.sum())

    _spread(len(total), work)
    return not sums or bool(torch.stack(sums).isfinite().all())


def total_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of a sum of such numbers: float64, or the dtype itself where the largest value is kept."""
    return torch.float64 if dtype.is_floating_point else dtype


def write_sum(out: Tensor, total: Tensor, divisor: float) -> None:
    """A running sum over its divisor, rounded to the dtype of `out`; `total` is used up."""
    size = CHUNK if total.device.type == "cpu" else DEVICE_CHUNK

    def work(start: int, stop: int) -> None:
        pieces = (vector[start:stop].split(size) for vector in (out, total))
        for result, running in zip(*pieces, strict=True):
            result.copy_(_divided(running, divisor))

    _spread(len(total), work)


def _divided(total: Tensor, divisor: float) -> Tensor:
    return total.div_(divisor) if total.is_floating_point() and divisor != 1 else total


def _add(total: Tensor, pieces: Sequence[Tensor], factors: Sequence[float], operand: Tensor, fresh: bool) -> None:
    floating, operand = total.is_floating_point(), operand[: len(total)]
    for piece, factor in zip(pieces, factors, strict=True):
        if fresh:
            total.copy_(piece)
            if floating and factor != 1:
                total.mul_(factor)
        elif not floating:
            torch.maximum(total, operand.copy_(piece), out=total)
        elif _exact(factor, piece.dtype):  # whether a processor rounds once or twice makes no difference then
            total.add_(operand.copy_(piece), alpha=factor)
        else:
            total.add_(operand.copy_(piece).mul_(factor))
        fresh = False


def _exact(factor: float, dtype: torch.dtype) -> bool:
    """Whether all products with numbers of this dtype are float64 numbers: 24 bits times 29."""
    return dtype != torch.float64 and factor.is_integer() and abs(factor) < 2**29


def _spread(length: int, work: Callable[[int, int], None]) -> None:
    """Cut the elements [0, length) into one range a thread: they do not depend on each other."""
    threads = 1 if _DEVICE.get() is not None else min(_THREADS.get(), -(-length // CHUNK))
    if threads <= 1:
        if length:
            work(0, length)
        return
    cuts = [length * number // threads for number in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, cuts, cuts[1:]))


def ordered_sum(values: Tensor, dim: int = 0) -> Tensor:
    """Sum along a dimension, from the first element to the last: the same bits on every processor.

    The order of `torch.sum` depends on the width of the processor's vectors, and that of a matrix product on its BLAS.
    What a server computes is therefore summed here, by `dot`, or by `weighted_sum`.
    """
    return values.cumsum(dim).select(dim, -1)


def dot(first: Tensor, second: Tensor) -> Tensor:
    """Inner products along the last dimension, [..., P] and [..., P] -> [...], added as in `ordered_sum`."""
    return ordered_sum(first * second, -1)


def entries(uploads: Sequence[Upload], key: str) -> list[Tensor]:
    """Entry `key` of every upload."""
    return [upload.state[key] for upload in uploads]


class Summed(list[Upload]):
    """Uploads whose shared entries were added while clients trained, with weights that were known before.

    Args:
        uploads: with the method's own entries alone.
        weights: float64 [K], by which the shared entries were added.
        mean: their weighted sum.
    """

    def __init__(self, uploads: Iterable[Upload], weights: Tensor, mean: State) -> None:
        super().__init__(uploads)
        self.weights, self.mean = weights, mean

    def mean_under(self, weights: Tensor) -> State:
        """The weighted sum of the shared entries.

        Raises:
            ConfigError: these are not the weights that were known before training.
        """
        if not torch.equal(weights, self.weights):
            problem = "the aggregation weights after training are others than before it"
            raise ConfigError(f"{problem}; a method whose weights depend on the uploads says `streams = False`")
        return dict(self.mean)


def first_not_finite(*states: Mapping[str, Tensor]) -> str | None:
    """Name of the first floating entry with a NaN or infinity, or None.

    A sum is one read pass, and a device is asked once for all of them; only where one is not finite, entries are looked
    at more closely.

    Examples:
        >>> first_not_finite({"model/a": torch.ones(2), "model/b": torch.tensor([1.0, torch.nan])})
        'model/b'
    """
    sums: dict[torch.device, list[Tensor]] = {}
    for state in states:
        for tensor in _in_few(state):
            if tensor.is_floating_point():
                sums.setdefault(tensor.device, []).append(tensor.sum().double())
    if all(bool(torch.isfinite(torch.stack(own)).all()) for own in sums.values()):
        return None
    for state in states:
        for key, tensor in state.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                return key
    return None


def _in_few(state: Mapping[str, Tensor]) -> Iterable[Tensor]:
    return (run.of(state.data) for run in state.layout.runs()) if isinstance(state, FlatState) else state.values()


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
