"""Sums, anchors and cosine cross-entropy against plain NumPy loops over pixels and classes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedrs_lightning.nn.prototypes import (
    class_statistics,
    cosine_cross_entropy,
    cosines,
    resize_labels,
    supervised_labels,
    unit,
    update_anchors,
)


def pixels(seed, classes, ignored=0.3, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, (2, 3, 4))
    labels[rng.random(labels.shape) < ignored] = 255
    return torch.from_numpy(rng.normal(size=(2, 5, 3, 4))).to(dtype), torch.from_numpy(labels)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), classes=st.integers(1, 6), normalise=st.booleans())
def test_class_statistics_are_sums_over_pixels(seed, classes, normalise):
    embedding, labels = pixels(seed, classes)
    sums, counts = np.zeros((classes, 5)), np.zeros(classes, dtype=int)
    for image in range(2):
        for row in range(3):
            for column in range(4):
                c, v = int(labels[image, row, column]), embedding[image, :, row, column].numpy()
                if c != 255:
                    sums[c] += v / np.linalg.norm(v) if normalise else v
                    counts[c] += 1
    found, number = class_statistics(embedding, labels, classes, normalise)
    np.testing.assert_allclose(found, sums, atol=1e-12)
    assert number.tolist() == counts.tolist()
    assert (found.dtype, number.dtype) == (torch.float64, torch.int64)


def test_sums_of_single_precision_keep_their_digits_over_many_images():
    embedding, labels = torch.full((512, 1, 8, 8), 0.1), torch.zeros(512, 8, 8, dtype=torch.int64)
    sums, _ = class_statistics(embedding, labels, 1, normalise=False)
    one, _ = class_statistics(embedding[:1], labels[:1], 1, normalise=False)
    assert float(sums) == pytest.approx(512 * float(one), rel=1e-12)
    assert float(sums) == pytest.approx(512 * 64 * float(torch.tensor(0.1)), rel=1e-6)


def test_a_zero_embedding_counts_and_adds_nothing():
    sums, counts = class_statistics(torch.zeros(1, 3, 2, 2), torch.zeros(1, 2, 2, dtype=torch.int64), 2)
    assert sums.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert counts.tolist() == [4, 0]
    assert unit(torch.zeros(3)).tolist() == [0, 0, 0]


@given(sides=st.tuples(*[st.integers(1, 40)] * 2), size=st.tuples(*[st.integers(1, 40)] * 2))
@settings(max_examples=60, deadline=None)
def test_labels_are_resized_to_the_nearest(sides, size):
    labels = torch.from_numpy(np.random.default_rng(0).choice([0, 1, 2, 255], (2, *sides)))
    resized = resize_labels(labels, size)
    expected = [
        [[int(image[r * sides[0] // size[0], c * sides[1] // size[1]]) for c in range(size[1])] for r in range(size[0])]
        for image in labels
    ]
    assert resized.tolist() == expected
    assert resized.dtype == torch.int64


@pytest.mark.parametrize("factor", [1, 4])
def test_resizing_by_whole_strides_is_that_of_torch(factor):
    labels = torch.randint(0, 256, (2, 8 * factor, 12 * factor))
    assert torch.equal(
        resize_labels(labels, (8, 12)), F.interpolate(labels[:, None].double(), (8, 12), mode="nearest")[:, 0].long()
    )


def test_anchors_follow_sums_and_keep_what_nobody_saw():
    sums = torch.tensor(
        [[[3.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [[0.0, 4.0], [0.0, 0.0], [0.0, 0.0]]], dtype=torch.float64
    )
    counts = torch.tensor([[2, 0, 0], [5, 0, 0]])
    before, valid = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), torch.tensor([True, True, False])
    anchors, seen = update_anchors(sums, counts, before, valid)
    torch.testing.assert_close(anchors, torch.tensor([[0.6, 0.8], [0.0, 1.0], [0.0, 0.0]]))
    assert seen.tolist() == [True, True, False]
    assert anchors.dtype == torch.float32


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), valid=st.lists(st.booleans(), min_size=4, max_size=4))
def test_cross_entropy_of_cosines(seed, valid):
    embedding, labels = pixels(seed, 4)
    prototypes = unit(torch.from_numpy(np.random.default_rng(seed + 1).normal(size=(4, 5))))
    losses = []
    for image, row, column in np.ndindex(2, 3, 4):
        c, v = int(labels[image, row, column]), embedding[image, :, row, column].numpy()
        if c != 255 and valid[c]:
            scores = {k: prototypes[k].numpy() @ v / np.linalg.norm(v) / 0.07 for k in range(4) if valid[k]}
            losses.append(np.log(sum(np.exp(score) for score in scores.values())) - scores[c])
    keep = torch.tensor(valid)
    supervised = supervised_labels(labels, keep)
    near = cosines(embedding, prototypes)
    torch.testing.assert_close(near, torch.einsum("bdhw,md->bmhw", F.normalize(embedding, dim=1), prototypes))
    loss = cosine_cross_entropy(near, supervised, keep, 0.07)
    assert float(loss) == pytest.approx(np.mean(losses) if losses else 0.0, rel=1e-9)
    assert int((supervised >= 0).sum()) == len(losses)


def test_gradients_are_those_of_the_definition():
    embedding, labels = pixels(3, 4)
    prototypes = unit(torch.randn(4, 5, dtype=torch.float64))
    embedding.requires_grad_()
    prototypes.requires_grad_()
    keep = torch.tensor([True, True, False, True])
    loss = cosine_cross_entropy(cosines(embedding, prototypes), supervised_labels(labels, keep), keep, 0.1)
    found = torch.autograd.grad(loss, (embedding, prototypes))
    inside = (labels != 255) & (labels != 2)
    rows = F.normalize(embedding.permute(0, 2, 3, 1)[inside], dim=1) @ prototypes[keep].T / 0.1
    expected = torch.autograd.grad(
        F.cross_entropy(rows, torch.where(labels[inside] == 3, 2, labels[inside])), (embedding, prototypes)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("valid", [[False, False], [True, True]])
def test_no_pixel_no_loss_no_gradient(valid):
    embedding = torch.zeros(1, 3, 2, 2, requires_grad=True)
    keep, labels = torch.tensor(valid), torch.full((1, 2, 2), 255 if valid[0] else 0)
    loss = cosine_cross_entropy(cosines(embedding, torch.eye(2, 3)), supervised_labels(labels, keep), keep, 0.1)
    loss.backward()
    assert float(loss.detach()) == 0
    assert not embedding.grad.any()
