"""Client memories, logs and checkpoints written behind or at once: CPU seconds of all threads, and what training waits.

One process, one thread for training. FedAvg writes a checkpoint a round, LocalOnly a memory of 45 MB a client as well.
"""

from __future__ import annotations

import shutil
import statistics
import time
from functools import partial
from itertools import product

import torch

from common import federation, finish, report, scratch, single_rank
from fedrs_lightning.engine.engine import Engine
from fedrs_lightning.engine.settings import Schedule
from fedrs_lightning.methods import FedAvg, LocalOnly
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks import ClassificationTask

ROUNDS, SERIES = 3, 3


def cost(make_method, behind: bool) -> tuple[float, float]:
    """CPU seconds of a run, and wall seconds that its training thread waited for the writer."""
    with rng_stream(0, "model"):
        task = ClassificationTask("resnet18", 10, 3)
    task.optimizer = partial(torch.optim.SGD, lr=0.01)
    path = scratch()
    data, schedule = federation(8, 32, 32), Schedule(ROUNDS, batch_size=32, evaluate_every=ROUNDS)
    options = {"seed": 0, "path": path, "write_behind": behind, "memory_cache": 2.0**29}
    engine = Engine(single_rank(), task, make_method(), data, schedule, **options)
    take, waits = engine.writer.take, []

    def noted():
        taken = take()
        waits.append(taken["wait"])
        return taken

    engine.writer.take = noted
    start = time.process_time()
    engine.fit()
    spent = time.process_time() - start
    noted()
    shutil.rmtree(path)
    return spent, sum(waits)


def main() -> None:
    results = []
    for make_method in (FedAvg, LocalOnly):
        found = {(behind, turn): cost(make_method, behind) for turn, behind in product(range(SERIES), (False, True))}
        spent = [found[True, turn][0] / found[False, turn][0] for turn in range(SERIES)]
        waited = [found[True, turn][1] / found[False, turn][1] for turn in range(SERIES)]
        name = make_method.__name__
        print(
            f"{name}, {ROUNDS} rounds: {found[False, 0][0]:.1f} s CPU and {found[False, 0][1]:.2f} s waited at once, "
            f"{found[True, 0][0]:.1f} s CPU and {found[True, 0][1]:.2f} s waited behind"
        )
        results.append(report(f"{name}: CPU seconds behind over at once", statistics.median(spent), 1.05, at_most=True))
        results.append(
            report(f"{name}: seconds waited behind over at once", statistics.median(waited), 0.5, at_most=True)
        )
    finish(results)


if __name__ == "__main__":
    main()
