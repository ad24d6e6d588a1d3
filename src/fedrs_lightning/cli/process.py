"""Settings of the process that a run changes: some must be made before torch is loaded, all are put back afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

from fedrs_lightning.engine.ranks.watch import RANK_ZERO, ROUNDS_ARE_KEPT
from fedrs_lightning.progress import waiting

LIBRARIES = ("lightning", "lightning.fabric", "lightning.pytorch")
SWEEP = "FEDRS_SWEEP"
"""Environment variable by which a run knows the process of the sweep that started it."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # names of glibc's mallopt(3)
_VARIABLES = (
    *("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG"),
    *("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE", "GLOO_SOCKET_IFNAME", RANK_ZERO),
    *("WANDB_MODE", "WANDB_SILENT"),
)


@contextlib.contextmanager
def run_settings() -> Iterator[None]:
    """Make a process ready for a run, before torch is loaded, and put back afterwards what the run changes."""
    variables = {name: os.environ.get(name) for name in _VARIABLES}
    levels = {name: logging.getLogger(name).level for name in LIBRARIES}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    hook = sys.excepthook
    prepare_process()
    with warnings.catch_warnings():
        if started_by_rank_zero():
            follow_rank_zero()
        with waiting("loading torch and lightning", rank()):
            import lightning  # noqa: F401  (sets the levels of its loggers when it is loaded)
            import torch

        threads = torch.get_num_threads()
        strict = torch.are_deterministic_algorithms_enabled()
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        cudnn = torch.backends.cudnn
        kernels = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark
        quieten()
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(strict, warn_only=warn_only)
            torch.set_float32_matmul_precision(kernels[0])
            cudnn.allow_tf32, cudnn.benchmark = kernels[1:]
            sys.excepthook = hook  # Weights & Biases sets one
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
            for name, value in variables.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def prepare_process() -> None:
    """Make CPU training quiet towards its neighbours and the kernel. Every rank calls it before torch is loaded.

    `OMP_WAIT_POLICY=PASSIVE`: OpenMP threads that wait by spinning take the core from other ranks on shared machines.
    glibc's allocator: tensors above its limit would be mapped and unmapped at every step. Both give way to the
    variables a user has set: `OMP_WAIT_POLICY`, and any of `MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_`,
    `MALLOC_TOP_PAD_`. `benchmarks/bench_allocator.py` measures the second.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    chosen = os.environ.keys() & {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_"}
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None  # absent from musl
    if mallopt is not None and not chosen:
        mallopt(_MMAP_THRESHOLD, 2**30)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_TOP_PAD, 2**28)


def quieten() -> None:
    """Silence launch chatter of Lightning and print warnings without source lines, on rank 0 alone."""
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", r".*`srun` command is available.*")
    if rank():
        warnings.simplefilter("ignore")
    warnings.showwarning = _one_line


def _one_line(message: Warning | str, *about: Any, **more: Any) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=more.get("file") or sys.stderr)


def rank() -> int:
    """Number of this process among those of a run, from what torchrun, srun or rank 0 has set."""
    # a rank started inside an allocation has the last one of its parent
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
        if name in os.environ:
            return int(os.environ[name])
    return 0


def started_by_rank_zero() -> bool:
    """Whether rank 0 of this run started this process."""
    return RANK_ZERO in os.environ and int(os.environ.get("LOCAL_RANK", "0")) > 0


def follow_rank_zero(every: float = 0.5) -> None:
    """End soon after rank 0 is gone; leave Ctrl-C, which comes to all processes at once, to rank 0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _follow(int(os.environ[RANK_ZERO]), every)


def follow_sweep(every: float = 0.5) -> None:
    """End soon after the sweep that started this process is gone, also by SIGKILL; without one, do nothing."""
    parent = os.environ.pop(SWEEP, "")  # not for the ranks that this process starts
    if parent.isdecimal():
        _follow(int(parent), every, f"fedrs fit: the sweep that started this run is gone; {ROUNDS_ARE_KEPT}")


def _follow(parent: int, every: float, words: str = "") -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(every)
        if words:
            os.write(2, f"{words}\n".encode())
        os._exit(2)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()
