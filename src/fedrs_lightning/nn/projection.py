"""A projection head in front of a network's last layer, and the last layer itself, found without guessing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedrs_lightning.nn.surgery import MODEL, attach, like
from fedrs_lightning.types import Output, State

CHILD = "projection"


def last_linear(network: nn.Module, head_keys: Collection[str]) -> tuple[str, nn.Linear] | None:
    """Name and layer of the linear classifier that the state keys of a head belong to; None for another head.

    Args:
        network: the network.
        head_keys: state keys `model/<layer>.weight` and `model/<layer>.bias`, as `Task.head_keys` gives them.
    """
    names = sorted({key.removeprefix(MODEL).rpartition(".")[0] for key in head_keys})
    layer = network.get_submodule(names[0]) if len(names) == 1 else None
    return (names[0], layer) if isinstance(layer, nn.Linear) else None


def embedding_form(state: State, head_keys: Collection[str]) -> tuple[int, torch.dtype]:
    """Length D and dtype of the embedding, from the weight of the last layer, [C, D, ...].

    Args:
        state: `model/*` entries of the network.
        head_keys: as in `last_linear`.
    """
    weight = next(state[key] for key in sorted(head_keys) if state[key].dim() > 1)
    return weight.shape[1], weight.dtype


def replace_layer(network: nn.Module, name: str, layer: nn.Module) -> None:
    """Put `layer` where the layer called `name` was, on its device and in its dtype; keys keep their names."""
    parent, _, child = name.rpartition(".")
    host = network.get_submodule(parent)
    setattr(host, child, layer.to(**like(network.get_submodule(name))))


def insert_projection(network: nn.Module, name: str, out_dim: int) -> None:
    """Two linear layers with a ReLU between, in front of the classifier, which from then on reads the projection.

    The classifier is made anew for its new width and keeps its keys; the head's are `<name>.projection.*`. The
    network's `Output.embedding`, the input of the last linear layer, becomes the projection [B, out_dim].

    Args:
        network: whose forward returns an `Output`.
        name: of its linear classifier.
        out_dim: length of the projection.
    """
    old = network.get_submodule(name)
    assert isinstance(old, nn.Linear)
    width = old.in_features
    replace_layer(network, name, nn.Linear(out_dim, old.out_features, bias=old.bias is not None))
    classifier = network.get_submodule(name)
    head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out_dim))
    attach(classifier, CHILD, head.to(**like(classifier)), "input")
    tap = _Tap()
    classifier.register_forward_pre_hook(tap.note)
    network.register_forward_hook(tap.hand_over)


@dataclass
class _Tap:
    """Notes what reaches the classifier, and hands it over as the embedding; one pass long."""

    noted: Tensor | None = None

    def note(self, classifier: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.noted = inputs[0]

    def hand_over(self, network: nn.Module, inputs: tuple[Any, ...], output: Output) -> Output:
        noted, self.noted = self.noted, None
        assert noted is not None
        return replace(output, embedding=noted)
