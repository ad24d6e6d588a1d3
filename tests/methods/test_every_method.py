"""Every method in the engine: bits that neither the number of ranks nor a kill changes, one pass a batch, defined
numbers.

All methods run one after the other in the same processes, a group of processes for each number of ranks.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrs_lightning import methods
from fedrs_lightning.methods import (
    FPL,
    MOON,
    Centralised,
    FedAvg,
    FedAWA,
    FedBN,
    FedDC,
    FedGPS,
    FedMAD,
    FedProto,
    FedProx,
    FedSeg,
    LocalOnly,
)
from fedrs_lightning.results.store import RunStore
from fedrs_lightning.tasks import ClassificationTask

from ..engine.conftest import make_several, multilabel_task, on_ranks, play, run
from .checks import CLASSIFICATION, SEGMENTATION, count_passes, finite, num_steps, trained
from .conftest import CLASSES, IGNORED, SIZES, feddap, make_segmentation_federation, small_segmentation_task

SGD = {"optimizer": partial(torch.optim.SGD, lr=0.05)}
SEG = SEGMENTATION | {"num_rounds": 3}
ROUNDS = SEGMENTATION | {"num_rounds": 4}
"""Of FedDAP, which synchronises after the second."""
fedseg = partial(FedSeg, embedding_dim=8, max_anchors=64, threshold=0.35)

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "FedAvg": (FedAvg, {}),
    "FedAvg, buffers stay": (partial(FedAvg, buffers="keep_client"), {}),
    "FedBN": (FedBN, {}),
    "FedMAD": (partial(FedMAD, num_layers=4), {}),
    "FedMAD, several labels": (FedMAD, {"federation": make_several(), "make_task": multilabel_task}),
    "FedProx": (partial(FedProx, mu=0.5), {}),
    "MOON": (partial(MOON, out_dim=16, mu=5.0, buffer=2), {}),
    "FedDC": (FedDC, SGD),
    "FedDC, paper": (partial(FedDC, server_rule="paper"), SGD),
    "FedAWA": (partial(FedAWA, lr=0.1, init="log_fractions"), {}),
    "FedGPS": (FedGPS, {}),
    "FedProto": (partial(FedProto, weight=0.5), {"local_epochs": 2}),
    "FedProto, authors": (partial(FedProto, weight=0.5, average_model=False, keep_missing=False), {}),
    "FedProto, paper, segmentation": (
        partial(FedProto, weight=0.5, proto_weighting="samples", regulariser="prototypes"),
        SEG,
    ),
    "FPL": (FPL, {}),
    "FPL, segmentation": (partial(FPL, num_pixels=50), SEG),
    "FedSeg": (fedseg, SEG),
    "FedSeg, background": (
        partial(fedseg, background_index=1, present_set="client", buffers="keep_client", contrast_from_round=1),
        SEG | {"clients_per_round": 3},
    ),
    "FedDAP": (feddap, ROUNDS),
    "FedDAP, finch": (
        partial(
            feddap, clustering="finch", num_clusters=None, descriptor_convs="local", descriptor_source="statistics_pass"
        ),
        ROUNDS,
    ),
    "FedDAP, last epoch": (
        partial(
            feddap,
            anchor_source="last_epoch",
            detach_descriptors=False,
            cluster_weights="uniform",
            descriptor_scaling="none",
        ),
        ROUNDS,
    ),
    "LocalOnly": (LocalOnly, {}),
    "Centralised": (Centralised, {"clients_per_round": None}),
}


def engine_of(name: str) -> dict[str, Any]:
    return CLASSIFICATION | CASES[name][1]


APART = {"share_memory": False, "upload_memory": 0.0, "write_behind": False}


def last_round(name: str) -> int:
    return int(engine_of(name).get("num_rounds", 3))


def deadly(name: str) -> FedAvg:
    """The method, which dies in the last round, after the training of its second client, or of the only one."""
    method = CASES[name][0]()
    end, visits = method.on_local_end, []

    def on_local_end(local: Any) -> None:
        end(local)
        visits.append(local.round)
        if visits.count(last_round(name)) == (1 if method.pools_clients else 2):
            os.kill(os.getpid(), signal.SIGKILL)

    method.on_local_end = on_local_end
    return method


def kill(name: str, path: Path) -> None:
    child = os.fork()
    if child == 0:
        on_ranks(1, lambda fabric: play(fabric, partial(deadly, name), path, **engine_of(name)))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status), name
    assert os.WTERMSIG(status) == signal.SIGKILL, name


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """`outcomes(kind)[name]`, kind `one` (rank), `two`, or `resumed`: killed on one rank, continued on three.

    The two share memory and write behind. The three send to each other, as between machines, keep uploads in files,
    and write at once.
    """
    folder = tmp_path_factory.mktemp("methods")

    @cache
    def of(kind):
        if kind == "resumed":
            for name in CASES:
                kill(name, folder / name / kind)

        def body(fabric):
            found = {}
            for name, (make, _) in CASES.items():
                passes = {True: [], False: []}
                engine = engine_of(name) | ({"options": APART} if kind == "resumed" else {})
                outcome = play(fabric, make, folder / name / kind, before=count_passes(passes), **engine)
                # A pipe between processes holds little: the logs are read from the run's folder.
                found[name] = (
                    replace(outcome, history=[], clients=[], server=outcome.server if kind == "one" else {}),
                    len(passes[True]),
                )
            return found

        found = on_ranks({"one": 1, "two": 2, "resumed": 3}[kind], body)
        stores = {name: RunStore(folder / name / kind) for name in found}
        return {
            name: (replace(outcome, history=stores[name].history(), clients=stores[name].clients()), passes)
            for name, (outcome, passes) in found.items()
        }

    return of


def test_all_methods_are_here():
    made = {type(make()).__name__ for make, _ in CASES.values()}
    assert made == set(methods.__all__)


@pytest.mark.parametrize("name", CASES)
def test_one_rank(name, outcomes):
    """One pass of the trained network a batch, clients that pause and come back, and no number that is not one."""
    outcome, passes = outcomes("one")[name]
    assert passes == num_steps(outcome) > 0
    assert finite(outcome.server)
    if name == "Centralised":
        return
    cohorts = [set(record["cohort"]) for record in outcome.history]
    assert all(len(cohort) < len(SIZES) for cohort in cohorts)
    rows = trained(outcome)
    assert len(rows) > len({row["client"] for row in rows}), "no client came twice"
    assert any(client not in then for now, then in pairwise(cohorts) for client in now)


@pytest.mark.parametrize("kind", ["two", "resumed"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits(name, kind, outcomes):
    one, other = outcomes("one")[name][0], outcomes(kind)[name][0]
    assert other.round == last_round(name)
    assert (other.digest, other.history, other.clients) == (one.digest, one.history, one.clients)


SEGMENTS = {
    "FedAvg": FedAvg,
    "FedBN": FedBN,
    "FedMAD": FedMAD,
    "FedProx": FedProx,
    "MOON": partial(MOON, projection=False, first_round="use_global"),
    "FedDC": FedDC,
    "FedAWA": FedAWA,
    "FedProto": partial(FedProto, weight=0.5),
    "FPL": partial(FPL, num_pixels=50),
    "FedSeg": partial(fedseg, contrast_from_round=1),
    "FedDAP": feddap,
}


@pytest.mark.parametrize("name", SEGMENTS)
def test_segmentation_without_a_labelled_pixel_and_with_a_class_nobody_has(name, tmp_path):
    """Client 0 has no labelled pixel at all, and the network knows a class that is nowhere."""
    federation = make_segmentation_federation((4, 5, 4))
    federation.source.masks[federation.clients[0].train] = IGNORED
    optimizer = SGD if name == "FedDC" else {}
    engine = {
        "federation": federation,
        "make_task": partial(small_segmentation_task, CLASSES + 1),
        "clients_per_round": None,
    }
    outcome = run(SEGMENTS[name], tmp_path, num_rounds=2, **engine, **optimizer)
    assert defined(outcome)
    rows = [row for row in trained(outcome) if row["client"] == 0]
    assert {row["loss/task"] for row in rows} == {0.0}
    assert any(row["loss/task"] > 0 for row in trained(outcome))


@pytest.mark.parametrize("name", [name for name in CASES if "several" not in name])
def test_one_participant_and_a_class_nobody_has(name, tmp_path):
    make, engine = CASES[name]
    more = small_segmentation_task if "make_task" in engine else small_classification_task
    alone = {
        "num_rounds": 2,
        "clients_per_round": None if name == "Centralised" else 1,
        "make_task": partial(more, 5),
        "local_epochs": 1,
    }
    outcome = run(make, tmp_path, **CLASSIFICATION | engine | alone)
    assert [len(record["cohort"]) for record in outcome.history] == [1, 1]
    assert defined(outcome)


def small_classification_task(num_classes: int) -> ClassificationTask:
    return ClassificationTask("resnet18", num_classes, 3, width=4, stem="small")


def defined(outcome: Any) -> bool:
    """No number of the server or of the logs is not one."""
    numbers = [value for record in outcome.history for value in record["metrics"].values()]
    numbers += [value for row in outcome.clients for value in row.values() if isinstance(value, float)]
    return finite(outcome.server) and bool(np.isfinite(numbers).all())
