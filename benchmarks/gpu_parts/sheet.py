"""What a part of gpu_check.py is told, and the sheet on which it writes what it finds, as it goes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import lightning as L
import torch

from fedrs_lightning.engine.ranks.strategy import build_fabric
from fedrs_lightning.engine.settings import FabricSettings
from fedrs_lightning.files import write_json

ROOT = Path(__file__).resolve().parents[2]


class NotYet(Exception):
    """Something that this state of the code does not offer; the part ends with it as its reason."""


@dataclass
class Setting:
    """How a part runs.

    Attributes:
        device: `cuda` or `cpu`.
        quick: small networks and few cases, so that a CPU does it in seconds.
        folder: where the sheets of all parts lie.
    """

    device: str
    quick: bool
    folder: Path

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    def goal(self, **goal: float) -> dict[str, float]:
        """A goal that is one for full forms on a GPU alone."""
        return goal if self.cuda and not self.quick else {}

    def scratch(self) -> tempfile.TemporaryDirectory[str]:
        """A folder for runs."""
        return tempfile.TemporaryDirectory(prefix="fedrs-gpu-")

    def fabric(self, ranks: int = 1, callbacks: Sequence[Any] = (), **settings: Any) -> L.Fabric:
        """A launched Fabric of one device with so many ranks on it, as `fedrs fit` makes it.

        Raises:
            NotYet: several ranks on one GPU are not offered.
        """
        offered = {field.name for field in fields(FabricSettings)}
        given: dict[str, Any] = {"accelerator": "gpu" if self.cuda else "cpu", "devices": 1, "deterministic": "true"}
        if ranks > 1 and self.cuda:
            if "ranks_per_device" not in offered:
                raise NotYet("FabricSettings has no ranks_per_device")
            given["ranks_per_device"] = ranks
        elif ranks > 1:
            given["devices"] = ranks
        fabric = build_fabric(FabricSettings(**given | settings), num_clients=1000, callbacks=callbacks)
        fabric.launch()
        return fabric

    def wait(self) -> None:
        """Until the device has done all that was asked."""
        if self.cuda:
            torch.cuda.synchronize()


class Sheet:
    """Rows for people and details for later questions, written to a file after each.

    Args:
        path: the file; ranks other than 0 write nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}
        self.details: dict[str, Any] = {}
        self._write()

    def row(self, name: str, value: float, unit: str = "", **goal: float) -> None:
        """A number under a name, in place of an earlier one of that name; `at_most` or `at_least` is its goal."""
        row = {"name": name, "value": value, "unit": unit} | goal
        if goal:
            row["met"] = value <= goal["at_most"] if "at_most" in goal else value >= goal["at_least"]
        self.rows[name] = row
        self._write()

    def detail(self, name: str, value: Any) -> None:
        """Plain JSON values under a name."""
        self.details[name] = value
        self._write()

    def _write(self) -> None:
        if int(os.environ.get("LOCAL_RANK", "0")) == 0:
            write_json(self.path, {"rows": list(self.rows.values()), "details": self.details})
