"""What several benchmarks share: an in-memory federation and a line that says whether a goal is met."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from fedrs_lightning.cli.process import prepare_process

prepare_process()

import numpy as np
import torch
from torch import Tensor

from fedrs_lightning.data import ClientSplit, Federation
from fedrs_lightning.data.transforms.transform import Transform
from fedrs_lightning.types import Batch

torch.set_num_threads(1)


class RandomImages:
    """Random uint8 images and labels in memory."""

    def __init__(self, count: int, side: int, classes: int = 10) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
        self.labels = torch.randint(0, classes, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def gather(self, indices: np.ndarray | Tensor, *, pin_memory: bool = False) -> Batch:
        wanted = torch.as_tensor(indices)
        return {"image": self.images[wanted], "label": self.labels[wanted]}


def federation(num_clients: int, images: int, side: int, test: int = 64) -> Federation:
    """Equal clients with `images` training images each."""
    source = RandomImages(num_clients * images + test, side)
    clients = tuple(
        ClientSplit(number, "", np.arange(number * images, (number + 1) * images)) for number in range(num_clients)
    )
    common = np.arange(num_clients * images, len(source))
    ids = [str(index) for index in range(len(source))]
    return Federation(source, clients, common, common[:0], Transform([[0.4] * 3], [[0.2] * 3], 1 / 255), {}, ids)


def report(name: str, value: float, goal: float, *, at_most: bool, unit: str = "") -> bool:
    """Print one line and return whether the goal is met."""
    met = value <= goal if at_most else value >= goal
    word = "at most" if at_most else "at least"
    print(f"{'ok  ' if met else 'MISS'} {name}: {value:.3f}{unit} (goal {word} {goal:g}{unit})", flush=True)
    return met


def finish(results: list[bool]) -> None:
    """Exit with 1 when a goal was missed."""
    sys.exit(0 if all(results) else 1)


def scratch() -> Path:
    """A folder for runs of this process."""
    import tempfile

    return Path(tempfile.mkdtemp(prefix="fedrs-bench-"))


def single_rank() -> Any:
    """A launched Fabric of one CPU rank."""
    import lightning as L

    fabric = L.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    return fabric
