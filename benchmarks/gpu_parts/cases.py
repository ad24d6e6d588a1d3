"""The method cases of the tests, run by the engine on any device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L

from fedrs_lightning.engine.engine import Engine
from gpu_parts.sheet import ROOT, Setting

sys.path.insert(0, str(ROOT))

from tests.engine.conftest import make_engine
from tests.methods.test_every_method import CASES, engine_of

FEW = ("FedAvg", "FedMAD", "FedSeg", "FedDAP")
"""One of each kind of upload and task, for a quick look."""


def names(setting: Setting) -> tuple[str, ...]:
    """Cases to run."""
    return FEW if setting.quick else tuple(CASES)


def play(
    name: str, fabric: L.Fabric, path: Path, before: Callable[[Engine], None] | None = None, **changed: Any
) -> Engine:
    """Run a case in `path`; the finished engine."""
    engine = make_engine(fabric, CASES[name][0](), path, **engine_of(name) | changed)
    if before is not None:
        before(engine)
    engine.fit()
    return engine


def problem(error: BaseException) -> str:
    """What went wrong, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
