"""Multi-label scores against scikit-learn: ties, absent classes, batches, ranks; the task under a Trainer."""

import warnings
from functools import partial

import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score
from torch.utils.data import DataLoader

from fedrs_lightning.engine.ranks.exchange import Exchange
from fedrs_lightning.engine.ranks.strategy import ClientParallelStrategy
from fedrs_lightning.errors import ConfigError, TrainingError
from fedrs_lightning.seeding import numpy_stream, rng_stream
from fedrs_lightning.tasks import MultilabelTask
from fedrs_lightning.tasks.multilabel import gathered
from fedrs_lightning.types import Output


def tiny(num_classes=4, **arguments):
    with rng_stream("model"):
        return MultilabelTask(
            **(
                {"backbone": "resnet18", "num_classes": num_classes, "in_channels": 2, "width": 4, "stem": "small"}
                | arguments
            )
        )


def count(task, scores, targets, rows=None):
    """A metric that has seen these samples, batch by batch."""
    metric = task.metric()
    for part in np.arange(len(scores))[None] if rows is None else rows:
        task.update(
            metric, Output(torch.as_tensor(scores[part]), torch.empty(0)), {"label": torch.as_tensor(targets[part])}
        )
    return metric


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), samples=st.integers(1, 30), classes=st.integers(1, 5), levels=st.integers(1, 40))
def test_scores_equal_scikit_learn(seed, samples, classes, levels):
    rng = np.random.default_rng(seed)
    scores = rng.integers(-levels, levels + 1, (samples, classes)).astype(np.float32) / 4  # few levels: many ties
    targets = (rng.random((samples, classes)) < rng.random(classes) * 0.6).astype(np.float32)
    targets[0, 0] = 1
    task = tiny(classes)
    found = task.scores(count(task, scores, targets, np.array_split(np.arange(samples), 3)))
    present = targets.any(0)
    each = [average_precision_score(targets[:, c], scores[:, c]) for c in range(classes) if present[c]]
    assert list(found)[:4] == ["micro_map", "macro_map", "micro_f1", "macro_f1"]
    assert found["micro_map"] == pytest.approx(average_precision_score(targets.ravel(), scores.ravel()), abs=1e-12)
    assert found["macro_map"] == pytest.approx(np.mean(each), abs=1e-12)
    assert [value for name, value in found.items() if name.startswith("ap/")] == pytest.approx(each, abs=1e-12)
    guess = scores > 0
    assert found["micro_f1"] == pytest.approx(f1_score(targets.ravel(), guess.ravel(), zero_division=0), abs=1e-12)
    assert found["macro_f1"] == pytest.approx(
        np.mean([f1_score(targets[:, c], guess[:, c], zero_division=0) for c in range(classes) if present[c]]),
        abs=1e-12,
    )
    assert task.absent_classes(count(task, scores, targets)) == [str(c) for c in range(classes) if not present[c]]
    shuffled = rng.permutation(samples)
    assert (
        task.scores(count(task, scores[shuffled], targets[shuffled], np.array_split(np.arange(samples), samples)))
        == found
    )


def many_with_ties():
    rng = numpy_stream("multilabel")
    scores = (rng.normal(size=(50_000, 19)) * 500).round().astype(np.float32) / 500 + np.float32(
        4
    )  # probabilities would round to ties
    scores[::3] *= 8
    return scores, (rng.random((50_000, 19)) < 0.05 + 0.02 * np.arange(19)).astype(np.float32)


def share(fabric):
    """This rank's every n-th batch of 512, gathered on all ranks by the engine's exchange and merged in rank order."""
    torch.set_num_threads(1)
    scores, targets = many_with_ties()
    task, exchange = tiny(19), Exchange(fabric)
    batches = np.split(np.arange(len(scores)), range(512, len(scores), 512))
    mine = count(task, scores, targets, batches[exchange.rank :: exchange.world_size])
    merged = task.metric()
    for state in exchange.collect(mine.metric_state):
        merged.merge_state(state)
    assert len(gathered(merged)[0]) == len(scores)
    return task.scores(merged)


def test_fifty_thousand_samples_on_one_two_and_three_ranks_equal_scikit_learn():
    fabric = L.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    one = share(fabric)
    for ranks in (2, 3):
        several = L.Fabric(accelerator="cpu", devices=ranks, strategy=ClientParallelStrategy(start_method="fork"))
        assert several.launch(share) == one
    scores, targets = many_with_ties()
    assert len(np.unique(scores)) < scores.size / 20
    assert one["micro_map"] == pytest.approx(average_precision_score(targets.ravel(), scores.ravel()), rel=1e-12)
    assert one["macro_map"] == pytest.approx(average_precision_score(targets, scores, average="macro"), rel=1e-12)
    assert one["micro_f1"] == pytest.approx(f1_score(targets, scores > 0, average="micro"), rel=1e-12)


def test_large_logits_stay_apart():
    """A sigmoid in float32 is 1 from 17 on, and makes these one threshold."""
    scores, targets = np.float32([[30.0], [29.0], [28.0], [-1.0]]), np.float32([[1], [0], [1], [0]])
    task = tiny(1)
    assert task.scores(count(task, scores, targets))["micro_map"] == pytest.approx((1 + 2 / 3) / 2, abs=1e-15)


def test_samples_without_positives_have_no_ranking():
    task = tiny(3, class_names=["water", "forest, mixed", "sand"])
    empty, negative = task.metric(), count(task, np.float32([[1, -1, 0]]), np.zeros((1, 3), np.float32))
    for metric in (empty, negative):
        found = task.scores(metric)
        assert list(found) == ["micro_map", "macro_map", "micro_f1", "macro_f1"]
        assert all(np.isnan(found[name]) for name in ("micro_map", "macro_map", "macro_f1"))
        assert task.absent_classes(metric) == ["water", "forest, mixed", "sand"]
    assert task.scores(negative)["micro_f1"] == 0.0
    assert list(task.scores(count(task, np.float32([[1, -1, 0]]), np.float32([[0, 1, 0]]))))[4:] == ["ap/forest, mixed"]


def test_scores_that_are_no_numbers_end_the_run():
    task = tiny(2)
    with pytest.raises(TrainingError, match="not numbers any more"):
        task.scores(count(task, np.float32([[1, np.nan]]), np.float32([[1, 0]])))


def test_names_must_fit_the_classes():
    with pytest.raises(ConfigError, match="class_names: 2 names for 4 classes"):
        tiny(class_names=["a", "b"])


def samples(number=64, seed=0):
    """Two bands; class c shows in the level of band c, independently."""
    rng = numpy_stream(seed, "images")
    label = (rng.random((number, 2)) < 0.5).astype(np.float32)
    image = rng.normal(size=(number, 2, 12, 12)).astype(np.float32) + 3 * label[:, :, None, None]
    return [{"image": torch.from_numpy(image[row]), "label": torch.from_numpy(label[row])} for row in range(number)]


def test_a_trainer_fits_and_tests():
    task = tiny(2, class_names=["left", "right"])
    task.optimizer = partial(torch.optim.Adam, lr=0.01)
    trainer = L.Trainer(
        max_epochs=8,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have many workers.*")
        warnings.filterwarnings("ignore", ".*but have no `val_dataloader`.*")
        trainer.fit(task, DataLoader(samples(), batch_size=16, shuffle=True))
        (found,) = trainer.test(task, DataLoader(samples(seed=1), batch_size=16), verbose=False)
    assert found["test/micro_map"] > 0.95  # seeds 0 to 5: at least 0.996
    assert {"test/macro_f1", "test/ap/left", "test/ap/right"} <= found.keys()


def test_the_loss_is_binary_cross_entropy_in_at_least_float32():
    task = tiny(2)
    logits, label = torch.tensor([[2.0, -1.0], [0.5, 40.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    expected = -(label * logits.sigmoid().double().log() + (1 - label) * (-logits).double().sigmoid().log()).mean()
    for target in (label, label.long()):
        assert float(task.criterion(Output(logits, torch.empty(0)), {"label": target})) == pytest.approx(
            float(expected), abs=1e-6
        )
    half = task.criterion(Output(logits.bfloat16(), torch.empty(0)), {"label": label})
    assert half.dtype == torch.float32
    assert float(half) == pytest.approx(float(expected), abs=1e-6)
