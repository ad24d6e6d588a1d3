"""How fast an upload of 100 MB goes from one rank to another of the same machine, beside what `copy_` reaches here.

The state of a ResNet-50 lies on rank 1. Timed on rank 0, from a barrier on: until it could read what rank 1 packed and
sent (the goal), the same without the packing, and the first reading of it there. Rounds take turns with `copy_` of as
many bytes by rank 0 while rank 1 waits; the first ones, in which memory is reserved, are not counted. Wants two idle
cores.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch

from common import finish, report, scratch
from fedrs_lightning.cli.process import quieten
from fedrs_lightning.engine.ranks.exchange import Exchange
from fedrs_lightning.engine.ranks.shared import Neighbours, Room
from fedrs_lightning.engine.ranks.strategy import ClientParallelStrategy
from fedrs_lightning.engine.ranks.uploads import Collector
from fedrs_lightning.flat import FlatLayout, FlatState, flat_copy
from fedrs_lightning.states import digest, nbytes
from fedrs_lightning.tasks import ClassificationTask
from fedrs_lightning.types import Client, Upload

ROUNDS, UNCOUNTED = 12, 2
GOAL = 0.5
SENDER = Client(0, 1)


class Transfer:
    """An upload's way from rank 1 to rank 0, in the calls of the engine, for a method that needs all uploads."""

    def __init__(self, fabric: L.Fabric, folder: Path, layout: FlatLayout) -> None:
        exchange = Exchange(fabric)
        room = Room(2**30, folder / f"rank-{fabric.global_rank}")
        neighbours = Neighbours(fabric.global_rank, exchange.collect, room.folder)
        self.exchange, self.sends = exchange, fabric.global_rank == 1
        self.collector = Collector(exchange, neighbours, room, layout, (), 1, False, torch.device("cpu"), layout.size)
        self.out = FlatState(FlatLayout.of({}), torch.empty(0, dtype=torch.uint8))

    def pack(self, state: FlatState) -> None:
        """Put what this rank sends where the other can read it."""
        self.collector.begin(1, [SENDER], [1], None)
        if self.sends:
            self.collector.put(0, Upload(SENDER, state, 1), {}, False)

    def send(self) -> list[Upload]:
        """Bring it to rank 0, which gets it."""
        return self.collector.finish(self.out).uploads


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def body(fabric: L.Fabric, folder: Path) -> tuple[dict[str, list[float]], int]:
    """Seconds of rank 0 for each way of each round, and bytes of the upload."""
    torch.set_num_threads(1)
    torch.manual_seed(fabric.global_rank)
    state = flat_copy(ClassificationTask("resnet50", 1000, 3).model_state())
    transfer = Transfer(fabric, folder, state.layout)
    source, target = torch.ones(nbytes(state) // 4), torch.ones(nbytes(state) // 4)
    places = {key: torch.empty_like(value) for key, value in state.items()}
    found: dict[str, list[float]] = {"copy": [], "packed and sent": [], "sent": [], "read": []}
    for _ in range(ROUNDS + UNCOUNTED):
        fabric.barrier()
        if fabric.global_rank == 0:
            found["copy"].append(seconds(lambda: target.copy_(source))[0])
        fabric.barrier()
        taken, uploads = seconds(lambda: (transfer.pack(state), transfer.send())[1])
        found["packed and sent"].append(taken)
        if fabric.global_rank == 0:
            got = uploads[0].state
            found["read"].append(seconds(lambda got=got: [places[key].copy_(got[key]) for key in places])[0])
        fabric.barrier()
        transfer.pack(state)
        fabric.barrier()
        found["sent"].append(seconds(transfer.send)[0])
        fabric.barrier()
    # Each rank drew values of its own, so that rank 0 can have these from rank 1 alone.
    digests = transfer.exchange.collect(digest(places if fabric.global_rank == 0 else state))
    assert len(set(digests)) == 1, "what rank 0 read is not what rank 1 sent"
    return {name: values[UNCOUNTED:] for name, values in found.items()}, nbytes(state)


def main() -> None:
    quieten()
    place = scratch()
    strategy = ClientParallelStrategy(start_method="fork")
    fabric = L.Fabric(accelerator="cpu", devices=2, strategy=strategy)
    found, size = fabric.launch(body, place)
    shutil.rmtree(place)
    rates = {
        name: statistics.median(copy / taken for copy, taken in zip(found["copy"], values, strict=True))
        for name, values in found.items()
    }
    print(f"an upload of {size / 1e6:.0f} MB, copy_ {size / 1e9 / statistics.median(found['copy']):.1f} GB/s (written)")
    for name in ("sent", "read"):
        print(f"     rate over copy_, {name}: {rates[name]:.2f}")
    finish([report("rate over copy_, packed and sent", rates["packed and sent"], GOAL, at_most=False)])


if __name__ == "__main__":
    main()
