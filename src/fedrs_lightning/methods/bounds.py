"""The two ends between which federated methods lie: everybody's data in one place, and everybody alone.

Both run through the same engine, schedule and evaluation as the methods they bound. Unlike these they keep the state of
the optimiser between rounds: nothing is averaged, so a restart in every round would only hold them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods.base import FedAvg
from fedrs_lightning.types import Local, State, Upload

if TYPE_CHECKING:
    from fedrs_lightning.tasks.base import Task

OPTIMIZER = "optimizer/"


class Bound(FedAvg):
    """What both bounds share.

    Args:
        keep_optimizer: carry the optimiser's state (momentum, Adam's moments) from round to round. False restarts it
            in every round, as federated methods do.
    """

    def __init__(self, keep_optimizer: bool = True) -> None:
        super().__init__()
        self.keep_optimizer = keep_optimizer

    def on_local_start(self, local: Local) -> None:
        """Continue with the optimiser's state of the client's last round."""
        if self.keep_optimizer:
            restore_optimizer(local)

    def on_local_end(self, local: Local) -> None:
        """Keep the optimiser's state in the client's memory."""
        if self.keep_optimizer:
            keep_optimizer(local)


class Centralised(Bound):
    """Upper bound: one model trained on all clients' data, as if one held it. A round is `local_epochs` passes."""

    pools_clients = True


class LocalOnly(Bound):
    """Lower bound: every client trains its own model; nothing is sent and nothing aggregated.

    All clients start from the same initial values. A client that sits out a round keeps its model as it is.
    """

    streams = True

    def private_keys(self, task: Task) -> set[str]:
        """All of them."""
        return set(task.model_state())

    def aggregate(self, server: State, uploads: Sequence[Upload]) -> State:
        """The server state as it is."""
        return server


def keep_optimizer(local: Local) -> None:
    """Copy the optimiser's state into `local.memory` as `optimizer/<parameter>/<entry>`.

    Raises:
        ConfigError: the optimiser keeps something that is not a tensor.
    """
    names = _parameter_names(local)
    for parameter, state in local.optimizer.state.items():
        for entry, value in state.items():
            if isinstance(value, Tensor):
                local.memory[f"{OPTIMIZER}{names[parameter]}/{entry}"] = value.detach()
            elif value is not None:  # SGD without momentum notes None
                raise ConfigError(
                    f"keep_optimizer: {type(local.optimizer).__name__} keeps '{entry}' as {type(value).__name__}, and "
                    "client memory holds tensors only; set keep_optimizer: false or choose another optimiser"
                )


def restore_optimizer(local: Local) -> None:
    """Give the fresh optimiser the state that `keep_optimizer` left; learning rate and other settings stay its own."""
    parameters = {name: parameter for parameter, name in _parameter_names(local).items()}
    states: dict[Tensor, dict[str, Tensor]] = {}
    counters: list[tuple[dict[str, Tensor], str, Tensor]] = []
    for key, value in local.memory.items():
        if key.startswith(OPTIMIZER):
            name, entry = key.removeprefix(OPTIMIZER).rsplit("/", 1)
            state = states.setdefault(parameters[name], {})
            if value.shape == parameters[name].shape:  # laid out in memory like its parameter, and free to change
                state[entry] = torch.empty_like(parameters[name]).copy_(value)
            else:
                counters.append((state, entry, value))
    for (state, entry, _), value in zip(counters, _on_the_cpu([value for *_, value in counters]), strict=True):
        state[entry] = value
    if states:  # through `load_state_dict`, which knows which entries belong on the CPU
        content = local.optimizer.state_dict()
        order = [parameter for group in local.optimizer.param_groups for parameter in group["params"]]
        content["state"] = {index: states[parameter] for index, parameter in enumerate(order) if parameter in states}
        local.optimizer.load_state_dict(content)


def _on_the_cpu(values: Sequence[Tensor]) -> list[Tensor]:
    """Copies of counters and other small tensors, read from the device once for each dtype."""
    found: dict[int, Tensor] = {}
    for dtype in {value.dtype for value in values}:
        own = [number for number, value in enumerate(values) if value.dtype == dtype]
        flat = torch.cat([values[number].detach().reshape(-1) for number in own]).cpu()
        pieces = flat.split([values[number].numel() for number in own])
        found |= {
            number: piece.reshape(values[number].shape).clone() for number, piece in zip(own, pieces, strict=True)
        }
    return [found[number] for number in range(len(values))]


def _parameter_names(local: Local) -> dict[Tensor, str]:
    return {parameter: name for name, parameter in local.task.named_parameters()}
