"""What an experiment costs: floating-point operations, parameters, bytes on the wire; counted on a few images.

Operations are those that torch's own counter knows, products of matrices and convolutions, with two for a
multiplication and an addition; what works entry by entry (normalisation, activations, penalties, the optimiser) counts
nothing, as is usual. One exception: feature-wise modulation, which is all that some methods add to a network, is
counted analytically.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedrs_lightning.data.batches.loading import ClientLoader
from fedrs_lightning.data.clients.federation import ClientSplit, Federation
from fedrs_lightning.engine.local import Composer, LocalTraining
from fedrs_lightning.engine.memory import ClientMemory
from fedrs_lightning.methods.base import FedAvg
from fedrs_lightning.nn.modulation import Modulation
from fedrs_lightning.nn.surgery import parameter_keys
from fedrs_lightning.seeding import rng_stream, torch_stream
from fedrs_lightning.states import nbytes
from fedrs_lightning.tasks.base import Task
from fedrs_lightning.types import Batch, Client, Local

MODULATION_FORWARD, MODULATION_BACKWARD = 2, 4
"""Operations for each entry of a map: gamma x + beta; gamma g for the input, g x and its sum for gamma, g for beta."""

ROUND = 2
"""That is counted unless another is asked for: in the first one many methods do less."""

FEW = 4
"""Images that are enough for counting: operations grow in proportion, memory and time as well."""


@dataclass(frozen=True)
class Cost:
    """Figures of one method on one task.

    Attributes:
        forward: operations of a prediction, per sample.
        forward_backward: of a prediction and its gradient in training mode, per sample.
        local_step: of one step of the method, whole batch: heads, frozen networks and further passes included; scaled
            up where it was counted on fewer images than a batch.
        outside_steps: of the passes over the client's data before and after its steps, per sample.
        parameters: entries of all parameters, layers that the method adds included.
        shared: of those, entries that travel.
        private: of those, entries that stay on the client.
        bytes_down: what a client receives in the measured round.
        bytes_up: what it sends.
        batch_size: of the step.
        round: that was counted.
        counted_on: images in the batch that was counted.
    """

    forward: int
    forward_backward: int
    local_step: int
    outside_steps: int
    parameters: int
    shared: int
    private: int
    bytes_down: int
    bytes_up: int
    batch_size: int
    round: int
    counted_on: int

    def as_dict(self) -> dict[str, int]:
        """Plain numbers."""
        return asdict(self)


class Counter:
    """Operations so far: torch's counter, and the modulation that it does not see."""

    def __init__(self, network: nn.Module) -> None:
        self._mode = FlopCounterMode(display=False)
        self._network, self._extra = network, 0

    @property
    def total(self) -> int:
        """Operations since the counter was opened."""
        return int(self._mode.get_total_flops()) + self._extra

    @contextmanager
    def counting(self) -> Iterator[Counter]:
        """Count what the body does."""
        layers = [module for module in self._network.modules() if isinstance(module, Modulation)]
        handles = [layer.register_forward_hook(self._modulated) for layer in layers]
        try:
            with self._mode:
                yield self
        finally:
            for handle in handles:
                handle.remove()

    def _modulated(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        per_entry = MODULATION_FORWARD + (MODULATION_BACKWARD if output.requires_grad else 0)
        self._extra += per_entry * output.numel()


class RandomImages:
    """Samples of noise with labels of every class: enough for counting."""

    def __init__(self, task: Task, num_samples: int, num_classes: int, in_channels: int, side: int) -> None:
        generator = torch_stream("cost")
        self.image = torch.rand(num_samples, in_channels, side, side, generator=generator)
        masks = task.label_kind == "pixel_classes"
        self.key, shape = ("mask", (num_samples, side, side)) if masks else ("label", (num_samples,))
        if task.label_kind == "several_classes":
            self.labels = torch.randint(0, 2, (num_samples, num_classes), generator=generator).float()
        else:
            self.labels = torch.randint(0, num_classes, shape, generator=generator)

    def __len__(self) -> int:
        return len(self.image)

    def gather(self, indices: np.ndarray | Tensor, *, pin_memory: bool = False) -> Batch:
        """See `SampleSource`."""
        wanted = torch.as_tensor(indices)
        return {"image": self.image[wanted], self.key: self.labels[wanted]}


class AsItIs:
    """A transform that changes nothing."""

    def draw(self, num_samples: int, generator: torch.Generator) -> Tensor | None:
        """Nothing to draw."""
        return None

    def __call__(self, batch: Batch, draws: Tensor | None = None) -> Batch:
        """The batch."""
        return batch


def random_samples(task: Task, num_samples: int, num_classes: int, in_channels: int, side: int) -> Federation:
    """A federation of one client with `num_samples` images of noise, for `measure`."""
    source = RandomImages(task, num_samples, num_classes, in_channels, side)
    nobody = np.arange(0)
    split = ClientSplit(0, "", np.arange(num_samples))
    return Federation(source, (split,), nobody, nobody, AsItIs(), {}, [str(number) for number in range(num_samples)])


def some_samples(federation: Federation, num_samples: int) -> Federation:
    """The same data with one client, which has `num_samples` training images of all clients, for `measure`."""
    every = np.sort(np.concatenate([client.train for client in federation.clients]))
    spread = every[np.linspace(0, len(every) - 1, min(num_samples, len(every))).astype(np.int64)]
    return replace(federation, clients=(ClientSplit(0, "", spread),))


@rng_stream("cost", "run")
def measure(
    task: Task, method: FedAvg, fabric: L.Fabric, federation: Federation, batch_size: int, round: int = ROUND
) -> Cost:
    """Train one client of one batch for `round` rounds through the engine's own local training, and count the last one.

    Plain SGD takes the place of the task's optimiser, whose work is not counted. Random streams are left as they were.

    Args:
        task: fresh; it is adapted and trained.
        method: to measure; not the one of a run.
        fabric: launched; only this process takes part.
        federation: its only client's images are the batch that is counted.
        batch_size: of the step that is meant; where the client has fewer images, the step is scaled up.
        round: that is measured; in the first one many methods do less.
    """
    (split,) = federation.clients
    counted_on = len(split.train)
    task.optimizer = partial(torch.optim.SGD, lr=1e-3)
    clients = [Client(0, counted_on), Client(1, counted_on)]
    with rng_stream("cost", "adapt"):
        method.adapt(task)
    fabric.to_device(task)
    private = method.private_keys(task)
    composer = Composer(task, private, method.sent_keys(task))
    server = {key: value.cpu().clone() for key, value in composer.live.items() if key not in private}
    server |= method.init_server(task, clients)
    loader = ClientLoader(federation, counted_on, 0, 0, fabric.device)
    counter = Counter(task.model)
    steps: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        memory = ClientMemory(Path(folder) / "clients")
        timed: Any = _Timed(method, counter, steps)
        local = LocalTraining(fabric, timed, composer, loader, memory, 0, 1)
        for number in range(1, round):
            result = local.train(clients[0], number, _on(server, fabric.device))
            sent = {key: value.cpu() for key, value in {**result.upload.state, **result.own}.items()}
            server = method.aggregate(server, [replace(result.upload, state=sent)])
            memory.commit({0} if result.keeps_memory else set(), number)
        steps.clear()
        with counter.counting():
            result = local.train(clients[0], round, _on(server, fabric.device))
        bytes_up, bytes_down = nbytes(result.upload.state) + nbytes(result.own), result.bytes_down
        visited = counter.total
    sizes = {key: composer.live[key].numel() for key in parameter_keys(task)}
    total, own = sum(sizes.values()), sum(size for key, size in sizes.items() if key in private)
    forward, both = _plain(task, next(loader.epoch(0, 1, 0)))
    return Cost(
        forward=forward // counted_on,
        forward_backward=both // counted_on,
        local_step=sum(steps) * batch_size // counted_on,
        outside_steps=(visited - sum(steps)) // counted_on,
        parameters=total,
        shared=total - own,
        private=own,
        bytes_down=bytes_down,
        bytes_up=bytes_up,
        batch_size=batch_size,
        round=round,
        counted_on=counted_on,
    )


class _Timed:
    """A method whose steps note what they add to the counter; everything else is the method's own."""

    def __init__(self, method: FedAvg, counter: Counter, steps: list[int]) -> None:
        self._method, self._counter, self._steps = method, counter, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def local_step(self, local: Local, batch: Batch) -> dict[str, Tensor]:
        before = self._counter.total
        terms = self._method.local_step(local, batch)
        self._steps.append(self._counter.total - before)
        return terms


def _plain(task: Task, batch: Batch) -> tuple[int, int]:
    """Operations of a prediction, and of a prediction and its gradient in training mode, for a whole batch."""
    task.eval()
    with torch.no_grad(), Counter(task.model).counting() as forward:
        task(batch["image"])
    task.train()
    with Counter(task.model).counting() as both:
        # a loss works entry by entry, so any scalar counts the same, also with more outputs than classes
        task(batch["image"]).logits.sum().backward()
    task.zero_grad(set_to_none=True)
    return forward.total, both.total


def _on(server: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {key: value.to(device) for key, value in server.items()}
