"""Frozen models run through the one network of the task: nothing is copied, and its own parameters stay as they are."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedrs_lightning.nn.surgery import MODEL
from fedrs_lightning.types import Local, Output, State


def received_model(local: Local) -> State:
    """The network's own entries, without `model/`: as they came, or a copy of those that the client keeps to itself."""
    return {
        key.removeprefix(MODEL): local.received[key] if key in local.received else value.detach().clone()
        for key, value in local.task.model_state().items()
    }


@torch.no_grad()
def frozen_output(network: nn.Module, state: State, image: Tensor) -> Output:
    """A pass with the entries of `state` in evaluation mode; afterwards every layer has its own mode again."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        output: Output = functional_call(network, state, (image,))
        return output
    finally:
        for module, training in modes:
            module.training = training
