"""The segmentation task: losses against NumPy and autograd, scores against scikit-learn, training under a Trainer."""

from functools import cache, partial

import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, jaccard_score
from torch.nn import functional as F
from torch.utils.data import DataLoader

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks.metrics import class_ious, mean_iou
from fedrs_lightning.tasks.segmentation import SegmentationTask, dice_loss, pixel_cross_entropy
from fedrs_lightning.types import Output


def small_task(**options):
    arguments = {
        "architecture": "deeplabv3plus",
        "encoder": "resnet18",
        "num_classes": 4,
        "in_channels": 3,
        "loss": "ce",
    } | options
    with rng_stream(1, "model"):
        return SegmentationTask(**arguments, encoder_width=8, decoder_channels=8)


@cache
def task_of(num_classes):
    return small_task(num_classes=num_classes, class_names="abcdef"[:num_classes])


def batch(size=4, side=32, ignored=0.2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = (
        torch.randint(0, 4, (size, 4, 4), generator=generator)
        .repeat_interleave(side // 4, 1)
        .repeat_interleave(side // 4, 2)
    )
    image = F.one_hot(mask, 4)[..., :3].permute(0, 3, 1, 2).float() + 0.1 * torch.randn(
        size, 3, side, side, generator=generator
    )
    mask[torch.rand(mask.shape, generator=generator) < ignored] = 255
    return {"image": image, "mask": mask}


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_cross_entropy_is_the_mean_over_labelled_pixels(memory_format):
    logits = torch.randn(2, 4, 6, 5, dtype=torch.float64).contiguous(memory_format=memory_format).requires_grad_()
    mask = torch.randint(0, 4, (2, 6, 5))
    mask[0, :3] = 255
    loss = pixel_cross_entropy(logits, mask, 255)
    expected = F.cross_entropy(logits, mask, ignore_index=255)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, logits), torch.autograd.grad(expected, logits))


def test_dice_is_one_minus_the_mean_overlap_of_the_classes_that_occur():
    logits = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    mask = torch.randint(0, 3, (2, 3, 5))  # class 3 does not occur
    mask[1, 0] = 255
    probability, labels = logits.float().softmax(1).double().numpy(), mask.numpy()
    overlaps = []
    for c in range(3):
        inside = labels != 255
        hit = ((labels == c) * probability[:, c])[inside].sum()
        overlaps.append(1 - 2 * hit / (probability[:, c][inside].sum() + (labels == c).sum()))
    assert float(dice_loss(logits, mask, 255)) == pytest.approx(np.mean(overlaps), abs=1e-6)
    perfect = F.one_hot(mask.where(mask != 255, 0), 4).permute(0, 3, 1, 2) * 1e4
    assert float(dice_loss(perfect, mask, 255)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("loss", ["ce", "ce_dice"])
def test_a_batch_without_labels_costs_nothing_and_moves_nothing(loss):
    task = small_task(loss=loss)
    empty = batch() | {"mask": torch.full((4, 32, 32), 255)}
    value = task.criterion(task(empty["image"]), empty)
    value.backward()
    assert float(value.detach()) == 0
    assert all(not parameter.grad.any() for parameter in task.parameters() if parameter.grad is not None)


def test_ce_dice_adds_the_two():
    task, data = small_task(), batch()
    output = task(data["image"])
    ce = task.criterion(output, data)
    task.loss = "ce_dice"
    torch.testing.assert_close(task.criterion(output, data), ce + dice_loss(output.logits, data["mask"], 255))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), classes=st.integers(2, 6), seen=st.integers(1, 6))
def test_scores_equal_scikit_learn(seed, classes, seen):
    rng = np.random.default_rng(seed)
    labels, predicted = (rng.integers(0, min(seen, classes), (2, 4, 5)) for _ in range(2))
    labels[rng.random(labels.shape) < 0.3] = 255
    labels[0, 0, 0] = 0
    task = task_of(classes)
    metric = task.metric()
    logits = F.one_hot(torch.from_numpy(predicted), classes).permute(0, 3, 1, 2).float()
    for row in range(2):
        task.update(metric, Output(logits[[row]], torch.empty(0)), {"mask": torch.from_numpy(labels[[row]])})
    scores, kept = task.scores(metric), labels != 255
    truth, guess = labels[kept], predicted[kept]
    present = sorted(set(truth) | set(guess))
    ious = jaccard_score(truth, guess, labels=present, average=None, zero_division=0)
    assert next(iter(scores)) == "miou"
    assert {name: value for name, value in scores.items() if name.startswith("iou/")} == pytest.approx(
        {f"iou/{'abcdef'[c]}": iou for c, iou in zip(present, ious, strict=True)}, abs=1e-12
    )
    assert scores["miou"] == pytest.approx(ious.mean(), abs=1e-12)
    assert scores["pixel_accuracy"] == pytest.approx((truth == guess).mean(), abs=1e-12)
    counts = torch.from_numpy(confusion_matrix(truth, guess, labels=range(classes)))
    assert mean_iou(counts, "zero") == pytest.approx(ious.sum() / classes, abs=1e-12)
    assert mean_iou(counts, "labelled_only") == pytest.approx(ious[np.isin(present, truth)].mean(), abs=1e-12)
    assert task.absent_classes(metric) == [name for c, name in enumerate("abcdef"[:classes]) if c not in present]
    assert class_ious(counts).dtype == torch.float64


def test_scores_without_pixels_are_nan_and_name_the_headline():
    task = small_task(class_names=["road", "roof", "tree", "car"])
    scores = task.scores(task.metric())
    assert list(scores) == ["miou", "pixel_accuracy", "mean_class_accuracy"]
    assert all(np.isnan(value) for value in scores.values())
    assert task.absent_classes(task.metric()) == ["road", "roof", "tree", "car"]


def test_the_head_is_named():
    task = small_task()
    assert task.head_keys() == {"model/segmentation_head.0.weight", "model/segmentation_head.0.bias"}


def test_a_trainer_learns_blocks_of_colour(tmp_path):
    task = small_task()
    task.optimizer = partial(torch.optim.Adam, lr=1e-2)
    data = [batch(seed=seed) for seed in range(4)]
    held_out = DataLoader([batch(seed=9, ignored=0)], batch_size=None)
    trainer = L.Trainer(
        max_epochs=12,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=tmp_path,
    )
    with rng_stream(1, "local"):
        trainer.fit(task, DataLoader(data, batch_size=None), held_out)
    assert trainer.callback_metrics["val/miou"] > 0.5  # seeds 0 to 5: 0.81 to 0.85
    assert {"val/iou/0", "val/pixel_accuracy", "train/loss"} <= trainer.callback_metrics.keys()
    validated = float(trainer.callback_metrics["val/miou"])
    tested = trainer.test(task, held_out, verbose=False)[0]
    assert tested["test/miou"] == pytest.approx(validated)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "focal"}, "loss must be ce or ce_dice, got 'focal'"),
        ({"absent": "skip"}, "absent must be left_out, zero or labelled_only, got 'skip'"),
        ({"ignore_index": 2}, "ignore_index: 2 is one of 4 classes; take another, such as 255"),
        ({"class_names": ["a"]}, "class_names: 1 names for 4 classes"),
    ],
)
def test_mistakes_are_explained(options, message):
    arguments = {
        "architecture": "fpn",
        "encoder": "resnet18",
        "num_classes": 4,
        "in_channels": 3,
        "loss": "ce",
    } | options
    with pytest.raises(ConfigError, match=message):
        SegmentationTask(**arguments)


def test_classes_of_another_label_space_are_out_of_reach():
    """The softmax of a sample runs over the classes of its own data set, and a prediction is one of them."""
    task = SegmentationTask("unet", "resnet18", 4, 3, "ce", encoder_width=4, decoder_channels=16)
    logits = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    mask = torch.randint(0, 2, (2, 8, 8), generator=torch.Generator().manual_seed(1))
    classes = torch.tensor([[True, True, False, False], [True, True, True, False]])
    output, batch = Output(logits, logits), {"mask": mask, "classes": classes}
    rows = [
        torch.nn.functional.cross_entropy(logits[:1, :2], mask[:1], reduction="sum"),
        torch.nn.functional.cross_entropy(logits[1:, :3], mask[1:], reduction="sum"),
    ]
    torch.testing.assert_close(task.criterion(output, batch), sum(rows) / mask.numel())
    metric = task.metric()
    task.update(metric, output, batch)
    assert metric.confmat[:, 3].sum() == 0
    assert metric.confmat.sum() == mask.numel()


def test_unscored_classes_count_in_the_matrix_but_not_in_the_mean():
    task = SegmentationTask("unet", "resnet18", 3, 3, "ce", encoder_width=4, decoder_channels=16)
    metric = task.metric()
    metric.confmat += torch.tensor([[8, 2, 0], [0, 6, 4], [5, 0, 5]])
    plain = task.scores(metric)
    task.unscored = (2,)
    scores = task.scores(metric)
    assert scores["miou"] == pytest.approx((8 / 15 + 6 / 12) / 2)
    assert plain["miou"] == pytest.approx((8 / 15 + 6 / 12 + 5 / 14) / 3)
    assert scores["pixel_accuracy"] == plain["pixel_accuracy"]
