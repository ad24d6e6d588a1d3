"""Means and deviations of bands, and what it costs to know them when every client keeps its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedrs_lightning.data.packs.fields import mean_std
from fedrs_lightning.errors import DataError

Normalisation = Literal["published", "federated", "per_client"]
WORD = 8  # bytes of an int64 or float64

RULES = {
    "published": "published statistics, the same for everybody; nothing is sent",
    "federated": (
        "before round 1 every client uploads its number of training samples and, for each band, sum and sum of "
        "squares of its training "
        "pixels (int64); the server adds them up and sends mean and deviation (float64) to every client"
    ),
    "per_client": (
        "each client's own training pixels normalise all its samples, those of its test data too, and in the common "
        "test and validation "
        "sets the samples of its domain; nothing is sent"
    ),
}


@dataclass(frozen=True)
class Sums:
    """What a client knows of its training pixels, exact.

    Attributes:
        counts: pixels of each band.
        first: sum of each band.
        second: sum of squares of each band.
    """

    counts: tuple[int, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]

    def __add__(self, other: Sums) -> Sums:
        pairs = ((self.counts, other.counts), (self.first, other.first), (self.second, other.second))
        return Sums(*(tuple(a + b for a, b in zip(one, two, strict=True)) for one, two in pairs))

    def mean_std(self) -> tuple[list[float], list[float]]:
        """Mean and (population) deviation of each band."""
        found = [
            mean_std(count, [[one], [two]])
            for count, one, two in zip(self.counts, self.first, self.second, strict=True)
        ]
        return [mean[0] for mean, _ in found], [std[0] for _, std in found]


@dataclass(frozen=True)
class Statistics:
    """What normalises the samples.

    Attributes:
        mean: [G][C], one row for everybody, or one a client.
        std: same shape.
        setup_bytes: what clients send (`up`) and receive (`down`) before round 1, all clients together.
        described: plain JSON values for the manifest.
    """

    mean: list[list[float]]
    std: list[list[float]]
    setup_bytes: dict[str, int]
    described: dict[str, Any] = field(default_factory=dict)


def statistics(
    kind: Normalisation,
    published: tuple[Sequence[float], Sequence[float]],
    clients: Mapping[str, Sums],
    bands: Sequence[str],
) -> Statistics:
    """Means and deviations under a rule, and its cost.

    Sums are of stored integers, so they add up exactly, in any order and on any number of ranks.

    Args:
        kind: see `RULES`.
        published: mean and deviation of each band.
        clients: what each client knows of its training pixels, by name; not looked at for `published`.
        bands: their names, for messages.

    Raises:
        DataError: a client has no training samples, or a band does not vary, so that nothing can be divided by its
            deviation.
    """
    sent = {"up": 0, "down": 0}
    if kind == "published":
        rows = [([*published[0]], [*published[1]])]
    elif kind == "federated":
        total = next(iter(clients.values()))
        for more in list(clients.values())[1:]:
            total = total + more
        rows = [_varying(total, bands, "all clients together")]
        sent = setup_bytes(len(clients), len(bands))
    else:
        rows = [_varying(sums, bands, f"client {name}") for name, sums in clients.items()]
    mean, std = [row[0] for row in rows], [row[1] for row in rows]
    described: dict[str, Any] = {"statistics": kind, "rule": RULES[kind], "setup_bytes": sent}
    if kind == "per_client":
        described["clients"] = {name: {"mean": row[0], "std": row[1]} for name, row in zip(clients, rows, strict=True)}
    else:
        described |= {"mean": mean[0], "std": std[0]}
    return Statistics(mean, std, sent, described)


def setup_bytes(num_clients: int, num_bands: int) -> dict[str, int]:
    """What it costs to add up the clients' sums once: a count and two sums a band from each, mean and deviation back to
    each.
    """
    return {"up": num_clients * WORD * (1 + 2 * num_bands), "down": num_clients * WORD * 2 * num_bands}


def _varying(sums: Sums, bands: Sequence[str], owner: str) -> tuple[list[float], list[float]]:
    if 0 in sums.counts:
        raise DataError(
            f"{owner}: no training samples to take statistics from; leave the client out, or set another normalise"
        )
    mean, std = sums.mean_std()
    for band, deviation in zip(bands, std, strict=True):
        if deviation <= 0:
            name = band if band.startswith("band ") else f"band {band}"
            raise DataError(
                f"{owner}: {name} does not vary over the training samples; check its images, or set normalise to "
                "fixed statistics"
            )
    return mean, std
