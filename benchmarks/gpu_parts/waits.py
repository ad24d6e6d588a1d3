"""How often the host waits for the device, by source line: inside a step, inside a visit, and elsewhere in a round.

CUDA reports its waits itself (`torch.cuda.set_sync_debug_mode`). On a CPU the operations that would wait on a GPU are
counted instead, without goals: there are no copies between devices, and much of what is read lies on the host anyway.
"""

from __future__ import annotations

import collections
import contextlib
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_parts.cases import names, play, problem
from gpu_parts.sheet import Setting, Sheet

PACKAGE = "fedrs_lightning"
VISIT = 10
"""Waits that a visit of a client may take outside its steps: its loss terms, finite checks, upload and memory."""

READS = {
    *("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::is_nonzero", "aten::unique_dim"),
    *("aten::_unique2", "aten::unique_consecutive", "aten::masked_select", "aten::bincount"),
}
"""Operations of whose result the host needs values or size."""

MASKED = {"aten::index", "aten::index_put_", "aten::_index_put_impl_"}
"""The same, where an index is a mask."""


class Count:
    """Waits by place, and how many steps and visits there were."""

    def __init__(self) -> None:
        self.where = ["round"]
        self.waits: collections.Counter[tuple[str, str]] = collections.Counter()
        self.visits = self.steps = 0

    def wait(self) -> None:
        """One wait, of the innermost line of this package that runs."""
        frames = [frame for frame in traceback.extract_stack() if f"/{PACKAGE}/" in frame.filename]
        line = f"{frames[-1].filename.rpartition(PACKAGE + '/')[2]}:{frames[-1].lineno}" if frames else "elsewhere"
        self.waits[self.where[-1], line] += 1

    def within(self, place: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose waits are those of `place`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.where.append(place)
            self.steps += place == "step"
            self.visits += place == "visit"
            try:
                return function(*args, **kwargs)
            finally:
                self.where.pop()

        return call

    def total(self, place: str) -> int:
        return sum(count for (where, _), count in self.waits.items() if where == place)

    def attach(self, engine: Any) -> None:
        """Watch an engine's steps and visits."""
        engine.method.local_step = self.within("step", engine.method.local_step)
        engine.local.train = self.within("visit", engine.local.train)


class _Reads(TorchDispatchMode):
    def __init__(self, count: Count) -> None:
        super().__init__()
        self.count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if (name in READS or (name in MASKED and _masked(args[1]))) and not _in_optimiser():
            self.count.wait()
        return func(*args, **kwargs or {})


def _in_optimiser() -> bool:
    """Whether an optimiser asks: its counters of its steps lie on the host, whatever it trains."""
    return any("/torch/optim/" in frame.filename for frame in traceback.extract_stack())


def _masked(indices: Any) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


@contextlib.contextmanager
def counting(setting: Setting, count: Count) -> Iterator[None]:
    """Report every wait of the body to `count`."""
    if not setting.cuda:
        with _Reads(count):
            yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        show = warnings.showwarning

        def note(message: Any, *about: Any, **more: Any) -> None:
            if "synchronizing CUDA operation" in str(message):
                count.wait()
            else:
                show(message, *about, **more)

        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def waits(setting: Setting, sheet: Sheet) -> None:
    """Every case."""
    fabric = setting.fabric()
    steps, most = 0, 0.0
    for done, name in enumerate(names(setting), start=1):
        count = Count()
        try:
            with setting.scratch() as folder, counting(setting, count):
                play(name, fabric, Path(folder), count.attach)
        except Exception as error:  # whatever it is, the other cases are shown too
            sheet.row(f"{name} failed", 1, at_most=0)
            sheet.detail(name, {"error": problem(error)})
            continue
        if not count.steps or not count.visits:
            raise SystemExit("waits: the engine no longer trains through local.train and method.local_step")
        steps += count.total("step")
        most = max(most, count.total("visit") / count.visits)
        lines = {f"{where} {line}": number for (where, line), number in count.waits.most_common()}
        sheet.detail(name, {"steps": count.steps, "visits": count.visits, "waits": lines})
        sheet.row("cases done", done)
        sheet.row("waits inside steps, all cases together", steps, **setting.goal(at_most=0))
        sheet.row("waits outside steps, the case with most", most, "a visit", **setting.goal(at_most=VISIT))
