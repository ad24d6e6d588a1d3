"""Means and deviations of bands, and what it costs to know them when every client keeps its data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedrs_lightning.data.packs.fields import mean_std
from fedrs_lightning.errors import DataError

Normalisation = Literal["published", "federated", "per_domain", "per_client"]
WORD = 8  # bytes of an int64 or float64

RULES = {
    "published": "published statistics of each archive, the same for everybody; nothing is sent",
    "federated": (
        "before round 1 every client uploads its number of training pixels and, for each band, their sum and sum of "
        "squares (int64); the server adds them up and sends mean and deviation (float64) to every client"
    ),
    "per_domain": "as federated, but the server adds up the clients of each domain on their own",
    "per_client": (
        "each client's own training pixels normalise all its samples, those of its test data too, and in the common "
        "test and validation sets the samples that are its own; nothing is sent"
    ),
}


@dataclass(frozen=True)
class BandSums:
    """What is known of some pixels, exact.

    Attributes:
        counts: pixels of each band.
        first: sum of each band.
        second: sum of squares of each band.
    """

    counts: tuple[int, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]

    def mean_std(self) -> tuple[list[float], list[float]]:
        """Mean and (population) deviation of each band."""
        bands = zip(self.counts, self.first, self.second, strict=True)
        found = [mean_std(count, [[one], [two]]) for count, one, two in bands]
        return [mean[0] for mean, _ in found], [std[0] for _, std in found]


@dataclass(frozen=True)
class Statistics:
    """What normalises the samples.

    Attributes:
        mean: [G, C] after `scale`: one row for everybody, or one a domain or client.
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
    groups: dict[str, np.ndarray],
    sums: Callable[[np.ndarray], BandSums],
    bands: Sequence[str],
    scale: float,
    num_clients: int,
) -> Statistics:
    """Means and deviations of training pixels under a rule, and its cost.

    Sums are of stored integers, so they add up exactly, in any order and on any number of ranks.

    Args:
        kind: `federated`, `per_domain` or `per_client`, see `RULES`.
        groups: training samples that are taken together, int64, by the name of their client or domain, or of all.
        sums: sums of samples.
        bands: names, for messages.
        scale: factor on stored values.
        num_clients: how many clients send and receive.

    Raises:
        DataError: a group has no training samples, or a band does not vary, so that nothing can be divided by its
            deviation.
    """
    rows = []
    for name, indices in groups.items():
        if not len(indices):
            raise DataError(
                f"{name}: no training samples to take statistics from; leave the client out, or set another normalise"
            )
        mean, std = sums(indices).mean_std()
        for band, deviation in zip(bands, std, strict=True):
            if deviation <= 0:
                shown = band if band.startswith("band ") else f"band {band}"
                raise DataError(
                    f"{name}: {shown} does not vary over the training samples; check its images, or set normalise to "
                    "published"
                )
        rows.append(([scale * value for value in mean], [scale * value for value in std]))
    return described(
        kind, list(groups), rows, setup_bytes(0 if kind == "per_client" else num_clients, len(bands)), scale
    )


def described(
    kind: Normalisation,
    names: Sequence[str],
    rows: Sequence[tuple[Sequence[float], Sequence[float]]],
    sent: dict[str, int],
    scale: float,
) -> Statistics:
    """Statistics with their words for the manifest.

    Args:
        kind: see `RULES`.
        names: whose each row is.
        rows: mean and deviation after `scale`.
        sent: see `Statistics.setup_bytes`.
        scale: factor on stored values.
    """
    about: dict[str, Any] = {"statistics": kind, "rule": RULES[kind], "scale": scale, "setup_bytes": sent}
    about["of"] = {name: {"mean": list(mean), "std": list(std)} for name, (mean, std) in zip(names, rows, strict=True)}
    return Statistics([list(mean) for mean, _ in rows], [list(std) for _, std in rows], sent, about)


def setup_bytes(num_clients: int, num_bands: int) -> dict[str, int]:
    """What it costs to add up the clients' sums once: a count and two sums a band go up, mean and deviation down."""
    return {"up": num_clients * WORD * (1 + 2 * num_bands), "down": num_clients * WORD * 2 * num_bands}
