"""FPL: through the engine, and its corners."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods import FPL
from fedrs_lightning.nn.prototypes import stratified
from fedrs_lightning.tasks import SegmentationTask
from fedrs_lightning.types import Client, Local, Output, Upload

from ..engine.conftest import run
from .checks import CLASSIFICATION, SEGMENTATION, assert_fedavg, finite
from .conftest import CLASSES, small_segmentation_task

OFF = {"contrastive_weight": 0.0, "unbiased_weight": 0.0}
KINDS = {"classification": (CLASSIFICATION, {}), "segmentation": (SEGMENTATION, {"num_pixels": 50})}


@pytest.mark.parametrize("kind", KINDS)
def test_without_its_terms_it_is_federated_averaging(kind, tmp_path):
    engine, options = KINDS[kind]
    neutral, full = assert_fedavg(partial(FPL, **options, **OFF), partial(FPL, **options), tmp_path, **engine)
    trained = [row for row in full.clients if row["phase"] == "train"]
    assert all((row["loss/contrastive"] > 0) == (row["loss/unbiased"] > 0) == (row["round"] > 1) for row in trained)
    assert all(
        row["loss/contrastive"] == row["loss/unbiased"] == 0.0 for row in neutral.clients if row["phase"] == "train"
    )
    assert len(full.server["fpl/classes"]) == len(full.server["fpl/prototypes"]) > 0
    assert set(full.server["fpl/classes"].tolist()) == set(range(len(full.server["fpl/classes"].unique())))


def test_sampled_pixels_leave_the_networks_own_random_layers_alone(tmp_path):
    """Segformer draws random paths in training."""
    task = partial(SegmentationTask, "segformer", "mit_b0", CLASSES, 3, "ce", decoder_channels=8)
    engine = {"num_rounds": 2, "clients_per_round": 2}
    assert_fedavg(
        partial(FPL, num_pixels=9, **OFF),
        partial(FPL, num_pixels=9),
        tmp_path,
        **SEGMENTATION | engine | {"make_task": task},
    )


def test_one_participant(tmp_path):
    outcome = run(
        partial(FPL, keep_missing=False), tmp_path / "run", clients_per_round=1, num_rounds=2, **CLASSIFICATION
    )
    assert finite(outcome.server)
    assert len(outcome.server["fpl/classes"].unique()) == len(outcome.server["fpl/classes"])  # each is its own cluster


def upload(number, means, held):
    return Upload(Client(number, 1), {"fpl/prototypes": torch.tensor(means), "fpl/held": torch.tensor(held)})


def test_a_class_that_nobody_has_this_round():
    server = {"fpl/prototypes": torch.tensor([[5.0, 1.0], [6.0, 1.0]]), "fpl/classes": torch.tensor([1, 1])}
    sent = [upload(number, [[number + 1.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [True, False, False]) for number in range(2)]
    state = FPL().aggregate(server, sent)
    assert state["fpl/prototypes"].tolist() == [[1.5, 0.0], [5.0, 1.0], [6.0, 1.0]]  # two prototypes are one cluster
    assert state["fpl/classes"].tolist() == [0, 1, 1]
    state = FPL(keep_missing=False).aggregate(server, sent)
    assert state["fpl/classes"].tolist() == [0]
    nobody = FPL(keep_missing=False).aggregate(server, [upload(0, [[0.0, 0.0]] * 3, [False] * 3)])
    assert nobody["fpl/prototypes"].shape == (0, 2)


def visit(method, received, task):
    local = Local(Client(0, 2), 2, task, received, {}, 1, optimizer=None, fabric=None, batches=None)
    method.on_local_start(local)
    return local


def test_terms_are_defined_without_pixels_and_without_prototypes():
    task, generator = small_segmentation_task(), torch.Generator().manual_seed(3)
    embedding = torch.randn(2, 4, 2, 2, generator=generator).requires_grad_()
    mask = torch.randint(0, 3, (2, 4, 4), generator=generator)
    some = {"fpl/prototypes": torch.randn(3, 4, generator=generator), "fpl/classes": torch.tensor([0, 2, 2])}
    none = {"fpl/prototypes": torch.zeros(0, 4), "fpl/classes": torch.zeros(0, dtype=torch.int64)}
    for received, labels, silent in ((some, mask, False), (some, torch.full_like(mask, 255), True), (none, mask, True)):
        local = visit(FPL(num_pixels=100), received, task)
        logits = torch.zeros(2, 3, 4, 4)
        terms = FPL(num_pixels=100).loss(local, {"image": logits, "mask": labels}, Output(logits, embedding))
        (gradient,) = torch.autograd.grad(terms["contrastive"] + terms["unbiased"], embedding)
        assert bool(torch.isfinite(gradient).all())
        assert (float(gradient.abs().sum()) == 0.0) == silent
        assert (terms["contrastive"].item() == terms["unbiased"].item() == 0.0) == silent


def test_sum_is_the_embedding_length_times_the_mean():
    features, labels = torch.randn(5, 7), torch.tensor([0, 1, 1, 0, -1])
    prototypes, valid = torch.randn(2, 7), torch.tensor([True, True])
    mean, total = (
        FPL(unbiased_reduction=kind).unbiased(features, labels, prototypes, valid) for kind in ("mean", "sum")
    )
    torch.testing.assert_close(total, 7 * mean)
    assert total[4] == 0.0


@settings(max_examples=60, deadline=None)
@given(labels=st.lists(st.integers(-1, 3), min_size=1, max_size=40), limit=st.integers(1, 45), seed=st.integers(0, 99))
def test_pixels_are_drawn_from_all_classes_in_turns(labels, limit, seed):
    labels = torch.tensor(labels)
    chosen = stratified(labels, limit, torch.rand(len(labels), generator=torch.Generator().manual_seed(seed)))
    assert len(chosen) == len(set(chosen.tolist())) == min(limit, len(labels))
    available = {number: int((labels == number).sum()) for number in range(4)}
    drawn = {number: int((labels[chosen] == number).sum()) for number in range(4)}
    assert sum(drawn.values()) == min(limit, sum(available.values()))
    most = max(drawn.values())
    assert all(drawn[number] in (available[number], most, most - 1) for number in range(4))


def test_errors():
    for options, message in (
        ({"temperature": 0.0}, "temperature: 0.0 is not a positive number"),
        ({"contrastive_weight": -1.0}, "contrastive_weight: -1.0 is not a number of at least 0"),
        ({"unbiased_weight": float("nan")}, "unbiased_weight: nan"),
        ({"unbiased_reduction": "max"}, "unbiased_reduction must be mean or sum, got 'max'"),
        ({"num_pixels": 0}, "num_pixels: 0 is below 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            FPL(**options)
    with pytest.raises(ConfigError, match="num_pixels has no default for segmentation"):
        FPL().check(small_segmentation_task())
