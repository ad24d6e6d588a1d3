"""A tiny real federation and a function that runs it on any number of forked gloo ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor

from fedrs_lightning.data import ClientSplit, Federation
from fedrs_lightning.data.transforms.transform import Transform
from fedrs_lightning.engine.engine import Engine
from fedrs_lightning.engine.ranks.strategy import ClientParallelStrategy
from fedrs_lightning.engine.settings import Schedule
from fedrs_lightning.methods import FedAvg
from fedrs_lightning.results.store import RunStore
from fedrs_lightning.seeding import numpy_stream, rng_stream
from fedrs_lightning.tasks import ClassificationTask, MultilabelTask, Task
from fedrs_lightning.types import Batch

SIZES = (5, 23, 11, 8, 14, 9)
CLASSES = 4
ADAM = partial(torch.optim.Adam, lr=2e-3)


class Images:
    """Random uint8 images whose class shows in their brightness."""

    def __init__(self, count: int, side: int = 12) -> None:
        rng = numpy_stream(1, "images")
        self.labels = torch.from_numpy(rng.integers(0, CLASSES, count))
        noise = torch.from_numpy(rng.integers(0, 120, (count, 3, side, side), dtype=np.uint8))
        self.images = noise + (self.labels * 40).to(torch.uint8).view(-1, 1, 1, 1)

    def __len__(self) -> int:
        return len(self.labels)

    def gather(self, indices: np.ndarray | Tensor, *, pin_memory: bool = False) -> Batch:
        wanted = torch.as_tensor(indices)
        return {"image": self.images[wanted], "label": self.labels[wanted]}


def make_federation(
    sizes: Sequence[int] = SIZES, own_test: bool = False, validation: int = 0, test: int = 40
) -> Federation:
    source = Images(sum(sizes) + test + validation)
    starts = np.cumsum([0, *sizes])
    common = np.arange(starts[-1], starts[-1] + test)
    clients = tuple(
        ClientSplit(number, f"site {number}", np.arange(first, last), common[number::3] if own_test else None)
        for number, (first, last) in enumerate(pairwise(starts))
    )
    transform = Transform(mean=[[0.4] * 3], std=[[0.2] * 3], scale=1 / 255)
    held = np.arange(starts[-1] + test, starts[-1] + test + validation)
    return Federation(
        source, clients, common, held, transform, {"synthetic": True}, [f"{index}.jpg" for index in range(len(source))]
    )


class SeveralLabels:
    """The same images with several labels each: class c, and class c + 1 where an image's number is even.

    Classes of `never` are told in no label.
    """

    def __init__(self, images: Images, never: Sequence[int] = ()) -> None:
        self.images = images
        classes = torch.arange(CLASSES)
        second = (images.labels + torch.where(torch.arange(len(images)) % 2 == 0, 1, 0)) % CLASSES
        self.labels = ((classes == images.labels[:, None]) | (classes == second[:, None])).float()
        self.labels[:, list(never)] = 0

    def __len__(self) -> int:
        return len(self.images)

    def gather(self, indices: np.ndarray | Tensor, *, pin_memory: bool = False) -> Batch:
        return self.images.gather(indices) | {"label": self.labels[torch.as_tensor(indices)]}


def make_several(never: Sequence[int] = (), **options: Any) -> Federation:
    """`make_federation` with several labels an image; own test data are what results report."""
    federation = make_federation(own_test=True, **options)
    return replace(federation, source=SeveralLabels(federation.source, never), headline="personal_own")  # type: ignore[arg-type]


def multilabel_task() -> MultilabelTask:
    return MultilabelTask(
        "resnet18", CLASSES, 3, width=4, stem="small", class_names=["crop", "forest, mixed", "sand", "water"]
    )


@dataclass
class Outcome:
    """What a finished or stopped run shows."""

    digest: str
    digest_model: str
    round: int
    preempted: bool
    history: list[dict[str, Any]]
    clients: list[dict[str, Any]]
    server: dict[str, Tensor]


def make_engine(
    fabric: L.Fabric,
    method: FedAvg,
    path: Path,
    *,
    federation: Federation | None = None,
    seed: int = 3,
    optimizer: Callable[..., Any] = ADAM,
    backbone: str = "resnet18",
    make_task: Callable[[], Task] | None = None,
    options: dict[str, Any] | None = None,
    **schedule: Any,
) -> Engine:
    schedule = {"num_rounds": 3, "local_epochs": 1, "clients_per_round": 4, "batch_size": 8} | schedule
    with rng_stream(seed, "model"):
        task = ClassificationTask(backbone, CLASSES, 3, width=4, stem="small") if make_task is None else make_task()  # type: ignore[arg-type]
    task.optimizer = optimizer
    return Engine(
        fabric,
        task,
        method,
        federation or make_federation(),
        Schedule(**schedule),
        seed=seed,
        path=path,
        **(options or {}),
    )


def play(
    fabric: L.Fabric,
    make_method: Callable[[], FedAvg],
    path: Path,
    before: Callable[[Engine], None] | None = None,
    **engine: Any,
) -> Outcome:
    """Run, or continue, an experiment in `path` on the ranks of a launched Fabric."""
    torch.set_num_threads(1)
    made = make_engine(fabric, make_method(), path, **engine)
    made.resume()
    if before is not None:
        before(made)
    made.fit()
    store = RunStore(path)
    server = {key: value.clone() for key, value in made.server.items()}
    return Outcome(
        made.digest(), made.digest_model(), made.round, made.preempted, store.history(), store.clients(), server
    )


def on_ranks(world_size: int, body: Callable[[L.Fabric], Any]) -> Any:
    """What `body` returns on rank 0; several ranks are forked processes, and results cross them without tensors."""
    if world_size == 1:
        fabric = L.Fabric(accelerator="cpu", devices=1)
        fabric.launch()
        return body(fabric)
    return L.Fabric(accelerator="cpu", devices=world_size, strategy=ClientParallelStrategy(start_method="fork")).launch(
        body
    )


def run(make_method: Callable[[], FedAvg], path: Path, world_size: int = 1, **engine: Any) -> Outcome:
    """`play` on so many ranks; with several the outcome has no server state."""

    def body(fabric: L.Fabric) -> Outcome:
        outcome = play(fabric, make_method, path, **engine)
        # Tensors would cross processes through file descriptors of a process that may be gone by then.
        return outcome if world_size == 1 else replace(outcome, server={})

    outcome: Outcome = on_ranks(world_size, body)
    return outcome


@pytest.fixture
def tiny_run(tmp_path: Path) -> Callable[..., Outcome]:
    """`tiny_run(make_method, world_size=..., **schedule)` in a fresh run directory each time."""
    count = 0

    def call(make_method: Callable[[], FedAvg], **engine: Any) -> Outcome:
        nonlocal count
        count += 1
        return run(make_method, engine.pop("path", tmp_path / f"run-{count}"), **engine)

    return call
