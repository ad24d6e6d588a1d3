"""What a federated data set is: samples by global index, and who may train or be tested on which of them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
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
        """`image` [B, C, H, W] in its stored dtype and `label` of the samples, in the order of `indices`.

        Args:
            indices: global indices, int64 [B].
            pin_memory: put the result into page-locked memory, for an asynchronous copy to a GPU.
        """
        ...


class Transform(Protocol):
    """From stored pixels to what a network takes, whole batches at a time, on the batch's device."""

    def draw(self, num_samples: int, generator: torch.Generator) -> Tensor | None:
        """Random draws of an augmented epoch, one row a sample ([N, ...]); None where nothing is augmented."""
        ...

    def __call__(self, batch: Batch, draws: Tensor | None = None) -> Batch:
        """The batch with a float32 normalised image; augmented by `draws` (one row a sample of the batch) where given."""
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
            if client.test is not None:
                self._exclude(owner, client)

    def _claim(self, owner: np.ndarray, name: str, indices: np.ndarray) -> None:
        if indices.size and (indices.min() < 0 or indices.max() >= len(owner)):
            raise DataError(f"{name} names sample {indices.max()}, but there are {len(owner)} samples")
        taken = indices[owner[indices] != ""]
        if taken.size:
            first = int(taken[0])
            raise DataError(
                f"sample {self.sample_ids[first]} is in {owner[first]} and in {name}; a sample may be in one split only"
            )
        if len(np.unique(indices)) != len(indices):
            raise DataError(f"{name} names a sample twice")
        owner[indices] = name

    def _exclude(self, owner: np.ndarray, client: ClientSplit) -> None:
        assert client.test is not None
        owners = owner[client.test]
        taken = client.test[(owners != "") & (owners != COMMON_TEST)]
        if taken.size:
            first = int(taken[0])
            raise DataError(
                f"sample {self.sample_ids[first]} is in the own test set of client {client.id} and in {owner[first]}"
            )


class FederatedDataset(ABC):
    """A data set with clients. The constructor only stores its arguments; disk is touched in `prepare` and
    `federation`.
    """

    stored_side: int | None = None
    """Side of the stored images in pixels, where it is known without touching the disk."""

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """Number of classes, known without touching the disk."""

    @property
    @abstractmethod
    def in_channels(self) -> int:
        """Channels of an image, known without touching the disk."""

    @property
    @abstractmethod
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes 0, 1, ..."""

    def band_names(self, domain: str = "") -> Mapping[str, tuple[str, ...]]:
        """Names of the stored bands, by field of the source's batches; for people, and to find true-colour bands.

        Names such as `red`, `R` or `B04` say what a band shows.

        Args:
            domain: of the client whose samples are looked at, where domains have different bands.
        """
        return {"image": tuple(f"band {number}" for number in range(1, self.in_channels + 1))}

    def acquired(self, sample_id: str) -> date | None:
        """Day on which a sample was acquired, where its id says so."""
        return None

    @abstractmethod
    def prepare(self) -> None:
        """Check the folder and pack its images into the cache. Call it on one rank; calling it again does nothing."""

    @abstractmethod
    def federation(self, seed: int) -> Federation:
        """The clients' data, the same on every rank that calls it with the same seed after `prepare`.

        Args:
            seed: the run's seed; the data set's own `seed` argument, where given, is used instead.
        """


def hash_ids(ids: Sequence[str]) -> str:
    """SHA-256 over the sorted ids, one a line."""
    return hashlib.sha256("".join(f"{name}\n" for name in sorted(ids)).encode()).hexdigest()


def describe_split(
    indices: np.ndarray, sample_ids: Sequence[str], labels: np.ndarray, num_classes: int
) -> dict[str, Any]:
    """Number of samples, samples of each class, and the hash over the sorted ids, for the manifest.

    Args:
        indices: the split.
        sample_ids: of all samples.
        labels: class of every sample, int [N], or multi-hot [N, C], where a sample counts for each class it has.
        num_classes: number of classes.
    """
    own = labels[indices]
    counts = np.bincount(own, minlength=num_classes) if labels.ndim == 1 else own.sum(axis=0, dtype=np.int64)
    return {
        "num_samples": len(indices),
        "class_counts": [int(count) for count in counts],
        "sha256": hash_ids([sample_ids[index] for index in indices]),
    }
