"""Several labels an image: every method that is defined for them trains, the others refuse before anything is read."""

import re
from functools import partial

import pytest
import torch

from fedrs_lightning.errors import ConfigError
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
    LocalOnly,
)

from ..engine.conftest import make_federation, make_several, multilabel_task, run
from .checks import finite
from .conftest import make_segmentation_federation, small_segmentation_task

SEVERAL = {"federation": make_several(), "make_task": multilabel_task}
METHODS = {
    "FedAvg": (FedAvg, {"task"}),
    "FedProx": (partial(FedProx, mu=0.1), {"task"}),
    "FedBN": (FedBN, {"task"}),
    "FedMAD": (FedMAD, {"task"}),
    "MOON": (partial(MOON, out_dim=8), {"task", "contrast"}),
    "FedDC": (partial(FedDC, state_scale="none"), {"task"}),
    "FedAWA": (FedAWA, {"task"}),
    "FedGPS": (FedGPS, {"task", "surrogate", "contrast", "surrogate_contrast", "prototype"}),
    "same_labels": (
        partial(FedGPS, multilabel="same_labels"),
        {"task", "surrogate", "contrast", "surrogate_contrast", "prototype"},
    ),
    "LocalOnly": (LocalOnly, {"task"}),
    "Centralised": (Centralised, {"task"}),
}


@pytest.mark.parametrize("name", METHODS)
def test_two_rounds(name, tmp_path):
    make, terms = METHODS[name]
    outcome = run(make, tmp_path, num_rounds=2, **SEVERAL)
    assert finite(outcome.server)
    visits = [row for row in outcome.clients if row["phase"] == "train"]
    assert name != "FedMAD" or any(row.get("fedmad/score") for row in visits)
    assert {key.removeprefix("loss/") for row in visits for key in row if key.startswith("loss/")} == terms
    assert all(0 < row["loss/task"] < 2 for row in visits)  # log(2) where nothing is learnt
    assert 0 < outcome.history[-1]["metrics"]["personal_own/micro_map_pooled"] <= 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            FedProto,
            "FedProto needs one class per sample, and MultilabelTask has several labels each; choose another method",
        ),
        (FPL, "FPL needs one class per sample, and MultilabelTask has several labels each; choose another method"),
        (partial(FedGPS, evaluate="all"), "evaluate: all takes the one best of 2C outputs"),
    ],
)
def test_methods_that_need_one_class_refuse_before_the_first_round(make, words, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(words)):
        run(make, tmp_path / "run", **SEVERAL)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("federation", "make_task", "words"),
    [
        (
            make_several(),
            None,
            "ClassificationTask: the data have several labels an image; take task.class_path: MultilabelTask",
        ),
        (
            make_federation(),
            multilabel_task,
            "MultilabelTask: the data have one class an image; take task.class_path: ClassificationTask",
        ),
        (make_segmentation_federation(), None, "ClassificationTask: the data have classes of pixels, not of images"),
        (
            make_federation(),
            small_segmentation_task,
            "SegmentationTask: the data have classes of images, not of pixels",
        ),
    ],
)
def test_data_that_a_task_cannot_learn_from_are_named(federation, make_task, words, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(words)):
        run(FedAvg, tmp_path, federation=federation, make_task=make_task)


def test_surrogate_outputs_stay_out_of_the_scores(tmp_path):
    """The network has 2C outputs; scores and labels are those of the C real classes."""
    kept = {}
    run(FedGPS, tmp_path, num_rounds=1, before=lambda engine: kept.update(task=engine.task), **SEVERAL)
    task = kept["task"].eval()
    batch = SEVERAL["federation"].transform(SEVERAL["federation"].source.gather(torch.arange(4)), None)
    assert task.model.fc.out_features == 8
    assert task(batch["image"]).logits.shape == (4, 4)
