"""Settings of the process that must be made before torch is loaded."""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # names of glibc's mallopt(3)


def prepare_process() -> None:
    """Make CPU training quiet towards its neighbours and towards the kernel. Every rank calls it.

    `OMP_WAIT_POLICY=PASSIVE`: OpenMP threads that wait by spinning take the core from other ranks on shared machines.
    glibc's allocator: tensors above its limit would be mapped and unmapped at every step. Both give way to the variables
    a user has set: `OMP_WAIT_POLICY`, and any of `MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_`, `MALLOC_TOP_PAD_`.
    `benchmarks/allocator.py` measures the second.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    chosen = [name for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_") if name in os.environ]
    if sys.platform != "linux" or chosen:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # absent from musl
        mallopt(_MMAP_THRESHOLD, 2**30)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_TOP_PAD, 2**28)
