"""What a federated round costs beside forward, backward and optimiser step, in CPU seconds.

Evaluation and checkpoint are counted apart and printed. One process, one thread.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections import defaultdict
from functools import partial

import torch

from common import federation, finish, report, scratch, single_rank
from fedrs_lightning.engine.engine import Engine
from fedrs_lightning.engine.settings import Schedule
from fedrs_lightning.methods import FedAvg
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks import ClassificationTask


def cpu_seconds(num_clients: int, images: int, side: int, rounds: int) -> list[dict[str, float]]:
    """CPU seconds of each round by part; the first round, which warms up, is left out."""
    spent: dict[str, float] = defaultdict(float)
    per_round: list[dict[str, float]] = []

    def timed(part, function):
        def call(*args, **kwargs):
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent[part] += time.process_time() - start

        return call

    with rng_stream(0, "model"):
        task = ClassificationTask("resnet18", 10, 3)
    task.optimizer = partial(torch.optim.SGD, lr=0.01)
    path = scratch()
    engine = Engine(
        single_rank(),
        task,
        FedAvg(),
        federation(num_clients, images, side),
        Schedule(rounds, batch_size=32),
        seed=0,
        path=path,
        upload_memory=2**33,
        write_behind=False,  # CPU seconds count all threads, so that each part must come to its end by itself
    )
    engine.method.local_step = timed("steps", engine.method.local_step)
    engine.evaluator.__class__ = type(
        "Timed", (type(engine.evaluator),), {"__call__": timed("evaluation", type(engine.evaluator).__call__)}
    )
    engine._save = timed("checkpoint", engine._save)
    engine._next_round = timed("round", engine._next_round)
    next_round = engine._next_round

    def one():
        spent.clear()
        next_round()
        per_round.append(dict(spent))

    engine._next_round = one
    engine.fit()
    shutil.rmtree(path)
    return per_round[1:]


def main() -> None:
    results = []
    rounds = cpu_seconds(8, 128, 64, rounds=4)
    shares = [
        (part["round"] - part["steps"] - part["evaluation"] - part["checkpoint"]) / part["steps"] for part in rounds
    ]
    last = rounds[-1]
    print(
        f"ResNet-18, 8 clients x 128 images of 64 x 64, batch 32: steps {last['steps']:.2f} s, evaluation "
        f"{last['evaluation']:.2f} s, "
        f"checkpoint {last['checkpoint']:.2f} s, all {last['round']:.2f} s CPU"
    )
    results.append(
        report(
            "CPU seconds of a round outside the steps, over those inside", statistics.median(shares), 0.03, at_most=True
        )
    )
    rounds = cpu_seconds(64, 16, 32, rounds=3)
    visits = [(part["round"] - part["steps"] - part["evaluation"] - part["checkpoint"]) / 64 for part in rounds]
    last = rounds[-1]
    print(
        f"ResNet-18 (45 MB), 64 clients x 16 images of 32 x 32, a step a visit: steps {last['steps']:.2f} s, all "
        f"{last['round']:.2f} s CPU"
    )
    results.append(
        report("CPU seconds a visit outside the step", statistics.median(visits), 0.05, at_most=True, unit=" s")
    )
    finish(results)


if __name__ == "__main__":
    main()
