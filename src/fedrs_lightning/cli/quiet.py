"""Keep libraries from talking over the run's own output; warnings of this package become one plain line."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from typing import Any, TextIO

from rich.console import Console

LIBRARIES = ("lightning", "lightning.fabric", "lightning.pytorch")


def quieten() -> None:
    """Silence launch chatter of Lightning and print warnings without source lines, on rank 0 alone: the others repeat
    them.
    """
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", r".*`srun` command is available.*")
    if rank():
        warnings.simplefilter("ignore")
    warnings.showwarning = _one_line


def rank() -> int:
    """Number of this process among those of a run, from what torchrun, srun or rank 0 has set."""
    for name in (
        "RANK",
        "LOCAL_RANK",
        "SLURM_PROCID",
    ):  # a rank started inside an allocation has the last one of its parent
        if name in os.environ:
            return int(os.environ[name])
    return 0


def waiting(words: str) -> contextlib.AbstractContextManager[Any]:
    """On a terminal, say what a wait of seconds is for, and take it back."""
    console = Console(stderr=True)
    shown = console.is_terminal and not console.is_dumb_terminal and not rank()
    return console.status(words) if shown else contextlib.nullcontext()


def _one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=file or sys.stderr)
