"""What ranks say to each other: barriers, small values, and failures that all must hear of.

Uploads and the server state travel through memory that ranks share (uploads.py, server.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch.distributed as dist

from fedrs_lightning.engine.ranks.contact import contact
from fedrs_lightning.errors import FedrsError, TrainingError


class Exchange:
    """The only place that talks to other ranks during a round.

    Args:
        fabric: launched.
    """

    def __init__(self, fabric: L.Fabric) -> None:
        self.fabric = fabric
        self.rank, self.world_size = fabric.global_rank, fabric.world_size

    def barrier(self) -> None:
        """Wait for all ranks.

        Raises:
            LostContact: one is gone.
        """
        if self.world_size > 1:
            with contact():
                self.fabric.barrier()

    def collect(self, value: Any) -> list[Any]:
        """One small Python value of every rank, on every rank, in rank order."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        with contact():
            dist.all_gather_object(values, value)
        return values

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Around what a rank does alone: when it fails on one rank, all raise, so that none waits for ever.

        Raises:
            FedrsError: the failure of the lowest rank, of the same kind and text everywhere.
        """
        failure: FedrsError | None = None
        try:
            yield
        except FedrsError as error:
            failure = error
        if failure is not None and self.world_size == 1:
            raise failure
        known = self.collect(None if failure is None else (type(failure).__name__, str(failure)))
        for name, text in filter(None, known):
            raise {kind.__name__: kind for kind in FedrsError.__subclasses__()}.get(name, TrainingError)(text)

    def broadcast(self, value: Any) -> Any:
        """Rank 0's small Python value on every rank."""
        if self.world_size == 1:
            return value
        with contact():
            return self.fabric.broadcast(value)
