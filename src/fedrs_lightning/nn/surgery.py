"""Add layers to a finished network, and find the state entries of layers by their type.

Names are a poor guide: in a torchvision ResNet the batch norms of the skip paths are called `downsample.1`, so a search
for "bn" misses 20 of the 265 batch-norm entries of a ResNet-50. Everything here goes by type.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

MODEL = "model/"
"""Namespace of the network's own entries in a state."""

Where = Literal["input", "output"]


def network_of(task_or_model: nn.Module) -> nn.Module:
    """The network itself: `task.model` of a LightningModule, anything else as it is."""
    if isinstance(task_or_model, LightningModule):
        network = task_or_model.model
        if not isinstance(network, nn.Module):
            raise TypeError(f"{type(task_or_model).__name__}.model is not a module")
        return network
    return task_or_model


def keys_of(task_or_model: nn.Module, *layer_types: type[nn.Module]) -> set[str]:
    """State keys (`model/...`) of the parameters and buffers that layers of these types own themselves.

    Entries of layers nested inside such a layer are not its own: a modulation attached to a batch norm is not batch
    norm. A layer that is registered under several names yields its keys under each of them, as the state dict does.

    Args:
        task_or_model: a task, or a bare network.
        layer_types: types as for `isinstance`, so subclasses count; `_BatchNorm` covers 1d, 2d, 3d and synchronised.
    """
    network = network_of(task_or_model)
    entries = network.state_dict(keep_vars=True)
    own: set[str] = set()
    for name, layer in network.named_modules(remove_duplicate=False):
        if isinstance(layer, layer_types):
            prefix = f"{name}." if name else ""
            own.update(prefix + entry for entry in (*layer._parameters, *layer._buffers))
    return {MODEL + entry for entry in own if entry in entries}


def parameter_keys(task_or_model: nn.Module) -> set[str]:
    """State keys of all parameters, trainable or frozen."""
    return {MODEL + name for name, _ in network_of(task_or_model).named_parameters(remove_duplicate=False)}


def buffer_keys(task_or_model: nn.Module) -> set[str]:
    """State keys of all persistent buffers, floating and integer."""
    return {MODEL + name for name in network_of(task_or_model).state_dict()} - parameter_keys(task_or_model)


def attach(host: nn.Module, name: str, layer: nn.Module, where: Where) -> None:
    """Make `layer` a child of `host` that acts on the host's first input, or on its output.

    The host keeps its class and its name, so no existing state entry is renamed; the new entries are `<host>.<name>.*`.
    Attach before `torch.compile` traces the network.

    Args:
        host: a layer or block of the network.
        name: the child's name; must be free.
        layer: maps a tensor to a tensor.
        where: "input" or "output" of the host.

    Raises:
        ValueError: the host has something of this name already.
    """
    if hasattr(host, name):
        raise ValueError(f"{type(host).__name__} already has a '{name}'")
    host.add_module(name, layer)
    if where == "input":
        host.register_forward_pre_hook(partial(_on_input, name))
    else:
        host.register_forward_hook(partial(_on_output, name))


def like(host: nn.Module) -> dict[str, Any]:
    """Device and floating dtype of a layer's first parameter, as keyword arguments for new tensors."""
    for parameter in host.parameters():
        if parameter.is_floating_point():
            return {"device": parameter.device, "dtype": parameter.dtype}
    return {"device": None, "dtype": torch.get_default_dtype()}


# The hooks look the layer up in the host that calls them, so that a deep copy of a network uses its own layers.
def _on_input(name: str, host: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (host.get_submodule(name)(inputs[0]), *inputs[1:])


def _on_output(name: str, host: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return host.get_submodule(name)(output)
