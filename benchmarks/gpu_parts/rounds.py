"""Share of a round that is not inside local steps, and peak memory of device and host.

The time inside steps is the device's own, between events around each step; on a CPU it is the clock's.
"""

from __future__ import annotations

import resource
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedrs_lightning.engine.engine import Engine
from fedrs_lightning.engine.settings import Schedule
from fedrs_lightning.methods import FedMAD
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks import ClassificationTask
from gpu_parts.federations import federation
from gpu_parts.sheet import Setting, Sheet
from gpu_parts.timing import Timings

ROUNDS = 4


class Steps:
    """Seconds inside the steps of each round; a callback of the engine, and a wrapper of its method's step."""

    def __init__(self, setting: Setting) -> None:
        self.cuda, self.rounds = setting.cuda, [0.0]
        self._events: list[tuple[Any, Any]] = []

    def watch(self, engine: Engine) -> None:
        """Time every step of an engine."""
        step = engine.method.local_step

        def timed(*args: Any) -> Any:
            if not self.cuda:
                start = time.perf_counter()
                found = step(*args)
                self.rounds[-1] += time.perf_counter() - start
                return found
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before.record()
            found = step(*args)
            after.record()
            self._events.append((before, after))
            return found

        engine.method.local_step = timed  # type: ignore[method-assign]

    def on_round_end(self, **_: Any) -> None:
        if self._events:
            self._events[-1][1].synchronize()
        self.rounds[-1] += sum(before.elapsed_time(after) for before, after in self._events) / 1000
        self._events.clear()
        self.rounds.append(0.0)


def rounds(setting: Setting, sheet: Sheet) -> None:
    """FedMAD with clients of many steps, and with many clients of one step."""
    quick = setting.quick
    backbone, width = ("resnet18", 8) if quick else ("resnet50", 64)
    sizes = {"10 clients of 20 steps": [160] * 2 if quick else [2560] * 10}
    sizes["64 clients of one step"] = [8] * 6 if quick else [128] * 64
    for name, counts in sizes.items():
        steps, clock = Steps(setting), Timings()
        fabric = setting.fabric(callbacks=[clock, steps], deterministic="warn")
        with rng_stream(0, "model"):
            task = ClassificationTask(backbone, 10, 3, width)  # type: ignore[arg-type]
        task.optimizer = partial(torch.optim.Adam, lr=1e-3)
        if setting.cuda:
            torch.cuda.reset_peak_memory_stats()
        data = federation(counts, 64 if quick else 2560, 32 if quick else 64)
        schedule = Schedule(ROUNDS, batch_size=8 if quick else 128)
        with setting.scratch() as folder:
            engine = Engine(fabric, task, FedMAD(), data, schedule, seed=0, path=Path(folder), channels_last=True)
            steps.watch(engine)
            engine.fit()
        # The first round warms up. Each lasts from its end to the end of the one before, whatever runs meanwhile.
        seconds = [later - earlier for earlier, later in zip(clock.ends, clock.ends[1:], strict=False)]
        shares = [1 - inside / whole for inside, whole in zip(steps.rounds[1:], seconds, strict=False)]
        sheet.row(f"{name}: seconds of a round", sorted(seconds)[len(seconds) // 2], "s")
        sheet.row(f"{name}: share of a round outside the steps", sorted(shares)[len(shares) // 2])
        sheet.detail(name, {"seconds": seconds, "shares": shares, "timing": clock.rounds})
        if setting.cuda:
            sheet.row(f"{name}: peak memory of tensors on the device", torch.cuda.max_memory_allocated() / 2**30, "GiB")
            sheet.row(f"{name}: peak memory reserved on the device", torch.cuda.max_memory_reserved() / 2**30, "GiB")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        sheet.row(f"{name}: peak memory of the process so far", peak / 2**30, "GiB")
