"""Every method on a device that refuses what CUDA refuses: nothing in a step waits for it, and its bits are the CPU's.

One process plays all cases, first on the CPU, then on the device. Deterministic kernels are asked for, and an operation
without one is an error. Where that changes a computation, as of bilinear maps, it does on the CPU too here.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import pytest
import torch

from fedrs_lightning import methods
from fedrs_lightning.methods import MOON, FedGPS
from fedrs_lightning.nn import interpolation

from ..engine.conftest import make_engine, make_several, multilabel_task
from ..methods.checks import SEGMENTATION, finite
from ..methods.conftest import make_segmentation_federation, small_segmentation_task
from ..methods.test_every_method import CASES, engine_of
from . import pretended
from .pretended import LEDGER, There, apart

WAITS_A_VISIT = 10
"""Most waits for the device in a client's local training, from the install until its upload is handed over."""

SHORT: dict[str, Any] = {"num_rounds": 2, "clients_per_round": 2, "local_epochs": 1, "batch_size": 8}
SMALL = {"federation": make_segmentation_federation((5, 9, 6), num_test=2)}
MORE: dict[str, tuple[Any, dict[str, Any]]] = {
    "FedAvg, ce_dice": (methods.FedAvg, SEGMENTATION | {"make_task": partial(small_segmentation_task, loss="ce_dice")}),
    "MOON, segmentation": (partial(MOON, projection=False, first_round="use_global"), SEGMENTATION),
    "FedGPS, several labels": (FedGPS, {"federation": make_several(), "make_task": multilabel_task}),
}


def case_of(name: str) -> tuple[Any, dict[str, Any]]:
    """Method and options of the engine, on few rounds of few clients."""
    make, given = MORE[name] if name in MORE else (CASES[name][0], engine_of(name))
    short = dict(SHORT)
    if "FedDAP" in name:
        make = partial(make, sync_every=1)
    if name == "Centralised":
        short["clients_per_round"] = None
    return make, given | (SMALL if "mask" in _sample(given) else {}) | short


def _sample(given: dict[str, Any]) -> Any:
    federation = given.get("federation")
    return {} if federation is None else federation.source.gather([0])


@dataclass
class Found:
    """What a run showed."""

    digest: str
    finite: bool
    waits: dict[tuple[str, str, str], int] = field(default_factory=dict)
    visits: list[int] = field(default_factory=list)
    steps: int = 0
    problem: str | None = None

    def of(self, *phases: str) -> dict[str, int]:
        """Waits by place."""
        return {f"{where} {what}": count for (phase, where, what), count in self.waits.items() if phase in phases}


def play(name: str, half: bool, there: bool, folder: Path, ends: tuple[int, ...] = (2,)) -> Found:
    """Run a case, on the device or on the CPU; anew up to each of these rounds, without memories at hand then."""
    make, options = case_of(name)
    if len(ends) > 1:
        options |= {"options": {"memory_cache": 0.0}}
    LEDGER.clear()
    for end in ends:
        fabric = pretended.launched(half) if there else L.Fabric(accelerator="cpu", devices=1)
        fabric.launch()
        engine = make_engine(fabric, make(), folder, **options | {"num_rounds": end})
        watch(engine)
        engine.resume()
        assert engine.round == (0 if end == ends[0] else ends[0])
        engine.fit()
    assert (engine.collector._on_device is not None) == (there and engine.method.streams)
    assert not any(isinstance(value, There) for value in engine.server.values())
    return Found(engine.digest(), finite(engine.server), dict(LEDGER.waits), list(LEDGER.visits), LEDGER.steps)


def watch(engine: Any) -> None:
    """Tell the ledger when a visit and a step begin and end."""
    train, put, step = engine.local.train, engine.collector.put, engine.method.local_step

    def visit(*args: Any) -> Any:
        LEDGER.visits.append(0)
        with LEDGER.during("visit"):
            return train(*args)

    def hand_over(*args: Any) -> Any:
        with LEDGER.during("visit"):
            return put(*args)

    def local_step(*args: Any) -> Any:
        LEDGER.steps += 1
        with LEDGER.during("step"):
            return step(*args)

    engine.local.train, engine.collector.put, engine.method.local_step = visit, hand_over, local_step


def play_all(names: list[str], half: bool, ends: tuple[int, ...] = (2,)) -> dict[str, tuple[Found | None, Found]]:
    """Each case on the CPU (in single precision) and on the device."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    interpolation.wanted = lambda device: True
    found = {}
    for name in names:
        with TemporaryDirectory() as folder:
            try:
                cpu = None if half else play(name, False, False, Path(folder) / "cpu")  # without a break
                found[name] = cpu, play(name, half, True, Path(folder) / "device", ends)
            except Exception:  # the other cases are shown too
                found[name] = None, Found("", False, problem=traceback.format_exc())
    return found


HALF = [name for name in CASES if ", " not in name]


RESUMED = ["FedAvg", "FedBN", "MOON", "FedDC", "FedGPS", "FedDAP", "LocalOnly"]
"""Memories of every kind, and servers that keep entries of their own."""


@cache
def resumed() -> dict[str, tuple[Found | None, Found]]:
    result: dict[str, tuple[Found | None, Found]] = apart(play_all, RESUMED, False, (1, 2))
    return result


@cache
def outcomes(half: bool) -> dict[str, tuple[Found | None, Found]]:
    result: dict[str, tuple[Found | None, Found]] = apart(play_all, HALF if half else [*CASES, *MORE], half)
    return result


def test_every_method_is_here():
    made = {type(make()).__name__ for make, _ in CASES.values()}
    assert {type(CASES[name][0]()).__name__ for name in HALF} == made == set(methods.__all__)


@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_single_precision(name):
    cpu, device = outcomes(False)[name]
    check(device)
    assert cpu is not None
    assert device.digest == cpu.digest


@pytest.mark.parametrize("name", RESUMED)
def test_resumed_and_without_memories_at_hand(name):
    cpu, device = resumed()[name]
    check(device)
    assert cpu is not None
    assert device.digest == cpu.digest


@pytest.mark.parametrize("name", HALF)
def test_half_precision(name):
    check(outcomes(True)[name][1])


def check(device: Found) -> None:
    assert device.problem is None, device.problem
    assert device.finite
    assert device.steps >= len(device.visits) > 1
    assert device.of("step") == {}
    assert {place for place in device.of("visit") if place.startswith("data/")} == set(), "loading waits"
    visit = device.of("visit")
    assert max(device.visits) <= WAITS_A_VISIT, visit
