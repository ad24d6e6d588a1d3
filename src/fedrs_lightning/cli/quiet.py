"""Keep libraries from talking over the run's own output; warnings of this package become one plain line."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import TextIO

LIBRARIES = ("lightning", "lightning.fabric", "lightning.pytorch")


def quieten() -> None:
    """Silence launch chatter of Lightning and print warnings without source lines."""
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", r".*`srun` command is available.*")
    warnings.showwarning = _one_line


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=file or sys.stderr)
