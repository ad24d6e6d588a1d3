"""A linear classifier as a task, for golden cases that give its numbers."""

from __future__ import annotations

from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrs_lightning.tasks.base import Task
from fedrs_lightning.types import Batch, Client, Local, Output


class Linear(nn.Module):
    """logits = x W^T + b; the embedding is x."""

    def __init__(self, weight: Any, bias: Any, dtype: torch.dtype) -> None:
        super().__init__()
        classes, features = np.shape(weight)
        self.fc = nn.Linear(features, classes, dtype=dtype)
        with torch.no_grad():
            self.fc.weight.copy_(torch.tensor(weight, dtype=torch.float64))
            self.fc.bias.copy_(torch.tensor(bias, dtype=torch.float64))

    def forward(self, image: Tensor) -> Output:
        return Output(self.fc(image), image)


class LinearTask(Task):
    """Cross-entropy of a linear classifier."""

    def __init__(self, weight: Any, bias: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = Linear(weight, bias, dtype)

    def criterion(self, output: Output, batch: Batch) -> Tensor:
        return F.cross_entropy(output.logits, batch["label"])

    def metric(self) -> Any:
        raise AssertionError("not called")

    update = scores = metric  # type: ignore[assignment]


def linear_visit(
    inputs: dict[str, Any], weight: Any, bias: Any, learning_rate: float = 0.0, dtype: torch.dtype = torch.float64
) -> tuple[Local, Batch]:
    """A visit of client 0 with this classifier installed and plain SGD, and the case's batch."""
    task = LinearTask(weight, bias, dtype)
    optimizer = torch.optim.SGD(task.parameters(), lr=learning_rate)
    fabric = L.Fabric(accelerator="cpu", devices=1)
    local = Local(Client(0, 1), 1, task, {}, {}, 1, optimizer, fabric, batches=None)  # type: ignore[arg-type]
    return local, {"image": torch.tensor(inputs["x"], dtype=dtype), "label": torch.tensor(inputs["labels"])}
