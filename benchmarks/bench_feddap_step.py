"""What FedDAP adds to a local step: CPU seconds over FedAvg's, DeepLabV3+ with ResNet-50 on 256 x 256 crops.

    python benchmarks/bench_feddap_step.py [--steps 7] [--batch-size 2] [--size 256] [--profile]

Steps of both methods take turns in one process, and the medians of their CPU time are compared, so that a busy machine
slows both alike. Both run the same network from the same values; FedDAP has anchors for all classes. The pass for
anchors after training is not a part of a step: it is one forward pass over the client's data a round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import Any

import lightning as L
import torch
from torch.nn import functional as F

from fedrs_lightning.methods import FedAvg, FedDAP
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks import SegmentationTask
from fedrs_lightning.types import Client, Local

CLASSES = 6
LIMIT = 1.12
VALUES: dict[str, Any] = {
    "temperature": 0.1,
    "lambda_dap": 0.5,
    "lambda_inv": 0.5,
    "lambda_drift": 0.1,
    "sync_every": 5,
    "smoothing": 0.9,
    "clustering": "kmeans",
    "num_clusters": 2,
    "embedding_dim": 256,
    "spectral_dim": 64,
    "spatial_dim": 64,
    "class_dim": 64,
    "hidden_sizes": [256],
    "activation": "relu",
    "eps": 1e-5,
}


def prepare(method: FedAvg, fabric: L.Fabric) -> Local:
    with rng_stream(0, "model"):
        task = SegmentationTask("deeplabv3plus", "resnet50", CLASSES, 3, loss="ce")
    task.optimizer = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
    with rng_stream(0, "adapt"):
        method.adapt(task)
    task.train()
    clients = [Client(0, 1000)]
    received = method.init_server(task, clients)
    if received:
        anchors = F.normalize(torch.randn(received["feddap/anchors"].shape), dim=1)
        received |= {"feddap/anchors": anchors, "feddap/valid": torch.ones(CLASSES, dtype=torch.bool)}
    local = Local(clients[0], 2, task, received, {}, 1, task.configure_optimizers(), fabric, batches=None)  # type: ignore[arg-type]
    method.on_local_start(local)
    return local


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=7, help="steps of each method; one more warms up")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--size", type=int, default=256, help="side of a crop in pixels")
    parser.add_argument("--profile", action="store_true", help="print where FedDAP's step spends its time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    fabric = L.Fabric(accelerator="cpu", devices=1)
    shape = (options.batch_size, options.size, options.size)
    generator = torch.Generator().manual_seed(0)
    batch = {
        "image": torch.randn(shape[0], 3, *shape[1:], generator=generator),
        "mask": torch.randint(0, CLASSES, shape, generator=generator),
    }
    methods: dict[str, FedAvg] = {"FedAvg": FedAvg(), "FedDAP": FedDAP(**VALUES), "FedAvg again": FedAvg()}
    visits = {name: prepare(method, fabric) for name, method in methods.items()}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for step in range(options.steps + 1):
        for name, method in methods.items():
            start = time.process_time()
            method.local_step(visits[name], batch)
            if step:
                seconds[name].append(time.process_time() - start)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in median.items():
        print(f"{name:14} {value:6.2f} s of CPU a step, {value / median['FedAvg']:.3f} times FedAvg")
    ratio = 2 * median["FedDAP"] / (median["FedAvg"] + median["FedAvg again"])
    print(f"FedDAP costs {100 * (ratio - 1):.1f} % more than FedAvg (limit {100 * (LIMIT - 1):.0f} %)")
    if options.profile:
        with torch.profiler.profile() as profile:
            methods["FedDAP"].local_step(visits["FedDAP"], batch)
        print(
            profile.key_averages(group_by_input_shape=True).table(
                sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=40
            )
        )
    if ratio > LIMIT:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
