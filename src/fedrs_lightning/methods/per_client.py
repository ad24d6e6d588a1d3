"""Entries of the server state with one row per client."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedrs_lightning.types import Client, Upload


def client_ids(clients: Sequence[Client]) -> Tensor:
    """Ids of all K clients, ascending, int64 [K]: the order of the rows."""
    return torch.tensor(sorted(client.id for client in clients), dtype=torch.int64)


def rows_of(ids: Tensor, senders: Sequence[Upload] | Sequence[int]) -> Tensor:
    """Rows of these clients, int64, in their order.

    Args:
        ids: of all clients, ascending.
        senders: uploads or client ids.
    """
    wanted = [sender.client.id if isinstance(sender, Upload) else sender for sender in senders]
    return torch.searchsorted(ids, torch.tensor(wanted, dtype=torch.int64, device=ids.device))
