"""Two ranks with a thread each against one rank with one thread: wall seconds of rounds. Wants an idle machine."""

from __future__ import annotations

import shutil
import statistics
import time
from functools import partial

import lightning as L
import torch

from common import federation, finish, report, scratch
from fedrs_lightning.engine.engine import Engine
from fedrs_lightning.engine.ranks.strategy import ClientParallelStrategy
from fedrs_lightning.engine.settings import Schedule
from fedrs_lightning.methods import FedAvg
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks import ClassificationTask


def seconds(world_size: int, data) -> float:
    """Median wall seconds of a round after the first."""
    path = scratch()

    def body(fabric: L.Fabric) -> float:
        torch.set_num_threads(1)
        with rng_stream(0, "model"):
            task = ClassificationTask("resnet18", 10, 3)
        task.optimizer = partial(torch.optim.SGD, lr=0.01)
        engine = Engine(fabric, task, FedAvg(), data, Schedule(3, batch_size=32), seed=0, path=path)
        marks = []
        next_round = engine._next_round

        def one():
            start = time.perf_counter()
            next_round()
            marks.append(time.perf_counter() - start)

        engine._next_round = one
        engine.fit()
        return statistics.median(marks[1:])

    strategy = "auto" if world_size == 1 else ClientParallelStrategy(start_method="fork")
    fabric = L.Fabric(accelerator="cpu", devices=world_size, strategy=strategy)
    if world_size == 1:
        fabric.launch()
        result = body(fabric)
    else:
        result = fabric.launch(body)
    shutil.rmtree(path)
    return result


def main() -> None:
    data = federation(8, 128, 64)
    ratios = []
    for _ in range(3):
        one, two = seconds(1, data), seconds(2, data)
        print(
            f"ResNet-18, 8 clients x 128 images of 64 x 64: one rank {one:.2f} s, two ranks {two:.2f} s a round",
            flush=True,
        )
        ratios.append(two / one)
    finish([report("wall time of two ranks over one", statistics.median(ratios), 0.62, at_most=True)])


if __name__ == "__main__":
    main()
