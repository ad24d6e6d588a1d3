"""The experiment of experiments/fedmad_eurosat.yaml on random images of its size: three rounds, extrapolated.

Task, method, optimiser, schedule, partition and fabric settings are those of the file. 27,000 images of 64 x 64 stand
in for the archive, 80 % of them for training.
"""

from __future__ import annotations

import resource
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from fedrs_lightning.cli.config.command_line import build, configure
from fedrs_lightning.data import ClientSplit
from fedrs_lightning.engine.engine import Engine
from fedrs_lightning.seeding import numpy_stream
from gpu_parts.federations import Noise, of_source
from gpu_parts.sheet import ROOT, Setting, Sheet
from gpu_parts.timing import Timings

ROUNDS, IMAGES, SIDE = 3, 27_000, 64
SMALL = ("--task.init_args.backbone=resnet18", "--task.init_args.width=8", "--schedule.batch_size=32")


def eurosat(setting: Setting, sheet: Sheet) -> None:
    """Seconds of a round, and of all rounds of the schedule at that rate."""
    file = ROOT / "experiments" / "fedmad_eurosat.yaml"
    built = build(configure(["--config", str(file), *(SMALL if setting.quick else ())]))
    source = Noise(400 if setting.quick else IMAGES, 32 if setting.quick else SIDE, 10)
    train = round(built.data.split.train_fraction * len(source))
    labels = source.labels[:train].numpy()
    shares = built.data.domains[0].partition.split(labels, {}, numpy_stream(0, "partition"))
    clients = tuple(ClientSplit(number, name, rows) for number, (name, rows) in enumerate(shares.items()))
    federation = of_source(source, clients, np.arange(train, len(source)))

    clock = Timings()
    settings = built.fabric
    chosen = {
        key: value for key, value in asdict(settings).items() if key not in ("accelerator", "devices", "num_nodes")
    }
    fabric = setting.fabric(callbacks=[clock], **chosen)
    schedule, whole = built.schedule, built.schedule.num_rounds
    schedule.num_rounds = ROUNDS
    with setting.scratch() as folder:
        engine = Engine(
            fabric,
            built.task,
            built.method,
            federation,
            schedule,
            seed=0,
            path=Path(folder),
            channels_last=settings.channels_last,
            compile=settings.compile,
            loading=settings.loading,
        )
        start = time.perf_counter()
        engine.fit()
        seconds = time.perf_counter() - start
    first = clock.ends[0] - start
    later = (seconds - first) / (ROUNDS - 1)
    sheet.row("first round", first, "s")
    sheet.row("a round after it, checkpoints included", later, "s")
    sheet.row(f"all {whole} rounds at that rate", (first + (whole - 1) * later) / 60, "min")
    if setting.cuda:
        sheet.row("peak memory of tensors on the device", torch.cuda.max_memory_allocated() / 2**30, "GiB")
    sheet.row("peak memory of the process", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, "GiB")
    sheet.detail("timing of rounds", clock.rounds)
