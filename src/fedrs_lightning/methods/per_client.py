"""Entries of the server state with one row per client."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedrs_lightning.types import Client, Upload


def client_ids(clients: Sequence[Client]) -> Tensor:
    """Ids of all K clients, ascending, int64 [K]: the order of the rows."""
    return torch.tensor(sorted(client.id for client in clients), dtype=torch.int64)


def client_samples(clients: Sequence[Client]) -> Tensor:
    """Training samples of all K clients in the order of their ids, float64 [K]."""
    ordered = sorted(clients, key=lambda client: client.id)
    return torch.tensor([client.num_samples for client in ordered], dtype=torch.float64)


def rows_of(ids: Tensor, senders: Sequence[Upload] | Sequence[int]) -> Tensor:
    """Rows of these uploads or client ids, int64, in their order; `ids` are those of all clients, ascending."""
    wanted = [sender.client.id if isinstance(sender, Upload) else sender for sender in senders]
    if len(wanted) == 1:  # a number, which a device takes along without being waited for
        return torch.searchsorted(ids, wanted[0]).reshape(1)
    return torch.searchsorted(ids, torch.tensor(wanted, dtype=torch.int64, device=ids.device))
