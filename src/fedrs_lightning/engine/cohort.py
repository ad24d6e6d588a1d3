"""Who takes part in a round, and on which rank. No communication: every rank computes the same answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.seeding import numpy_stream
from fedrs_lightning.types import Client


class CohortSampler:
    """Draws each round's clients uniformly without replacement, a function of (seed, round) alone.

    Args:
        clients: all of them.
        clients_per_round: size of a cohort; None takes everybody.
        seed: the run's seed.

    Raises:
        ConfigError: a cohort larger than the federation, or empty.
    """

    def __init__(self, clients: Sequence[Client], clients_per_round: int | None, seed: int) -> None:
        if clients_per_round is not None and not 1 <= clients_per_round <= len(clients):
            given = f"schedule.clients_per_round={clients_per_round}, but there are {len(clients)} clients"
            raise ConfigError(f"{given}; choose 1 to {len(clients)}, or null for all")
        self.clients, self.size, self.seed = sorted(clients, key=lambda client: client.id), clients_per_round, seed

    def sample(self, round: int) -> list[Client]:
        """The cohort of `round`, by ascending id."""
        if self.size is None or self.size == len(self.clients):
            return list(self.clients)
        chosen = numpy_stream(self.seed, "cohort", round).choice(len(self.clients), self.size, replace=False)
        return [self.clients[index] for index in sorted(chosen.tolist())]


def in_order(cohort: Sequence[Client], costs: Mapping[int, float]) -> list[Client]:
    """The order in which a cohort is trained and summed: most work first, then by id, whatever the number of ranks."""
    return sorted(cohort, key=lambda client: (-costs[client.id], client.id))


def assign(costs: Mapping[int, float], world_size: int, homes: Mapping[int, int] | None = None) -> list[list[int]]:
    """Spread work over ranks: longest first onto the least loaded rank, ties by id and by rank.

    Args:
        costs: work of each client id, for example its optimiser steps.
        world_size: number of ranks.
        homes: ranks where clients are rather placed, as long as no rank gets more work than the busiest has without.

    Returns:
        Client ids of each rank, longest first. A rank may get none.
    """
    ranks, most = _spread(costs, world_size, {}, 0.0)
    if homes:
        preferred, found = _spread(costs, world_size, homes, most)
        ranks = preferred if found <= most else ranks
    return ranks


def _spread(
    costs: Mapping[int, float], world_size: int, homes: Mapping[int, int], most: float
) -> tuple[list[list[int]], float]:
    """Client ids of each rank, and the largest load; a home is taken where its load stays within `most`."""
    loads = [0.0] * world_size
    ranks: list[list[int]] = [[] for _ in range(world_size)]
    for client_id in sorted(costs, key=lambda key: (-costs[key], key)):
        rank = homes.get(client_id)
        if rank is None or loads[rank] + costs[client_id] > most:
            rank = min(range(world_size), key=lambda rank: (loads[rank], rank))
        ranks[rank].append(client_id)
        loads[rank] += costs[client_id]
    return ranks, max(loads)
