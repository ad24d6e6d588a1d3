"""A federation: samples by global index, and who trains, validates and tests on which of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedrs_lightning.errors import DataError
from fedrs_lightning.types import Batch

COMMON_TEST = "the common test set"


@dataclass(frozen=True)
class ClientSplit:
    """One client's share of the samples.

    Attributes:
        id: number that never changes during a run, from 0.
        name: for people; the attribute value where clients are made from an attribute.
        train: global indices it trains on, int64 [n_k], sorted.
        test: its own test data, int64, sorted; None where the data set defines none for it.
        domain: what it shares with other clients, for example a city; results are also given per domain.
    """

    id: int
    name: str
    train: np.ndarray
    test: np.ndarray | None = None
    domain: str = ""


class SampleSource(Protocol):
    """Random access to samples by global index."""

    def __len__(self) -> int: ...

    def gather(self, indices: np.ndarray | Tensor, *, pin_memory: bool = False) -> Batch:
        """`image` [B, C, H, W] in its stored dtype and `label` of the samples, in the order of `indices` int64 [B].

        `pin_memory` puts the result into page-locked memory, for an asynchronous copy to a GPU.
        """
        ...


class Transform(Protocol):
    """From stored pixels to what a network takes, whole batches at a time, on the batch's device."""

    def draw(self, num_samples: int, generator: torch.Generator) -> Tensor | None:
        """Random draws of an augmented epoch, one row a sample ([N, ...]); None where nothing is augmented."""
        ...

    def __call__(self, batch: Batch, draws: Tensor | None = None) -> Batch:
        """The batch with a float32 normalised image; augmented by `draws`, one row a sample of the batch, if given."""
        ...


@dataclass(frozen=True)
class Federation:
    """Everything a run needs to know about its data.

    Attributes:
        source: the samples.
        clients: shares of the training data, ids ascending.
        test: common test set, int64, sorted; may be empty.
        validation: held out of training, int64, sorted; may be empty.
        transform: from stored pixels to network input.
        manifest: plain JSON values: all that decided a number, with counts and hashes of every split.
        sample_ids: relative file path of each global index.
        protocols: under which models are evaluated, where their data are there (engine/evaluate.py).
        headline: the protocol that results report; None takes `personal_common` where there is a common test set, else
            `personal_own`.
        setup_bytes: what all clients together send (`up`) and receive (`down`) once, before round 1, such as sums for
            common statistics.

    Raises:
        DataError: a sample is in two clients, or both trained and tested on, or an index is out of range.
    """

    source: SampleSource
    clients: tuple[ClientSplit, ...]
    test: np.ndarray
    validation: np.ndarray
    transform: Transform
    manifest: dict[str, Any]
    sample_ids: Sequence[str]
    protocols: tuple[str, ...] = ("global", "personal_common", "personal_own", "validation")
    headline: str | None = None
    setup_bytes: Mapping[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})

    def __post_init__(self) -> None:
        ids = [client.id for client in self.clients]
        if ids != sorted(set(ids)):
            raise DataError(f"client ids must be distinct and ascending, got {ids}")
        owner = np.full(len(self.sample_ids), "", dtype=object)
        shares = [(f"client {client.id} (train)", client.train) for client in self.clients]
        for name, indices in [*shares, (COMMON_TEST, self.test), ("the validation set", self.validation)]:
            self._claim(owner, name, indices)
        for client in self.clients:
            test = np.empty(0, np.int64) if client.test is None else client.test
            for first in test[(owner[test] != "") & (owner[test] != COMMON_TEST)][:1]:
                both = f"in the own test set of client {client.id} and in {owner[first]}"
                raise DataError(f"sample {self.sample_ids[first]} is {both}")

    def _claim(self, owner: np.ndarray, name: str, indices: np.ndarray) -> None:
        if indices.size and (indices.min() < 0 or indices.max() >= len(owner)):
            raise DataError(f"{name} names sample {indices.max()}, but there are {len(owner)} samples")
        for first in indices[owner[indices] != ""][:1]:
            both = f"in {owner[first]} and in {name}"
            raise DataError(f"sample {self.sample_ids[first]} is {both}; a sample may be in one split only")
        if len(np.unique(indices)) != len(indices):
            raise DataError(f"{name} names a sample twice")
        owner[indices] = name
