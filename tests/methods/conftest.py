"""A tiny segmentation federation with domains, and a function that runs it through the engine on forked ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrs_lightning.data import ClientSplit, Federation
from fedrs_lightning.data.transforms.transform import Transform
from fedrs_lightning.methods import FedAvg, FedDAP
from fedrs_lightning.seeding import torch_stream
from fedrs_lightning.tasks import SegmentationTask
from fedrs_lightning.types import Batch

from ..engine.conftest import Outcome, run

SIZES = (5, 11, 7, 8, 9, 6)
CLASSES = 3
SIDE = 32
IGNORED = 255
FEDDAP: dict[str, Any] = {
    "temperature": 0.1,
    "lambda_dap": 0.5,
    "lambda_inv": 0.5,
    "lambda_drift": 0.1,
    "sync_every": 2,
    "smoothing": 0.9,
    "clustering": "kmeans",
    "num_clusters": 2,
    "embedding_dim": 6,
    "spectral_dim": 4,
    "spatial_dim": 3,
    "class_dim": 4,
    "hidden_sizes": [8],
    "activation": "relu",
    "eps": 1e-5,
}
"""Every argument of FedDAP without a default, small."""


class Crops:
    """Blocks of three classes with colours of their own; a domain permutes the bands, brightens them and adds waves of
    its own.
    """

    def __init__(self, domains: Sequence[int], shift: float = 1.0, side: int = SIDE) -> None:
        count, cells = len(domains), 8
        draw = partial(torch.rand, generator=torch_stream(1, "crops"))
        self.masks = (
            (draw(count, cells, cells) * CLASSES)
            .long()
            .repeat_interleave(side // cells, 1)
            .repeat_interleave(side // cells, 2)
        )
        colours = torch.eye(3)[self.masks].permute(0, 3, 1, 2)  # [N, 3, side, side]
        place = torch.arange(side)
        for domain in sorted(set(domains)):
            rows = torch.tensor(domains) == domain
            waves = torch.sin(place[:, None] * 1.5 * (domain % 2) + place * 0.8 * (domain // 2))
            colours[rows] = colours[rows].roll(domain, dims=1) + shift * (1.5 * waves + 0.3 * domain)
        noisy = 80 + 40 * colours + 10 * draw(colours.shape)
        self.images = noisy.clamp(0, 255).to(torch.uint8)
        self.masks[draw(self.masks.shape) < 0.1] = IGNORED

    def __len__(self) -> int:
        return len(self.images)

    def gather(self, indices: np.ndarray | Tensor, *, pin_memory: bool = False) -> Batch:
        wanted = torch.as_tensor(indices)
        return {"image": self.images[wanted], "mask": self.masks[wanted]}


def make_segmentation_federation(
    sizes: Sequence[int] = SIZES, domains: Sequence[int] | None = None, shift: float = 1.0, num_test: int = 6
) -> Federation:
    """Clients of the given sizes, client k of domain `domains[k]` (k mod 2 by default), tested on crops of their
    domain.
    """
    domains = [client % 2 for client in range(len(sizes))] if domains is None else domains
    kinds = sorted(set(domains))
    of_crop = [domain for size, domain in zip(sizes, domains, strict=True) for _ in range(size)]
    tests = {domain: np.arange(num_test) + len(of_crop) + number * num_test for number, domain in enumerate(kinds)}
    source = Crops(of_crop + [domain for domain in kinds for _ in range(num_test)], shift)
    starts = np.cumsum([0, *sizes])
    clients = tuple(
        ClientSplit(
            client, f"site {client}", np.arange(starts[client], starts[client + 1]), tests[domain], f"domain {domain}"
        )
        for client, domain in enumerate(domains)
    )
    transform = Transform(mean=[[0.3] * 3], std=[[0.2] * 3], scale=1 / 255, augment=False)
    return Federation(
        source,
        clients,
        np.concatenate(list(tests.values())),
        np.arange(0),
        transform,
        {"synthetic": True},
        [f"{index}.png" for index in range(len(source))],
        protocols=("global", "personal_own"),
        headline="personal_own",
    )


def small_segmentation_task(num_classes: int = CLASSES, **options: Any) -> SegmentationTask:
    arguments: dict[str, Any] = {"encoder_width": 8, "decoder_channels": 8, "loss": "ce"} | options
    return SegmentationTask("deeplabv3plus", "resnet18", num_classes, 3, **arguments)


def feddap(**options: Any) -> FedDAP:
    """FedDAP with the values above, less what `options` changes."""
    return FedDAP(**FEDDAP | options)


@pytest.fixture
def segmentation_run(tmp_path: Path) -> Callable[..., Outcome]:
    """`segmentation_run(make_method, world_size=..., **schedule)` in a fresh run directory each time, or in `path`."""
    count = 0

    def call(make_method: Callable[[], FedAvg], **engine: Any) -> Outcome:
        nonlocal count
        count += 1
        engine = {"federation": make_segmentation_federation(), "make_task": small_segmentation_task} | engine
        return run(make_method, engine.pop("path", tmp_path / f"run-{count}"), **engine)

    return call
