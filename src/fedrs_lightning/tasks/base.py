"""A task: network, loss and metrics in one LightningModule.

The federated engine trains it client by client, `lightning.Trainer` trains it centrally. Steps compute and return; they
use neither `current_epoch` nor `global_step`, which stand still without a Trainer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics import Metric

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.nn.surgery import MODEL
from fedrs_lightning.types import Batch, Output, State

LabelKind = Literal["one_class", "several_classes", "pixel_classes"]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]


class Task(L.LightningModule, ABC):
    """Base of all tasks. A subclass sets `model` and says what its loss and its metric are.

    Attributes:
        model: everything that can travel; its forward returns an `Output`.
        optimizer: makes an optimiser for the given parameters; the engine calls it anew for each client and round.
            Adam with learning rate 0.001 until somebody sets another.
        label_kind: what the labels are: `one_class` per image, `several_classes` per image (or none), or
            `pixel_classes`, one class per pixel.
    """

    model: nn.Module
    label_kind: LabelKind = "one_class"

    def __init__(self) -> None:
        super().__init__()
        self.optimizer: OptimizerFactory = partial(torch.optim.Adam, lr=1e-3)
        # not a submodule: counts of one evaluation belong neither to the network nor to its checkpoints
        self._running: dict[str, Metric] = {}

    def check_batch(self, batch: Batch) -> None:
        """Refuse data that the task cannot learn from; asked once, before round 1, with a training sample as stored.

        Raises:
            ConfigError: says what the data have, and which task takes it.
        """

    @abstractmethod
    def criterion(self, output: Output, batch: Batch) -> Tensor:
        """Mean loss of a batch, a scalar with gradient."""

    @abstractmethod
    def metric(self) -> Metric:
        """A fresh metric on the task's device, `sync_on_compute=False`: its states merge exactly, in any order."""

    @abstractmethod
    def update(self, metric: Metric, output: Output, batch: Batch) -> None:
        """Count a batch."""

    @abstractmethod
    def scores(self, metric: Metric) -> dict[str, float]:
        """Named results in float64 from the metric's states, nan without a value; the first entry is the headline."""

    def absent_classes(self, metric: Metric) -> list[str]:
        """Names of the classes that means over classes leave out, because the samples show none of them."""
        return []

    def forward(self, image: Tensor) -> Output:
        """Run the network on images [B, C_in, H, W]."""
        output: Output = self.model(image)
        return output

    def model_state(self) -> State:
        """The network's entries as a flat state `model/*`; the tensors are the network's own, not copies."""
        return {MODEL + name: tensor for name, tensor in self.model.state_dict().items()}

    def head_keys(self) -> set[str]:
        """State keys of the last layer, which turns the embedding into logits; for methods that treat it apart.

        Raises:
            ConfigError: the task does not say which layer that is.
        """
        raise ConfigError(f"{type(self).__name__} does not name its last layer; keep the head shared")

    def training_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        """Loss of a batch, in training mode."""
        loss = self.criterion(self(batch["image"]), batch)
        self.log("train/loss", loss, batch_size=len(batch["image"]))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int = 0) -> None:
        """Count a validation batch."""
        self._evaluation_step("val", batch)

    def test_step(self, batch: Batch, batch_idx: int = 0) -> None:
        """Count a test batch."""
        self._evaluation_step("test", batch)

    def on_validation_epoch_start(self) -> None:
        """Begin new counts."""
        self._running["val"] = self.metric()

    def on_test_epoch_start(self) -> None:
        """Begin new counts."""
        self._running["test"] = self.metric()

    def on_validation_epoch_end(self) -> None:
        """Log `val/<score>`."""
        self._log_scores("val")

    def on_test_epoch_end(self) -> None:
        """Log `test/<score>`."""
        self._log_scores("test")

    def configure_optimizers(self) -> Optimizer:
        """The optimiser of all trainable parameters, for the Trainer."""
        return self.optimizer(parameter for parameter in self.parameters() if parameter.requires_grad)

    def log(self, *args: Any, **kwargs: Any) -> None:
        """Log inside a Trainer's loop; do nothing elsewhere.

        Without this Lightning warns once a step when there is no Trainer, fails when a Trainer has finished, and under
        Fabric writes every step to the loggers as step 0.
        """
        if self._trainer is not None and self._current_fx_name is not None:
            super().log(*args, **kwargs)

    def log_dict(self, dictionary: Any, *args: Any, **kwargs: Any) -> None:
        """As `log`, for several values."""
        if self._trainer is not None and self._current_fx_name is not None:
            super().log_dict(dictionary, *args, **kwargs)

    def _evaluation_step(self, stage: str, batch: Batch) -> None:
        output = self(batch["image"])
        self.log(f"{stage}/loss", self.criterion(output, batch), batch_size=len(batch["image"]))
        if stage in self._running:
            self.update(self._running[stage], output, batch)

    def _log_scores(self, stage: str) -> None:
        metric = self._running.pop(stage)
        with metric.sync_context():  # ranks of a distributed Trainer add their counts; one process does nothing here
            scores = self.scores(metric)
        self.log_dict({f"{stage}/{name}": value for name, value in scores.items()})


def named_classes(names: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """Names of `count` classes for the scores; numbers where none are given."""
    if names is not None and len(names) != count:
        raise ConfigError(f"class_names: {len(names)} names for {count} classes")
    return tuple(map(str, range(count) if names is None else names))
