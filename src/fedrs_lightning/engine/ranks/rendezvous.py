"""Ranks meet within a short limit, or say which of them are missing."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from fedrs_lightning.engine.ranks.launch import LOOPBACK
from fedrs_lightning.errors import LostContact, RunError


def meet(address: str, port: int, rank: int, world_size: int, limit: float, agent: str | None = None) -> dist.Store:
    """A store that all ranks share, once all of them are there.

    On the loopback address nothing listens for other machines.

    Args:
        address: where rank 0 listens.
        port: where rank 0 listens.
        rank: of this process.
        world_size: number of ranks.
        limit: seconds to wait for the others.
        agent: unlike None, the launcher listens in place of rank 0, and the value names this attempt.

    Raises:
        RunError: not all ranks came within the limit, or rank 0 cannot listen.
        LostContact: the same, and rank 0 says it.
    """
    end = time.monotonic() + limit
    store = dist.PrefixStore(f"fedrs/{agent or ''}", _store(address, port, rank, world_size, limit, agent is not None))
    try:
        store.set(str(rank), "")
        store.add("count", 1)
        while store.add("count", 0) < world_size:
            if time.monotonic() > end:
                missing = [other for other in range(world_size) if not store.check([str(other)])]
                raise (RunError if rank == 0 else LostContact)(_missing(missing, world_size, limit))
            time.sleep(0.05)
    except dist.DistNetworkError:
        raise LostContact("rank 0 is gone while ranks were joining") from None
    return store


def _store(address: str, port: int, rank: int, world_size: int, limit: float, agent: bool) -> dist.Store:
    where = f"{address}:{port}"
    listens, descriptor = rank == 0 and not agent, None
    if listens and address == LOOPBACK:
        try:
            descriptor = _listening(port)
        except OSError as error:
            raise _cannot_listen(where, error.strerror) from None
    try:
        return dist.TCPStore(
            address,
            port,
            world_size,
            listens,
            timedelta(seconds=limit),
            wait_for_workers=False,
            master_listen_fd=descriptor,
        )
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        if listens:
            raise _cannot_listen(where, str(error).splitlines()[0]) from None
        raise RunError(f"{_missing([0], world_size, limit)} (looked for at {where})") from None


def _listening(port: int) -> int:
    with contextlib.closing(socket.socket()) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(4096)
        return listener.detach()  # the store's from now on


def _cannot_listen(where: str, reason: str | None) -> RunError:
    return RunError(f"rank 0 cannot listen at {where} ({reason}); set MASTER_PORT to a free port")


def _missing(ranks: Sequence[int], world_size: int, limit: float) -> str:
    some = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    problem = f"{len(ranks)} of {world_size} ranks did not join within {limit:g} s: rank {some}"
    return f"{problem}; start all of them, or raise fabric.join_timeout"
