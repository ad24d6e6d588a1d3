"""How fast rank 0 adds up uploads, ordered and in float64, beside what `copy_` reaches on the same machine.

Flat uploads of a ResNet-50, as the engine holds them, go through `FedAvg.aggregate`; one run of as many elements
through `weighted_sum` shows what their division into tensors costs. Rates are bytes of uploads a second, by the clock,
with one thread and with the two that a server of two ranks has, since both cores wait for it; CPU seconds are printed
beside them. `copy_` has one thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from common import finish, report
from fedrs_lightning.flat import flat_copy
from fedrs_lightning.methods import FedAvg
from fedrs_lightning.states import nbytes, summing, weighted_sum
from fedrs_lightning.tasks import ClassificationTask
from fedrs_lightning.types import Client, State, Upload

UPLOADS, TURNS = 8, 7
GOAL = 0.7


def aggregate(server: State, uploads: list[Upload], threads: int) -> State:
    """The next server state, in the calls of the engine."""
    with summing(threads):
        return FedAvg().aggregate(server, uploads)


def seconds(work: Callable[[], Any]) -> tuple[float, float]:
    """Of the clock and of CPU."""
    start, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - cpu


def main() -> None:
    server = ClassificationTask("resnet50", 1000, 3).model_state()
    uploads = [
        Upload(Client(number, 10 + number), flat_copy({key: value + number for key, value in server.items()}))
        for number in range(UPLOADS)
    ]
    size = nbytes(server) // 4
    flat = [torch.randn(size) for _ in range(UPLOADS)]
    weights = torch.rand(UPLOADS, dtype=torch.float64)
    weights /= weights.sum()
    target = torch.empty(size)
    ways: dict[str, Callable[[], Any]] = {
        "copy_": lambda: [target.copy_(values) for values in flat],
        "uploads": lambda: aggregate(server, uploads, 2),
        "uploads, one thread": lambda: aggregate(server, uploads, 1),
        "one run": lambda: weighted_sum(flat, weights),
    }
    found = [{name: seconds(work) for name, work in ways.items()} for _ in range(TURNS + 1)][1:]
    for name in ways:
        wall, cpu = (statistics.median(turn[name][which] for turn in found) for which in (0, 1))
        print(f"     {UPLOADS} times {size / 1e6:.1f} M float32, {name}: {wall:.3f} s, {cpu:.3f} s of CPU")
    rates = {
        name: statistics.median(turn["copy_"][0] / turn[name][0] for turn in found) for name in ways if name != "copy_"
    }
    for name in ("uploads, one thread", "one run"):
        print(f"     rate over that of copy_, {name}: {rates[name]:.3f}")
    finish([report("rate over that of copy_, uploads", rates["uploads"], GOAL, at_most=False)])


if __name__ == "__main__":
    main()
