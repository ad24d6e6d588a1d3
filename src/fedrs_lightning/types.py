"""The types that every layer shares. Imports nothing else of this package.

A state is flat: `dict[str, Tensor]` with keys `namespace/name`. `model/<entry of the network's state dict>` holds
what the network owns; a method adds its own namespaces, such as `fedmad/direction`. The engine sends, saves and
resumes states without knowing what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from torch.optim import Optimizer

State = dict[str, Tensor]
Batch = dict[str, Tensor]
"""`image` [B, C, H, W] float32 with `label` (int64 [B], or float32 [B, C] multi-hot) or `mask` (int64 [B, H, W])."""


@dataclass(frozen=True)
class Client:
    """Who takes part: an id that never changes during a run, a name for people, the number of training samples."""

    id: int
    num_samples: int
    name: str = ""


@dataclass
class Output:
    """All that one forward pass yields.

    Attributes:
        logits: [B, C], or [B, C, H, W] for segmentation.
        embedding: [B, D], input of the last linear layer; [B, D, h, w] for segmentation.
        shallow: [B, D_s, h_s, w_s] early feature map, where the model offers one.
        deep: [B, D_d, h_d, w_d] last feature map of the encoder, where the model offers one.
    """

    logits: Tensor
    embedding: Tensor
    shallow: Tensor | None = None
    deep: Tensor | None = None


@dataclass
class Upload:
    """What a client sends after local training.

    Attributes:
        client: the sender; `client.num_samples` is n_k.
        state: shared `model/*` keys and the method's own entries; on the server it may be read from disk on demand.
        num_steps: optimiser steps taken this round.
        log: plain numbers for the client log (mean loss terms, aggregation weight, scores). Not part of the state.
        parameters: the keys of `state` that are trainable parameters, in the order of the network. The other
            `model/*` keys are buffers and frozen parameters.
    """

    client: Client
    state: Mapping[str, Tensor]
    num_steps: int = 0
    log: dict[str, float] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()


@dataclass
class Local:
    """One client's local training in one round: everything a client-side hook may read or write.

    Attributes:
        client: whose turn it is.
        round: current round, from 1.
        task: the LightningModule, with this client's parameters installed.
        received: this round's download, on the task's device. Read only.
        memory: what the method keeps for this client between rounds; changes are saved at its end.
        scratch: for this round only.
        num_steps: optimiser steps (all local epochs together).
        optimizer: fresh in every round.
        fabric: for `autocast()` and `backward()`.
        batches: `batches(augment)` iterates once over the client's own training data, in a fixed order.
        log: plain numbers for the client log, beside the mean loss terms. Not part of the state.
    """

    client: Client
    round: int
    task: Any
    received: State
    memory: State
    num_steps: int
    optimizer: Optimizer
    fabric: Fabric
    batches: Callable[[bool], Iterator[Batch]]
    scratch: dict[str, Any] = field(default_factory=dict)
    log: dict[str, float] = field(default_factory=dict)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])
