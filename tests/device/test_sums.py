"""Weighted sums on a device that is not the CPU: the bits of the CPU's, whichever way they are taken."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from fedrs_lightning import states
from fedrs_lightning.engine.ranks.sums import RunningSum
from fedrs_lightning.flat import FlatLayout, FlatState, flat_copy
from fedrs_lightning.states import digest, flat_sum, summing, weighted_sum

from .pretended import apart, device

WAYS = ("one by one", "as one piece", "while clients train", "two at once")


def uploads() -> list[FlatState]:
    """Of five clients, whose values differ in size by powers of ten."""
    made = []
    for seed in range(5):
        stream = torch.Generator().manual_seed(seed)
        weight = torch.randn(3, 4, 5, 5, generator=stream) * 10.0**seed
        state = {
            "model/weight": weight.to(memory_format=torch.channels_last),
            "model/bias": torch.randn(1001, generator=stream),
            "model/wide": torch.randn(7, generator=stream, dtype=torch.float64),
            "model/half": torch.randn(9, generator=stream).bfloat16(),
            "model/count": torch.randint(100, (), generator=stream),
            "model/empty": torch.zeros(0, 2),
        }
        made.append(flat_copy(state))
    return made


def sums(there: bool) -> dict[str, str]:
    """Digests of the sum by the way in which it was taken."""
    states.CHUNK, states.DEVICE_CHUNK = 64, 100  # pieces, and a rest
    given = uploads()
    keys, layout = list(given[0]), given[0].layout
    weights = torch.tensor([0.1, 0.3, 0.25, 1 / 7, 1 - 0.65 - 1 / 7], dtype=torch.float64)
    where = device() if there else torch.device("cpu")
    with summing(device=where if there else None):
        single = {key: weighted_sum([state[key] for state in given], weights) for key in keys}
        packed = flat_sum(given, keys, weights)
    assert {value.device.type for value in (single | packed).values()} == {"cpu"}
    found = [digest(single), digest(packed)]
    for size in (1, 2):
        running = RunningSum(layout, torch.zeros(RunningSum.size_of(layout), dtype=torch.uint8).to(where))
        for first in range(0, len(given), size):
            parts = [state.data.to(where) for state in given[first : first + size]]
            assert running.add(parts, weights[first : first + size].tolist(), fresh=first == 0)
        out = torch.zeros(layout.size, dtype=torch.uint8)
        running.into(out, 1.0)
        found.append(digest(FlatState(FlatLayout.of(given[0]), out)))
    return dict(zip(WAYS, found, strict=True))


def both() -> tuple[dict[str, str], dict[str, str]]:
    return sums(False), sums(True)


@cache
def outcome() -> tuple[dict[str, str], dict[str, str]]:
    result: tuple[dict[str, str], dict[str, str]] = apart(both)
    return result


@pytest.mark.parametrize("way", WAYS)
def test_a_device_adds_as_the_cpu_does(way):
    cpu, there = outcome()
    assert len(set(cpu.values())) == 1
    assert there[way] == cpu[way]
