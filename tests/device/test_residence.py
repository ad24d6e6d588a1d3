"""Packs that lie on the device: the batches of the CPU, without waiting for the device, and pictures from there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from fedrs_lightning.cli import pictures
from fedrs_lightning.data.batches.loading import ClientLoader, Loading
from fedrs_lightning.data.clients.federation import ClientSplit, Federation
from fedrs_lightning.data.packs.pack import Pack
from fedrs_lightning.data.packs.source import PackedSource, Part
from fedrs_lightning.data.transforms.transform import Transform

from ..data.packs.number_files import make_spec
from .pretended import LEDGER, There, apart, device, launched

LOADINGS = {"device": Loading("device", prefetch=0), "map": Loading("map", prefetch=0)}


def federation(folder: Path) -> Federation:
    """Two clients on two packs, which share a numbering, and a test set over both."""
    packs = [Pack(make_spec(folder / name).pack(folder / f"{name}.pack")) for name in ("one", "other")]
    return Federation(
        source=PackedSource([Part(pack, f"{number}/") for number, pack in enumerate(packs)], {}),
        clients=(ClientSplit(0, "a", np.arange(50)), ClientSplit(1, "b", np.arange(140, 200))),
        test=np.arange(230, 290),
        validation=np.empty(0, np.int64),
        transform=Transform([[0.0, 0.0]], [[1.0, 1.0]], augment=True, stored={"image": ("a", "b")}),
        manifest={},
        sample_ids=[str(number) for number in range(300)],
    )


def batches(folder: Path, where: str, there: bool) -> tuple[list[dict[str, Tensor]], dict[str, int]]:
    """Everything of an epoch and of the test set, in host memory, and the waits for the device by place."""
    made = federation(folder)
    loader = ClientLoader(made, 16, None, 0, device() if there else "cpu", loading=LOADINGS[where])
    assert loader.note is None
    assert all(isinstance(array.bits, There) == (there and where == "device") for array in made.source.shelf.arrays)
    LEDGER.clear()
    found = [batch for client in (0, 1) for batch in loader.epoch(client, 1, 0)]
    found += [batch for _, batch in loader.ordered(made.test, 16)]
    waits = {f"{place} {what}": count for (_, place, what), count in LEDGER.waits.items()}
    return [{name: value.cpu() for name, value in batch.items()} for batch in found], waits


def compare(folder: str) -> list[dict[str, int]]:
    """Waits where packs lie in a file and where they lie on the device, once all batches are the CPU's."""
    expected, _ = batches(Path(folder), "map", False)
    all_waits = []
    for where in LOADINGS:
        found, waits = batches(Path(folder), where, True)
        assert len(found) == len(expected) > 8
        for one, other in zip(found, expected, strict=True):
            assert list(one) == list(other)
            assert all(torch.equal(one[name], other[name]) for name in one)
        all_waits.append(waits)
    return all_waits


def test_batches_are_those_of_the_cpu_and_nothing_waits(tmp_path):
    assert apart(compare, str(tmp_path)) == [{}, {}]


class Masks:
    """Images and masks that lie on the device."""

    def gather(self, indices: Any, **_: Any) -> dict[str, Tensor]:
        image = torch.arange(len(indices) * 48, dtype=torch.float32).reshape(-1, 3, 4, 4)
        return {"image": image.to(device()), "mask": (image[:, 0] % 2).long().to(device())}


class Task(torch.nn.Module):
    """Maps of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Conv2d(3, 2, 1).to(device())

    def forward(self, image: Tensor) -> Any:
        return SimpleNamespace(logits=self.network(image))


def draw(folder: str) -> tuple[bool, list[list[int]]]:
    """Whether a picture is there, and the shapes that it was drawn from."""
    source = Masks()
    engine = SimpleNamespace(
        server={},
        fabric=launched(),
        schedule=SimpleNamespace(eval_batch_size=2),
        method=SimpleNamespace(download=lambda *_: {}),
        composer=SimpleNamespace(install=lambda *_: None),
        loader=SimpleNamespace(ordered=lambda indices, size: [(0, source.gather(indices))]),
        task=Task(),
    )
    client = ClientSplit(0, "a", np.arange(1), np.arange(4))
    made = SimpleNamespace(clients=(client,), source=source, sample_ids=[str(number) for number in range(4)])
    shapes: list[list[int]] = []
    plot = pictures.diagnostics.plot_predictions

    def watched(*args: Any) -> Path:
        shapes.extend([*array.shape] for array in args[:3])
        return plot(*args)

    with mock.patch.object(pictures.diagnostics, "plot_predictions", watched):
        data: Any = SimpleNamespace(class_names=["x", "y"])
        drawn: Any = pictures._predictions(engine, data, made, Path(folder))  # type: ignore[arg-type]
    return drawn is not None and drawn.stat().st_size > 0, shapes


def test_pictures_are_drawn_from_a_device(tmp_path):
    there, shapes = apart(draw, str(tmp_path))
    assert there
    assert [shape[-2:] for shape in shapes] == [[4, 4]] * 3
