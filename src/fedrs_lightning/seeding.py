"""Random streams that are functions of words, never of ranks, workers or what ran before.

`stream_seed(seed, "local", round, client)` names a stream. Two different word lists give independent streams; the same
list gives the same numbers on any machine and any number of ranks.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

Word = int | str


def stream_seed(*words: Word) -> int:
    """Seed in [0, 2**63) of the stream that `words` name (SHA-256 of their typed spelling).

    Examples:
        >>> stream_seed(0, "local", 1, 2)
        7014206108791978390
        >>> stream_seed(0, "local", 1, 2) == stream_seed(0, "local", 1, "2")
        False
    """
    for word in words:
        if not isinstance(word, (int, str)) or isinstance(word, bool):
            raise TypeError(f"a stream is named by int and str, not {type(word).__name__}: {word!r}")
    spelling = "\x1f".join(f"{type(word).__name__}:{word}" for word in words)
    return int.from_bytes(hashlib.sha256(spelling.encode()).digest()[:8], "big") >> 1


@contextmanager
def rng_stream(*words: Word) -> Iterator[int]:
    """Run the body with the global generators of Python, NumPy and torch set to the stream; restore them afterwards.

    Examples:
        >>> with rng_stream(0, "model"):
        ...     first = torch.rand(2)
        >>> with rng_stream(0, "model"):
        ...     torch.equal(torch.rand(2), first)
        True
    """
    seed = stream_seed(*words)
    python, legacy = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        try:
            yield seed
        finally:
            random.setstate(python)
            np.random.set_state(legacy)


def numpy_stream(*words: Word) -> np.random.Generator:
    """NumPy generator of the stream."""
    return np.random.Generator(np.random.PCG64(stream_seed(*words)))


def uniform(count: int, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """`count` float32 numbers in [0, 1) of a CPU generator, on a device that is not waited for.

    A GPU copies from pinned memory while the process goes on; from other memory it would keep it waiting.
    """
    drawn = torch.rand(count, generator=generator, pin_memory=device.type == "cuda")
    return drawn.to(device, non_blocking=True)


def torch_stream(*words: Word) -> torch.Generator:
    """CPU torch generator of the stream."""
    return torch.Generator().manual_seed(stream_seed(*words))
