"""Trainable parameters under their state keys, and terms of the objective whose gradient is known without a backward
pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedrs_lightning.nn.surgery import MODEL, network_of


def trainable(task_or_model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that take gradients, by state key (`model/...`), in the order of the network."""
    return {
        MODEL + name: parameter
        for name, parameter in network_of(task_or_model).named_parameters()
        if parameter.requires_grad
    }


def snapshot(parameters: Mapping[str, Tensor]) -> list[Tensor]:
    """Detached copies in the same memory format."""
    return [parameter.detach().clone() for parameter in parameters.values()]


def before_step(optimizer: Optimizer, act: Callable[[list[Tensor], list[Tensor], list[int]], object]) -> None:
    """Let `act` change the gradients between every backward pass and the optimiser's step, as long as the optimiser
    lives.

    Args:
        optimizer: of one visit.
        act: called without gradient tracking with the parameters that have a gradient, their gradients, and their
            positions among all parameters of the optimiser. A parameter without a gradient takes no step, and has
            nothing to change.
    """
    parameters: list[Tensor] = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def hook(*_: Any) -> None:
        places = [place for place, parameter in enumerate(parameters) if parameter.grad is not None]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        with torch.no_grad():
            act([parameters[place] for place in places], gradients, places)

    optimizer.register_step_pre_hook(hook)


def squared_distance(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """Sum of squared differences over all tensors, a float64 scalar on the tensors' device."""
    return torch.stack(
        [(a.detach().double() - b.double()).square().sum() for a, b in zip(first, second, strict=True)]
    ).sum()
