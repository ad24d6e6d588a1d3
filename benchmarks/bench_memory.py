"""Peak memory of a rank with 8 and with 256 clients: uploads beyond the budget are spooled, memories lie on disk."""

from __future__ import annotations

import os
import resource
import shutil
from functools import partial

import torch

from common import federation, finish, report, scratch, single_rank
from fedrs_lightning.engine.engine import Engine
from fedrs_lightning.engine.settings import Schedule
from fedrs_lightning.methods import FedMAD
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks import ClassificationTask

BUDGET = 200e6


def peak(num_clients: int) -> int:
    """Peak resident bytes of a forked process that runs two rounds of FedMAD on a 45 MB network."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with rng_stream(0, "model"):
            task = ClassificationTask("resnet18", 10, 3)
        task.optimizer = partial(torch.optim.SGD, lr=0.01)
        path = scratch()
        schedule = Schedule(2, batch_size=8, evaluate_every=2)
        Engine(
            single_rank(),
            task,
            FedMAD(),
            federation(num_clients, 8, 32),
            schedule,
            seed=0,
            path=path,
            upload_memory=BUDGET,
            memory_cache=BUDGET,
        ).fit()
        shutil.rmtree(path)
        os.write(writer, str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return int(os.read(reader, 64))


def main() -> None:
    few, many = peak(8), peak(256)
    print(
        f"peak resident memory: 8 clients {few / 1e6:.0f} MB, 256 clients {many / 1e6:.0f} MB (uploads would be "
        f"{256 * 45} MB)"
    )
    finish([report("memory with 256 clients over 8", many / few, 1.05, at_most=True)])


if __name__ == "__main__":
    main()
