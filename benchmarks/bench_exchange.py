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
from fedrs_lightning.engine.ranks.exchange import Exchange, UploadBuffers
from fedrs_lightning.engine.ranks.strategy import ClientParallelStrategy
from fedrs_lightning.states import digest, nbytes
from fedrs_lightning.tasks import ClassificationTask
from fedrs_lightning.types import Client, State, Upload

ROUNDS, UNCOUNTED = 12, 2
GOAL = 0.5
SENDER = Client(0, 1)


class Transfer:
    """An upload's way from rank 1 to rank 0, in the calls of the engine."""

    def __init__(self, fabric: L.Fabric, folder: Path) -> None:
        self.buffers = UploadBuffers(2**30, folder / f"rank-{fabric.global_rank}")
        self.exchange = Exchange(fabric, self.buffers)
        self.sends = fabric.global_rank == 1

    def pack(self, state: State) -> dict[int, Upload]:
        """What this rank sends, packed."""
        return {SENDER.id: Upload(SENDER, self.buffers.put(state, "upload"), 1)} if self.sends else {}

    def send(self, mine: dict[int, Upload]) -> list[Upload]:
        """Bring it to rank 0, which gets it."""
        return self.exchange.gather(mine, [SENDER], set()).uploads

    def clear(self) -> None:
        """The end of the round."""
        self.buffers.clear()


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def body(fabric: L.Fabric, folder: Path) -> tuple[dict[str, list[float]], int]:
    """Seconds of rank 0 for each way of each round, and bytes of the upload."""
    torch.set_num_threads(1)
    torch.manual_seed(fabric.global_rank)
    state = ClassificationTask("resnet50", 1000, 3).model_state()
    transfer = Transfer(fabric, folder)
    source, target = torch.ones(nbytes(state) // 4), torch.ones(nbytes(state) // 4)
    places = {key: torch.empty_like(value) for key, value in state.items()}
    found: dict[str, list[float]] = {"copy": [], "packed and sent": [], "sent": [], "read": []}
    for _ in range(ROUNDS + UNCOUNTED):
        fabric.barrier()
        if fabric.global_rank == 0:
            found["copy"].append(seconds(lambda: target.copy_(source))[0])
        fabric.barrier()
        taken, uploads = seconds(lambda: transfer.send(transfer.pack(state)))
        found["packed and sent"].append(taken)
        if fabric.global_rank == 0:
            got = uploads[0].state
            found["read"].append(seconds(lambda got=got: [places[key].copy_(got[key]) for key in places])[0])
        fabric.barrier()
        transfer.clear()
        mine = transfer.pack(state)
        fabric.barrier()
        found["sent"].append(seconds(lambda mine=mine: transfer.send(mine))[0])
        fabric.barrier()
        transfer.clear()
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
