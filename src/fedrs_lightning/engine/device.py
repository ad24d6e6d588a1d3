"""The server state where the network is: as it lies in host memory, or one copy of it on a device."""

from __future__ import annotations

import torch

from fedrs_lightning.engine.ranks.server import Published
from fedrs_lightning.flat import FlatState
from fedrs_lightning.types import State


class Placement:
    """Places a published state on a rank's device.

    Args:
        device: of the network.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._model: FlatState | None = None

    def __call__(self, published: Published) -> tuple[State, FlatState]:
        """All entries on the device, and those of the network as one flat state."""
        if self.device.type == "cpu":
            return published.state(), published.model
        if self._model is None:
            self._model = FlatState(published.model.layout, published.model.data.to(self.device))
        else:
            self._model.data.copy_(published.model.data)
        own = FlatState(published.own.layout, published.own.data.to(self.device))
        return {**self._model, **own}, self._model
