"""Means and deviations of bands, and what it costs to know them when every client keeps its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

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
    described: dict[str, Any]


def statistics(
    kind: Normalisation,
    groups: Mapping[str, np.ndarray],
    measure: Callable[[np.ndarray], Sequence[tuple[float, float]]],
    bands: Sequence[str],
    scale: float,
    num_clients: int,
) -> Statistics:
    """Means and deviations of training pixels under a rule, and its cost.

    Args:
        kind: `federated`, `per_domain` or `per_client`, see `RULES`.
        groups: training samples that are taken together, int64, by the name of their client or domain, or of all.
        measure: mean and deviation of each band over stored pixels of samples.
        bands: names, for messages.
        scale: factor on stored values.
        num_clients: how many clients send and receive.

    Raises:
        DataError: a group has no training samples, or a band does not vary, so that nothing can be divided by its
            deviation.
    """
    rows = {}
    for name, indices in groups.items():
        if not len(indices):
            raise DataError(f"{name}: no training samples for statistics; leave it out, or set another normalise")
        found = measure(indices)
        for band, (_, deviation) in zip(bands, found, strict=True):
            if deviation <= 0:
                shown = f"{name}: {band if band.startswith('band ') else f'band {band}'}"
                raise DataError(f"{shown} does not vary over the training samples; check its images, or take published")
        rows[name] = [scale * mean for mean, _ in found], [scale * std for _, std in found]
    # A count and two sums a band go up, mean and deviation come down.
    senders = 0 if kind == "per_client" else num_clients
    sent = {"up": senders * WORD * (1 + 2 * len(bands)), "down": senders * WORD * 2 * len(bands)}
    return _described(kind, rows, sent, scale)


def published(rows: Mapping[str, tuple[Sequence[float], Sequence[float]]], scale: float) -> Statistics:
    """Published mean and deviation, after `scale`, by the name whose they are."""
    return _described("published", rows, {"up": 0, "down": 0}, scale)


def _described(
    kind: Normalisation,
    rows: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    sent: dict[str, int],
    scale: float,
) -> Statistics:
    about: dict[str, Any] = {"statistics": kind, "rule": RULES[kind], "scale": scale, "setup_bytes": sent}
    about["of"] = {name: {"mean": list(mean), "std": list(std)} for name, (mean, std) in rows.items()}
    return Statistics([list(mean) for mean, _ in rows.values()], [list(std) for _, std in rows.values()], sent, about)
