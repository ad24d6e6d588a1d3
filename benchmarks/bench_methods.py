"""What each method adds to a local step: CPU seconds over FedAvg's.

    python benchmarks/bench_methods.py [--steps 5] [--only FedSeg FedProto] [--profile FedSeg]

ResNet-18 on images of 64 x 64 in batches of 128; DeepLabV3+ with ResNet-18 on crops of 128 x 128 in batches of 8. Steps
of all methods take turns in one process with one thread, and the median of the ratios to FedAvg's step beside it
counts, so that a busy machine slows all alike. Each method takes its second visit, after a round with two clients, so
that whatever it remembers or receives is there. Work before and after the steps is not a part of them.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import finish, report, single_rank
from fedrs_lightning.data import ClientSplit, Federation
from fedrs_lightning.engine.cost import AsItIs, RandomImages
from fedrs_lightning.engine.engine import Engine
from fedrs_lightning.engine.settings import Schedule
from fedrs_lightning.methods import FPL, MOON, FedAvg, FedDC, FedGPS, FedProto, FedProx, FedSeg
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks import ClassificationTask, SegmentationTask, Task
from fedrs_lightning.types import Batch, Local

SGD = partial(torch.optim.SGD, lr=0.01)
CLASSIFICATION: dict[str, tuple[Any, float | None]] = {
    "FedAvg again": (FedAvg, None),
    "FedProx": (FedProx, 1.08),
    "FedDC": (FedDC, 1.15),
    "FedProto": (FedProto, 1.05),
    "FPL": (FPL, 1.10),
    "MOON": (MOON, 1.9),
    "FedGPS": (FedGPS, 2.3),
}
SEGMENTATION: dict[str, tuple[Any, float | None]] = {
    "FedAvg again": (FedAvg, None),
    "FedProto": (partial(FedProto, weight=1.0), 1.05),
    "FPL": (partial(FPL, num_pixels=4096), 1.10),
    "FedSeg": (FedSeg, 1.6),
}


def classifier() -> Task:
    return ClassificationTask("resnet18", 10, 3)


def segmenter() -> Task:
    return SegmentationTask("deeplabv3plus", "resnet18", 6, 3, "ce")


class Stop(Exception):
    """The step that is timed has been reached."""


def second_visit(make: Any, make_task: Any, batch_size: int, side: int, classes: int) -> tuple[FedAvg, Local, Batch]:
    """A method in front of a step of its second round, with the batch."""
    with rng_stream(0, "model"):
        task = make_task()
    task.optimizer = SGD
    source = RandomImages(task, batch_size + 10, classes, 3, side)
    ends = np.array([batch_size, batch_size + 8])  # the other client only makes sure that there is another
    clients = (ClientSplit(0, "", np.arange(ends[0])), ClientSplit(1, "", np.arange(*ends)))
    nobody = np.arange(0)
    ids = [str(number) for number in range(len(source))]
    federation = Federation(source, clients, np.arange(ends[1], len(source)), nobody, AsItIs(), {}, ids)
    method = make()
    step, found = method.local_step, []

    def wait(local: Local, batch: Batch) -> Any:
        if local.round == 2:
            found.extend((local, batch))
            raise Stop
        return step(local, batch)

    method.local_step = wait
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(
            single_rank(), task, method, federation, Schedule(2, batch_size=batch_size), seed=0, path=Path(folder)
        )
        with contextlib.suppress(Stop):
            engine.fit()
    method.local_step = step
    return method, *found


def compare(
    title: str, methods: dict[str, tuple[Any, float | None]], steps: int, *where: Any
) -> tuple[list[bool], dict[str, Any]]:
    """Time steps in turns, print the ratios, and say which goals are met."""
    makers = {"FedAvg": FedAvg} | {name: make for name, (make, _) in methods.items()}
    ready = {name: second_visit(make, *where) for name, make in makers.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    for number in range(steps + 1):
        for name, (method, local, batch) in ready.items():
            start = time.process_time()
            method.local_step(local, batch)
            if number:
                seconds[name].append(time.process_time() - start)
    print(f"{title}: FedAvg {statistics.median(seconds['FedAvg']):.2f} s of CPU a step, median of {steps}")
    results = []
    for name, (_, goal) in methods.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(seconds[name], seconds["FedAvg"], strict=True))
        if goal is None:
            print(f"     {name}: {ratio:.3f}")
        else:
            results.append(report(f"{name}, a step over FedAvg's", ratio, goal, at_most=True))
    return results, ready


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5, help="steps of each method; one more warms up")
    parser.add_argument("--only", nargs="+", metavar="METHOD", help="these methods beside FedAvg")
    parser.add_argument(
        "--profile", metavar="METHOD", help="print where a step of this segmentation method spends its time"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = []

    def chosen(methods: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in methods.items() if options.only is None or name in options.only}

    if chosen(CLASSIFICATION):
        results += compare(
            "ResNet-18, 64 x 64, batch 128", chosen(CLASSIFICATION), options.steps, classifier, 128, 64, 10
        )[0]
    if chosen(SEGMENTATION):
        title = "DeepLabV3+ with ResNet-18, 128 x 128, batch 8"
        met, ready = compare(title, chosen(SEGMENTATION), options.steps, segmenter, 8, 128, 6)
        results += met
        if options.profile:
            method, local, batch = ready[options.profile]
            with torch.profiler.profile() as profile:
                method.local_step(local, batch)
            print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=20, max_name_column_width=45))
    finish(results)


if __name__ == "__main__":
    main()
