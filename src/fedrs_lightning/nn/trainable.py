"""Trainable parameters under their state keys, copies of them, and distances between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedrs_lightning.nn.surgery import MODEL, network_of


def trainable(task_or_model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that take gradients, by state key (`model/...`), in the order of the network."""
    named = network_of(task_or_model).named_parameters()
    return {MODEL + name: parameter for name, parameter in named if parameter.requires_grad}


def snapshot(parameters: Mapping[str, Tensor]) -> list[Tensor]:
    """Detached copies in the same memory format."""
    return [parameter.detach().clone() for parameter in parameters.values()]


def squared_distance(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """Sum of squared differences over all tensors, a float64 scalar on the tensors' device."""
    pairs = zip(first, second, strict=True)
    return torch.stack([(a.detach().double() - b.double()).square().sum() for a, b in pairs]).sum()
