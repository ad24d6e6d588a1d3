"""FedSeg: through the engine, and its corners."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods import FedSeg
from fedrs_lightning.methods.fedseg import anchors, background_cross_entropy, pixel_contrast, present
from fedrs_lightning.tasks import ClassificationTask, SegmentationTask

from ..engine.conftest import run
from .checks import SEGMENTATION, assert_fedavg, count_passes, num_steps
from .conftest import CLASSES, small_segmentation_task

make = partial(FedSeg, embedding_dim=8, max_anchors=64, threshold=0.35)
SEGFORMER = partial(SegmentationTask, "segformer", "mit_b0", CLASSES, 3, "ce", decoder_channels=8)


@pytest.mark.parametrize("architecture", ["deeplabv3plus", "segformer"])
def test_without_its_terms_it_is_federated_averaging(architecture, tmp_path):
    """Segformer draws random paths in training, which the sampled anchors must not move."""
    segformer = {"make_task": SEGFORMER, "clients_per_round": 2, "num_rounds": 2}
    engine = SEGMENTATION if architecture == "deeplabv3plus" else SEGMENTATION | segformer
    neutral, full = assert_fedavg(partial(make, weight=0.0), make, tmp_path, **engine)
    trained = [row for row in full.clients if row["phase"] == "train"]
    assert all((row["loss/contrast"] > 0) == (row["round"] > 1) for row in trained)
    assert {row["round"] for row in trained if row["loss/pseudo"] > 0} == set(range(2, full.round + 1))
    assert all(row["loss/contrast"] == row["loss/pseudo"] == 0.0 for row in neutral.clients if row["phase"] == "train")
    assert {key for key in full.server if not key.startswith("model/")} == set()


def test_one_forward_pass_of_the_trained_network_a_batch(tmp_path):
    engine = SEGMENTATION | {"clients_per_round": 2, "evaluate_every": 5}
    passes, without = ({True: [], False: []} for _ in range(2))
    outcome = run(make, tmp_path / "contrasts", num_rounds=2, before=count_passes(passes), **engine)
    run(partial(make, contrast_from_round=9), tmp_path / "later", num_rounds=2, before=count_passes(without), **engine)
    assert len(passes[True]) == len(without[True]) == num_steps(outcome)
    assert len(passes[False]) - len(without[False]) == num_steps(
        outcome
    )  # round 2: one batch of the pass that fills the memory for each of training


class Watched(FedSeg):
    """Compares the frozen predictions with those of a copy of the received model."""

    seen = 0

    def on_local_start(self, local):
        import copy

        super().on_local_start(local)
        local.scratch["copy"] = copy.deepcopy(local.task.model).eval()

    def _predict(self, local, batch, size):
        found = super()._predict(local, batch, size)
        assert local.task.model.training
        with torch.no_grad():
            logits = local.scratch["copy"](batch["image"]).logits
        probability, label = F.interpolate(logits, size=size, mode="bilinear").softmax(1).max(1)
        assert torch.equal(found, torch.where(probability >= self.threshold, label, -1))
        type(self).seen += 1
        return found


@pytest.mark.parametrize("buffers", ["mean", "keep_client"])
def test_pseudo_labels_come_from_the_received_model(buffers, tmp_path):
    Watched.seen = 0
    run(
        partial(Watched, embedding_dim=8, threshold=0.4, buffers=buffers),
        tmp_path / "run",
        **SEGMENTATION | {"num_rounds": 2},
    )
    assert Watched.seen > 0


def test_the_background_term_is_cross_entropy_where_there_is_no_background():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(2, 4, 3, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(-1, 3, (2, 3, 3), generator=generator)
    nothing = torch.zeros_like(labels, dtype=torch.bool)
    found = background_cross_entropy(logits, labels, nothing, present(labels, 4))
    torch.testing.assert_close(found, F.cross_entropy(logits, labels, ignore_index=-1), atol=1e-5, rtol=0)
    background = labels < 0
    rest = logits.softmax(1)[:, 3]  # the only class that does not occur
    expected = torch.where(background, rest, logits.softmax(1).gather(1, labels.clamp(min=0)[:, None])[:, 0])
    torch.testing.assert_close(
        background_cross_entropy(logits, labels, background, present(labels, 4)),
        -(expected + 1e-7).log().mean(),
        atol=1e-12,
        rtol=0,
    )
    owned = torch.ones(4, dtype=torch.bool)
    assert background_cross_entropy(logits, torch.full_like(labels, -1), ~nothing, owned) == 0.0


def test_ignored_pixels_are_supervised_by_nothing():
    """Whatever their logits and embeddings, with a background of another value."""
    method, task = make(background_index=254), small_segmentation_task()
    method.adapt(task)
    mask = torch.tensor([[[0, 254], [255, 1]]])
    classes, silent = method._classes(type("L", (), {"task": task}), mask)
    assert classes.tolist() == [[[0, -1], [-1, 1]]]
    assert silent.tolist() == [[[False, False], [True, False]]]
    named = make(background_index=1)._classes(type("L", (), {"task": task}), mask)
    assert named[0].tolist() == [[[0, -1], [-1, -1]]]
    assert named[1].tolist() == [[[False, True], [True, False]]]


def test_contrast_against_a_plain_loop_and_its_corners():
    generator = torch.Generator().manual_seed(5)
    embedding = F.normalize(torch.randn(2, 4, 2, 2, generator=generator), dim=1).double().requires_grad_()
    vectors = F.normalize(torch.randn(5, 4, generator=generator), dim=1).double()
    classes, labels = torch.tensor([0, 0, 2, 2, 2]), torch.tensor([[[0, 1], [2, -1]], [[2, 2], [0, 0]]])
    draws = torch.rand(8, generator=generator)
    contrast = partial(pixel_contrast, num_classes=3, temperature=0.2, draws=draws)
    each = []
    for b, y, x in ((labels == 0) | (labels == 2)).nonzero().tolist():
        near = (vectors @ embedding[b, :, y, x] / 0.2).exp()
        own = classes == labels[b, y, x]
        each.append(-(near[own] / (near[own] + near[~own].sum())).log().mean())
    torch.testing.assert_close(
        contrast(embedding, labels, vectors, classes, max_anchors=None), torch.stack(each).mean()
    )

    empty = (vectors[:0], classes[:0])
    for wanted, stored in (
        (labels, empty),
        (torch.full_like(labels, -1), (vectors, classes)),
        (labels, (vectors[:2], classes[:2])),
    ):
        value = contrast(embedding, wanted, *stored, max_anchors=3)
        (gradient,) = torch.autograd.grad(value, embedding)
        assert value == 0.0
        assert not gradient.any()


@settings(max_examples=60, deadline=None)
@given(labels=st.lists(st.integers(-1, 3), min_size=1, max_size=40), limit=st.integers(1, 45), seed=st.integers(0, 99))
def test_anchors_share_the_limit(labels, limit, seed):
    labels = torch.tensor(labels)
    places, counted = anchors(labels, 4, limit, torch.rand(len(labels), generator=torch.Generator().manual_seed(seed)))
    chosen = places[counted]
    occurring = set(labels.tolist()) - {-1}
    quota = limit // max(1, len(occurring))
    assert len(set(places.tolist())) == len(places)
    for number in range(4):
        assert int((labels[chosen] == number).sum()) == min(quota, int((labels == number).sum()))


def test_errors():
    for options, message in (
        ({"weight": -1.0}, "weight: -1.0 is not a number of at least 0"),
        ({"temperature": 0.0}, "temperature: 0.0 is not a positive number"),
        ({"threshold": 1.5}, "threshold: 1.5 is not in"),
        ({"present_set": "server"}, "present_set must be batch or client, got 'server'"),
        ({"max_anchors": 0}, "max_anchors: 0 is below 1"),
        ({"embedding_dim": 0}, "embedding_dim: 0 is below 1"),
        ({"contrast_from_round": 0}, "contrast_from_round: 0 is below 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            FedSeg(**options)
    with pytest.raises(ConfigError, match="FedSeg is defined for segmentation only; ClassificationTask is none"):
        FedSeg().adapt(ClassificationTask("resnet18", 4, 3, width=4))
    for index in (-1, CLASSES, 254):
        with pytest.raises(
            ConfigError,
            match=f"FedSeg: background_index: {index} is no label; name one of the classes 0 to {CLASSES - 1}",
        ):
            FedSeg(background_index=index).check(small_segmentation_task())
    for index in (0, CLASSES - 1, 255):
        FedSeg(background_index=index).check(small_segmentation_task())
    with pytest.raises(ConfigError, match="background_index replaces the cross-entropy"):
        FedSeg(background_index=0).adapt(small_segmentation_task(loss="ce_dice"))
