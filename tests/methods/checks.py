"""What every method with a loss of its own must show, on a classification and on a segmentation federation."""

from __future__ import annotations

import os
import signal
from functools import partial

import torch

from fedrs_lightning.methods import FedAvg
from fedrs_lightning.states import digest

from ..engine.conftest import make_federation, run
from .conftest import make_segmentation_federation, small_segmentation_task

CLASSIFICATION = {"federation": make_federation()}
SEGMENTATION = {"federation": make_segmentation_federation(), "make_task": small_segmentation_task}


def model_digest(outcome, keys):
    """Digest of the `model/*` entries that federated averaging has too."""
    return digest({key: outcome.server[key] for key in keys if key.startswith("model/")})


def assert_fedavg(neutral, full, tmp_path, **engine):
    """With its terms at weight 0 a method ends in the bits of federated averaging, with them it does not.

    Three rounds, four of six clients in each.
    """
    plain, without, with_terms = (run(make, tmp_path / name, **engine) for name, make in zip("pnf", (FedAvg, neutral, full), strict=True))
    assert [record["cohort"] for record in without.history] == [record["cohort"] for record in plain.history]
    assert model_digest(without, plain.server) == plain.digest_model
    assert model_digest(with_terms, plain.server) != plain.digest_model
    return without, with_terms


def assert_same_on_ranks_and_after_a_kill(make, tmp_path, **engine):
    """One rank, two ranks, and one rank that is killed in the middle of round 3 and continued on two: the same bits and logs."""
    one = run(make, tmp_path / "one", **engine)
    two = run(make, tmp_path / "two", world_size=2, **engine)
    child = os.fork()
    if child == 0:
        run(partial(_deadly, make), tmp_path / "killed", **engine)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    resumed = run(make, tmp_path / "killed", world_size=2, **engine)
    for other in (two, resumed):
        assert (other.digest, other.history, other.clients) == (one.digest, one.history, one.clients)
    return one


def _deadly(make):
    """The method, which dies in round 3 after the training of its second client."""
    method = make()
    end = method.on_local_end
    visits = []

    def on_local_end(local):
        end(local)
        visits.append(local.round)
        if visits.count(3) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    method.on_local_end = on_local_end
    return method


def count_forwards(make, tmp_path, **engine):
    """(forward passes in training mode, in evaluation mode, optimiser steps) of a run of two rounds."""
    calls = {True: 0, False: 0}

    def count(engine):
        engine.task.model.register_forward_hook(lambda module, *_: calls.__setitem__(module.training, calls[module.training] + 1))

    outcome = run(make, tmp_path / "count", before=count, **{"num_rounds": 2} | engine)
    return calls[True], calls[False], sum(row["num_steps"] for row in outcome.clients if row["phase"] == "train")


def finite(state):
    return all(bool(torch.isfinite(value).all()) for value in state.values() if value.is_floating_point())
