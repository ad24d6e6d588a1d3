"""What every method must show, on a classification and on a segmentation federation: helpers for the tests of single
methods.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fedrs_lightning.methods import FedAvg

from ..engine.conftest import Outcome, make_federation, run
from .conftest import make_segmentation_federation, small_segmentation_task

CLASSIFICATION: dict[str, Any] = {"federation": make_federation()}
SEGMENTATION: dict[str, Any] = {"federation": make_segmentation_federation(), "make_task": small_segmentation_task}


@cache
def federated_averaging(segmentation: bool) -> Outcome:
    """Three rounds of FedAvg, run once for all tests of a process that compare with them."""
    with TemporaryDirectory() as folder:
        return run(FedAvg, Path(folder), **(SEGMENTATION if segmentation else CLASSIFICATION))


def _shared_reference(engine: dict[str, Any]) -> Outcome | None:
    for given in ({}, CLASSIFICATION, SEGMENTATION):
        if engine.keys() == given.keys() and all(engine[name] is value for name, value in given.items()):
            return federated_averaging(given is SEGMENTATION)
    return None


def check_neutral(
    make_method: Callable[[], FedAvg], make_reference: Callable[[], FedAvg], folder: Path, **engine: Any
) -> Outcome:
    """With its terms at weight 0 a method ends in the bits of the reference, on the keys that the reference has.

    Three rounds, four of six clients in each.
    """
    plain = _shared_reference(engine) if make_reference is FedAvg else None
    plain = plain or run(make_reference, folder / "plain", **engine)
    neutral = run(make_method, folder / "neutral", **engine)
    assert [record["cohort"] for record in neutral.history] == [record["cohort"] for record in plain.history]
    for key, value in plain.server.items():
        if key.startswith("model/"):
            assert torch.equal(neutral.server[key], value), key
    if model_keys(neutral) == model_keys(plain):
        assert neutral.digest_model == plain.digest_model
    assert any("running_mean" in key for key in plain.server)
    return neutral


def assert_fedavg(
    neutral: Callable[[], FedAvg], full: Callable[[], FedAvg], folder: Path, **engine: Any
) -> tuple[Outcome, Outcome]:
    """The neutral method ends in the bits of federated averaging, the full one does not."""
    without = check_neutral(neutral, FedAvg, folder, **engine)
    with_terms = run(full, folder / "full", **engine)
    assert any(not torch.equal(without.server[key], with_terms.server[key]) for key in model_keys(without))
    return without, with_terms


def model_keys(outcome: Outcome) -> set[str]:
    return {key for key in outcome.server if key.startswith("model/")}


def count_passes(calls: dict[bool, list[int]]) -> Callable[[Any], None]:
    """For `before`: note the batch size of every pass of the network, by training mode, whoever calls it."""

    def before(engine: Any) -> None:
        engine.task.model.register_forward_hook(lambda module, inputs, _: calls[module.training].append(len(inputs[0])))

    return before


def num_steps(outcome: Outcome) -> int:
    """Optimiser steps of all clients in all rounds."""
    return sum(row["num_steps"] for row in trained(outcome))


def trained(outcome: Outcome) -> list[dict[str, Any]]:
    """The rows of training, a client and round each."""
    return [row for row in outcome.clients if row["phase"] == "train"]


def finite(state: dict[str, torch.Tensor]) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in state.values() if value.is_floating_point())
