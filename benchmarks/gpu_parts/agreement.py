"""How far the device's results are from the CPU's: parameters after one round of each case, losses after three.

In float32 the parameters count, as the distance over the length of the way that training went, after the first round:
in later ones methods choose, by a threshold or a cluster, and rounding may turn a choice. From then on the mean losses
count, and in bfloat16 they alone. Training is by plain SGD, whose steps, unlike Adam's first ones, do not enlarge
rounding. On a machine without a GPU the other side is the same CPU with torch's own kernels instead of oneDNN's, which
round otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch

from fedrs_lightning.engine.engine import Engine
from fedrs_lightning.engine.settings import FabricSettings
from fedrs_lightning.types import State
from gpu_parts.cases import names, play, problem
from gpu_parts.sheet import Setting, Sheet

ROUNDS = 3  # after the first, methods have what they compare with; FedDAP synchronises after the second
DISTANCE = 1e-3
"""Between kernels of one CPU it is 3e-5 at most."""

LOSSES = {"32-true": 0.02, "bf16-mixed": 0.15}
"""Relative difference of the last mean loss; between kernels of one CPU 0.003 and 0.05 at most."""


class Kept:
    """A callback: the trained parameters before and after the first round, and the losses of all rounds."""

    def __init__(self) -> None:
        self.parameters: list[State] = []
        self.losses: list[float] = []

    def on_run_start(self, engine: Engine) -> None:
        self.parameters, self.losses = [_parameters(engine)], []

    def on_round_end(self, engine: Engine, record: dict[str, Any]) -> None:
        if not self.losses:
            self.parameters.append(_parameters(engine))
        self.losses.append(float(record["metrics"]["train/loss"]))


def agreement(setting: Setting, sheet: Sheet) -> None:
    """Every case in float32, with products in full precision, and in bfloat16; against the CPU's float32."""
    offered = "matmul_precision" in FabricSettings.__dataclass_fields__
    exact = {"matmul_precision": "highest"} if offered else {}
    kept = Kept()
    cpu = Setting("cpu", setting.quick, setting.folder).fabric(callbacks=[kept])
    fabrics = {kind: setting.fabric(callbacks=[kept], precision=kind, **exact) for kind in LOSSES}
    if setting.cuda:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    distance, differences = 0.0, dict.fromkeys(LOSSES, 0.0)
    for done, name in enumerate(names(setting), start=1):
        try:
            before, after, losses = _run(name, cpu, setting, kept)
            found = {}
            for precision, fabric in fabrics.items():
                with _other_kernels(setting):
                    found[precision] = _run(name, fabric, setting, kept)
        except Exception as error:  # whatever it is, the other cases are shown too
            sheet.row(f"{name} failed", 1, at_most=0)
            sheet.detail(name, {"error": problem(error)})
            continue
        way, apart = _distance(after, before), _distance(after, found["32-true"][1])
        distance = max(distance, apart / way if way else 0.0)  # there is no way where no model is shared
        for precision, (_, _, theirs) in found.items():
            differences[precision] = max(differences[precision], abs(theirs[-1] - losses[-1]) / losses[-1])
        shown = {"CPU": losses} | {precision: theirs for precision, (_, _, theirs) in found.items()}
        sheet.detail(name, {"way": way, "distance": apart, "losses": shown})
        sheet.row("cases done", done)
        sheet.row("float32: largest distance from the CPU's, round 1", distance, "of the way", at_most=DISTANCE)
        for precision, tolerance in LOSSES.items():
            text = f"{precision}: largest difference of a loss, round {ROUNDS}"
            sheet.row(text, differences[precision], "of it", at_most=tolerance)


def _run(name: str, fabric: L.Fabric, setting: Setting, kept: Kept) -> tuple[State, State, list[float]]:
    with setting.scratch() as folder:
        play(name, fabric, Path(folder), num_rounds=ROUNDS, optimizer=partial(torch.optim.SGD, lr=0.02))
    return *kept.parameters, kept.losses  # type: ignore[return-value]


def _parameters(engine: Engine) -> State:
    keys = [f"model/{name}" for name, _ in engine.task.model.named_parameters()]
    return {key: engine.server[key].cpu().clone() for key in keys if key in engine.server}


def _distance(one: State, other: State) -> float:
    return sum(float((value - other[key]).double().square().sum()) for key, value in one.items()) ** 0.5


@contextlib.contextmanager
def _other_kernels(setting: Setting) -> Iterator[None]:
    """On a CPU, torch's own kernels."""
    with contextlib.nullcontext() if setting.cuda else torch.backends.mkldnn.flags(enabled=False, allow_tf32=False):
        yield
