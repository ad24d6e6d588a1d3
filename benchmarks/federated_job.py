"""One job of federated averaging, done in different ways by two processes of one thread each; see bench_federation.py.

    python benchmarks/federated_job.py WAY FOLDER

`bare` trains each process's half of the clients with one model, without installing anything and without exchange.
`plain` is FedAvg as one would write it in a few lines: install, running sum, all-reduce, divide. `project` runs the
engine of this package, `quiet` the same without logs and checkpoints. `bare` and `plain` load torch alone, so that
their memory is that of a loop without this package. FOLDER holds the job and its data (`write_job`); each process
leaves `rank-<number>.json` there, with clock and CPU seconds; `apart` compares what two ways have learned.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

PROCESSES = 2
MEAN, DEVIATION = 0.4, 0.2


@dataclass
class Job:
    """Equal clients of random images, and a ResNet-18.

    Attributes:
        clients: number of them, all in every round.
        images: of each client.
        side: of an image, in pixels.
        rounds: of one local epoch each.
        batch_size: of local training.
        optimizer: `sgd` (learning rate 0.01) or `adam` (0.001); a fresh one for every client and round.
        width: of the network; 64 is the standard.
    """

    clients: int
    images: int
    side: int
    rounds: int = 3
    batch_size: int = 32
    optimizer: str = "sgd"
    width: int = 64


def write_job(job: Job, folder: Path) -> None:
    """Write the job, its images as files that all processes map, and the network's initial values."""
    import numpy as np
    import torch
    from safetensors.torch import save_file

    from common import RandomImages

    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(asdict(job)))
    data = RandomImages(job.clients * job.images + PROCESSES, job.side)
    np.save(folder / "images.npy", data.images.numpy())
    np.save(folder / "labels.npy", data.labels.numpy())
    torch.manual_seed(0)
    save_file(network(job).state_dict(), folder / "initial.safetensors")


def read_job(folder: Path) -> Job:
    known = json.loads((folder / "job.json").read_text())
    return Job(**{field.name: known[field.name] for field in fields(Job)})


def read_data(folder: Path) -> tuple[Tensor, Tensor]:
    """Images uint8 [N, 3, H, W] and labels [N], mapped."""
    import numpy as np
    import torch

    images, labels = (np.load(folder / f"{name}.npy", mmap_mode="c") for name in ("images", "labels"))
    return torch.from_numpy(images), torch.from_numpy(labels)


def network(job: Job) -> nn.Module:
    """torchvision's ResNet-18, or this package's where it is narrower."""
    if job.width != 64:
        from fedrs_lightning.models.classification import ResNet as AnyWidth

        return AnyWidth("resnet18", 10, 3, job.width)
    from torchvision.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, [2, 2, 2, 2], num_classes=10)


def optimizer(job: Job, parameters: Any) -> Any:
    import torch

    kinds = {"sgd": partial(torch.optim.SGD, lr=0.01), "adam": partial(torch.optim.Adam, lr=0.001)}
    return kinds[job.optimizer](parameters)


def apart(folder: Path) -> float:
    """Distance of the networks that `plain` and `project` ended with, over the distance from where they began.

    Near 0 where a client's images are one batch, so that their order does not count.
    """
    from safetensors.torch import load_file

    first, plain, project = (load_file(folder / f"{name}.safetensors") for name in ("initial", "plain", "project"))
    weights = [name for name, value in first.items() if value.is_floating_point() and "running" not in name]
    moved = sum(float((plain[name] - first[name]).square().sum()) for name in weights)
    return (sum(float((plain[name] - project[name]).square().sum()) for name in weights) / moved) ** 0.5


class Loop:
    """What the bare loop and the plain FedAvg share: one model, and a pass over one client's images."""

    def __init__(self, job: Job, folder: Path) -> None:
        from safetensors.torch import load_file

        self.job = job
        self.images, self.labels = read_data(folder)
        self.model = network(job)
        self.model.load_state_dict(load_file(folder / "initial.safetensors"))

    def train(self, round: int, client: int) -> None:
        """A local epoch with a fresh optimiser, over batches in random order."""
        import torch
        from torch.nn import functional as F

        job = self.job
        self.model.train()
        fresh = optimizer(job, self.model.parameters())
        generator = torch.Generator().manual_seed(round * job.clients + client)
        order = torch.randperm(job.images, generator=generator) + client * job.images
        for rows in order.split(job.batch_size):
            pixels = self.images[rows].float().mul_(1 / 255 / DEVIATION).sub_(MEAN / DEVIATION)
            fresh.zero_grad()
            output = self.model(pixels)
            F.cross_entropy(getattr(output, "logits", output), self.labels[rows]).backward()
            fresh.step()


class Clock:
    """Clock and CPU seconds of a process; the clock is that of the machine, and so comparable among processes.

    As a callback of the engine it starts with the first round. The last aggregation is where the last round's training
    and exchange end, by the record's own timing.
    """

    def __init__(self) -> None:
        self.marks: dict[str, Any] = {}
        self.timing: list[dict[str, float]] = []

    def start(self) -> None:
        self.marks = {"start": time.perf_counter(), "cpu": -time.process_time()}

    def stop(self) -> None:
        self.marks["stop"] = time.perf_counter()
        self.marks["cpu"] += time.process_time()
        self.marks.setdefault("aggregated", self.marks["stop"])

    def write(self, folder: Path, rank: int) -> None:
        (folder / f"rank-{rank}.json").write_text(json.dumps(self.marks | {"timing": self.timing}))

    def on_round_start(self, **_: Any) -> None:
        if not self.marks:
            self.start()
        self._round = time.perf_counter()

    def on_round_end(self, engine: Any, record: dict[str, Any]) -> None:
        self.timing.append(dict(record["timing"]))
        last = {"train", "exchange"} <= record["timing"].keys()
        seconds = record["timing"]["train"] + record["timing"]["exchange"] if last else 0.0
        self.marks["aggregated"] = self._round + seconds if last else time.perf_counter()


def wait_for_all(folder: Path, rank: int) -> None:
    """Until every process has come here."""
    (folder / f"ready-{rank}").touch()
    while len(list(folder.glob("ready-*"))) < PROCESSES:
        time.sleep(0.005)


def bare(job: Job, folder: Path, clock: Clock) -> int:
    rank = int(os.environ["RANK"])
    loop = Loop(job, folder)
    wait_for_all(folder, rank)
    clock.start()
    for round in range(job.rounds):
        for client in range(rank, job.clients, PROCESSES):
            loop.train(round, client)
    clock.stop()
    return rank


def plain(job: Job, folder: Path, clock: Clock) -> int:
    import torch
    from safetensors.torch import save_file
    from torch import distributed as dist

    rank = int(os.environ["RANK"])
    loop = Loop(job, folder)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=PROCESSES)
    dist.barrier()
    clock.start()
    server = {name: value.clone() for name, value in loop.model.state_dict().items()}
    for round in range(job.rounds):
        total = {name: torch.zeros(value.shape) for name, value in server.items()}
        for client in range(rank, job.clients, PROCESSES):
            loop.model.load_state_dict(server)
            loop.train(round, client)
            for name, value in loop.model.state_dict().items():
                total[name].add_(value, alpha=job.images)
        for value in total.values():
            dist.all_reduce(value)
        server = {name: value.div_(job.clients * job.images).to(server[name].dtype) for name, value in total.items()}
    clock.stop()
    if rank == 0:
        save_file(server, folder / "plain.safetensors")
    return rank


def project(job: Job, folder: Path, clock: Clock, quiet: bool = False) -> int:
    import numpy as np
    import torch
    from safetensors.torch import load_file, save_file

    from fedrs_lightning.data import ClientSplit, Federation
    from fedrs_lightning.data.transforms.transform import Transform
    from fedrs_lightning.engine.engine import Engine
    from fedrs_lightning.engine.ranks.strategy import build_fabric
    from fedrs_lightning.engine.settings import FabricSettings, Schedule
    from fedrs_lightning.methods import FedAvg
    from fedrs_lightning.tasks import ClassificationTask

    class Mapped:
        """The job's images as a source."""

        def __init__(self) -> None:
            self.images, self.labels = read_data(folder)

        def __len__(self) -> int:
            return len(self.labels)

        def gather(self, indices: Any, *, pin_memory: bool = False) -> dict[str, Tensor]:
            wanted = torch.as_tensor(indices)
            return {"image": self.images[wanted], "label": self.labels[wanted]}

    fabric = build_fabric(FabricSettings(accelerator="cpu", devices=PROCESSES), job.clients, callbacks=[clock])
    fabric.launch()
    source, size = Mapped(), job.images
    clients = tuple(
        ClientSplit(number, "", np.arange(number * size, (number + 1) * size)) for number in range(job.clients)
    )
    test = np.arange(job.clients * size, len(source))  # one image a rank: evaluation is no part of the comparison
    transform = Transform([[MEAN] * 3], [[DEVIATION] * 3], 1 / 255, augment=False)
    ids = [str(number) for number in range(len(source))]
    federation = Federation(source, clients, test, test[:0], transform, {}, ids)
    task = ClassificationTask("resnet18", 10, 3, width=job.width)
    task.model.load_state_dict(load_file(folder / "initial.safetensors"))
    task.optimizer = partial(optimizer, job)
    schedule = Schedule(job.rounds, batch_size=job.batch_size, min_last_batch=0, eval_batch_size=1)
    engine = Engine(fabric, task, FedAvg(), federation, schedule, seed=0, path=folder / "run")
    if quiet:
        leave_nothing()
    engine.exchange.barrier()
    engine.fit()
    clock.stop()
    if fabric.global_rank == 0:
        model = {key.removeprefix("model/"): value for key, value in engine.server.items()}
        save_file({name: value.contiguous() for name, value in model.items()}, folder / "project.safetensors")
    engine.exchange.barrier()
    return fabric.global_rank


def leave_nothing() -> None:
    """No logs and no checkpoints from here on, whoever writes them."""
    from fedrs_lightning.engine.checkpoint import CheckpointStore
    from fedrs_lightning.results.store import RunStore

    for store, name, gives in (
        (CheckpointStore, "save", None),
        (CheckpointStore, "prune", set()),
        (RunStore, "append_clients", None),
        (RunStore, "append_round", None),
        (RunStore, "sync", None),
    ):
        if not hasattr(store, name):
            raise SystemExit(f"federated_job: {store.__name__}.{name} is gone; say here how to run without it")
        setattr(store, name, lambda *_, _gives=gives, **__: _gives)


WAYS = {"bare": bare, "plain": plain, "project": project, "quiet": partial(project, quiet=True)}


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from fedrs_lightning.cli.process import prepare_process

    prepare_process()  # the same allocator for all; loads neither torch nor lightning
    import torch

    torch.set_num_threads(1)
    way, folder = sys.argv[1], Path(sys.argv[2])
    clock = Clock()
    rank = WAYS[way](read_job(folder), folder, clock)
    clock.write(folder, rank)


if __name__ == "__main__":
    main()
