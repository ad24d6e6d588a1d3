"""Batches of a rank's clients: one gather an array of the pack, the rest on the device."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from fedrs_lightning.data.batches.prefetch import ahead
from fedrs_lightning.data.clients.federation import Federation
from fedrs_lightning.data.packs.residence import BUDGET, GIB, Residence, onto, settle
from fedrs_lightning.errors import ConfigError
from fedrs_lightning.seeding import torch_stream
from fedrs_lightning.types import Batch


def plan_batches(num_samples: int, batch_size: int, min_last_batch: int | None = None) -> list[int]:
    """Sizes of the batches of one epoch; every sample is used.

    A remainder smaller than `min_last_batch` would make batch normalisation fail or blow up, so it is spread over the
    earlier batches, which then exceed `batch_size` by a little. A single small batch stays as it is.

    By default `min_last_batch` is a quarter of `batch_size`, at least 4; 0 switches the rule off.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, got {batch_size}")
    if min_last_batch is not None and min_last_batch < 0:
        raise ConfigError(f"min_last_batch must be 0 (off), a number of samples, or null, got {min_last_batch}")
    smallest = max(4, batch_size // 4) if min_last_batch is None else min_last_batch
    full, rest = divmod(num_samples, batch_size)
    if rest == 0:
        return [batch_size] * full
    if full == 0 or rest >= smallest:
        return [batch_size] * full + [rest]
    more, extra = divmod(rest, full)
    return [batch_size + more + (number < extra) for number in range(full)]


@dataclass(frozen=True)
class Loading:
    """How batches come from a pack onto a device. Nothing that is loaded depends on it.

    Attributes:
        residence: where the arrays of packs lie, see `residence.Shelf.settle`.
        budget: bytes of them that may be in memory.
        prefetch: batches that a thread loads ahead; None takes 2 on GPUs, where it overlaps copies with the
            computation, and none on CPUs, where it would take the core from it.
    """

    residence: Residence = "map"
    budget: float = BUDGET * GIB
    prefetch: int | None = None


class ClientLoader:
    """Batches of any client of a federation; one loader serves all clients of a rank.

    What a batch holds is a function of (seed, round, client, epoch) alone, not of the rank or of what was loaded
    before.

    Args:
        federation: the data.
        batch_size: training batch size.
        min_last_batch: see `plan_batches`.
        seed: the run's seed.
        device: where batches are put and transformed.
        channels_last: give images in channels_last memory format.
        loading: how batches get there; None leaves the arrays of packs where they lie.

    Attributes:
        note: why the arrays lie elsewhere than `loading` says, for people; None where they do not.
    """

    def __init__(
        self,
        federation: Federation,
        batch_size: int,
        min_last_batch: int | None,
        seed: int,
        device: torch.device | str,
        channels_last: bool = False,
        loading: Loading | None = None,
    ) -> None:
        plan_batches(0, batch_size, min_last_batch)
        self.federation, self.batch_size, self.min_last_batch, self.seed = federation, batch_size, min_last_batch, seed
        self.device, self.channels_last = torch.device(device), channels_last
        self.transform = federation.transform
        if isinstance(self.transform, nn.Module):
            self.transform = copy.deepcopy(self.transform).to(self.device)
        self.note: str | None = None
        if loading is not None:
            self.note = settle(federation.source, loading.residence, loading.budget, self.device)
        gpu = self.device.type == "cuda"
        ahead = None if loading is None else loading.prefetch
        self.prefetch = (2 if gpu else 0) if ahead is None else ahead
        self._stream = torch.cuda.Stream(self.device) if gpu and self.prefetch else None
        self._clients = {client.id: client for client in federation.clients}

    def batch_sizes(self, client_id: int) -> list[int]:
        """Sizes of the client's training batches in one epoch."""
        return plan_batches(len(self._clients[client_id].train), self.batch_size, self.min_last_batch)

    def num_steps(self, client_id: int, local_epochs: int) -> int:
        """Optimiser steps of local training."""
        return len(self.batch_sizes(client_id)) * local_epochs

    def epoch(self, client_id: int, round: int, epoch: int, augment: bool = True) -> Iterator[Batch]:
        """One shuffled pass over the client's training data; rounds count from 1, epochs of a round from 0.

        `augment` applies the transform's random draws; the order of samples does not depend on it.
        """
        train = torch.from_numpy(self._clients[client_id].train)
        order = torch.randperm(len(train), generator=torch_stream(self.seed, "shuffle", round, client_id, epoch))
        draws = None
        if augment:
            draws = self.transform.draw(len(train), torch_stream(self.seed, "augment", round, client_id, epoch))
        cuts = np.cumsum([0, *self.batch_sizes(client_id)]).tolist()
        rows = [order[start:stop] for start, stop in pairwise(cuts)]
        yield from self._load([(train[part], None if draws is None else draws[part]) for part in rows])

    def ordered(
        self, indices: np.ndarray | Tensor, batch_size: int, first: int = 0, step: int = 1
    ) -> Iterator[tuple[int, Batch]]:
        """Evaluation batches, not augmented.

        `indices` is cut into fixed chunks of `batch_size`; chunks number `first`, `first + step`, ... are given with
        their numbers, so that `world_size` ranks with first = rank and step = world_size see every chunk once.
        """
        wanted = torch.as_tensor(indices, dtype=torch.int64)
        numbers = range(first, -(-len(wanted) // batch_size), step)
        batches = self._load([(wanted[number * batch_size : (number + 1) * batch_size], None) for number in numbers])
        yield from zip(numbers, batches, strict=True)

    def _load(self, parts: Sequence[tuple[Tensor, Tensor | None]]) -> Iterator[Batch]:
        """Batches of samples with their draws; gathered and copied ahead, transformed here."""
        for batch, draws, copied in ahead(lambda: self._copies(parts), self.prefetch):
            if copied is not None:
                # What another stream copied: wait for it, and let nobody reuse its memory before this stream is done.
                torch.cuda.current_stream(self.device).wait_event(copied)
                for value in (*batch.values(), *([] if draws is None else [draws])):
                    value.record_stream(torch.cuda.current_stream(self.device))
            loaded = self.transform(batch, draws)
            if self.channels_last:
                loaded["image"] = loaded["image"].contiguous(memory_format=torch.channels_last)
            yield loaded

    def _copies(
        self, parts: Sequence[tuple[Tensor, Tensor | None]]
    ) -> Iterator[tuple[Batch, Tensor | None, torch.cuda.Event | None]]:
        gpu, stream = self.device.type == "cuda", self._stream
        with ExitStack() as stack:
            if stream is not None:  # both are the thread's own, and its device would not be this rank's
                stack.enter_context(torch.cuda.device(self.device))
                stack.enter_context(torch.cuda.stream(stream))
            for indices, draws in parts:
                batch = self.federation.source.gather(indices, pin_memory=gpu)
                batch = {key: onto(value, self.device) for key, value in batch.items()}
                draws = None if draws is None else onto(draws, self.device)
                yield batch, draws, None if stream is None else stream.record_event()
