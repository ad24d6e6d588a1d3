"""What every method must show in the engine: bits that no number of ranks and no interruption changes, one pass a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedrs_lightning.methods import FedAvg

from ..engine.conftest import Outcome, run


def count_passes(calls: list[int]) -> Callable[[Any], None]:
    """For `before`: note the batch size of every pass of the network in training mode, whoever calls it."""

    def before(engine: Any) -> None:
        engine.task.model.register_forward_hook(lambda module, inputs, _: calls.append(len(inputs[0])) if module.training else None)

    return before


def check_engine(make_method: Callable[[], FedAvg], folder: Path, rounds: int = 4, **engine: Any) -> Outcome:
    """Partial participation on one rank, on two, and stopped after half of the rounds and continued on two: one outcome."""
    passes: list[int] = []
    one = run(make_method, folder / "one", num_rounds=rounds, before=count_passes(passes), **engine)
    two = run(make_method, folder / "two", num_rounds=rounds, world_size=2, **engine)
    path = folder / "stopped"
    stopped = run(make_method, path, num_rounds=rounds, before=lambda made: setattr(made.schedule, "num_rounds", rounds // 2), **engine)
    assert stopped.round == rounds // 2
    resumed = run(make_method, path, num_rounds=rounds, world_size=2, **engine)
    for other in (two, resumed):
        assert other.digest == one.digest
        assert other.history == one.history
        assert other.clients == one.clients
    assert len(passes) == sum(row["num_steps"] for row in one.clients if row["phase"] == "train")
    seen = [row["client"] for row in one.clients if row["phase"] == "train"]
    assert len(seen) > len(set(seen)), "no client came twice"
    assert any(row["client"] not in record["cohort"] for record in one.history[1:] for row in one.clients if row["round"] < record["round"])
    assert all(bool(torch.isfinite(value).all()) for value in one.server.values())
    return one


def check_neutral(make_method: Callable[[], FedAvg], make_reference: Callable[[], FedAvg], folder: Path, **engine: Any) -> Outcome:
    """Three rounds with partial participation end in the bits of the reference on the keys that the reference has."""
    plain = run(make_reference, folder / "plain", **engine)
    neutral = run(make_method, folder / "neutral", **engine)
    for key, value in plain.server.items():
        if key.startswith("model/"):
            assert torch.equal(neutral.server[key], value), key
    if {key for key in neutral.server if key.startswith("model/")} == {key for key in plain.server if key.startswith("model/")}:
        assert neutral.digest_model == plain.digest_model
    assert any("running_mean" in key for key in plain.server)
    return neutral
