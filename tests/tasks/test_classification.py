"""The classification task under lightning.Trainer, in a plain loop, under Fabric, compiled and in bfloat16."""

import shutil
import warnings
from functools import partial

import lightning as L
import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser
from lightning.pytorch.loggers import CSVLogger
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix
from torch.utils.data import DataLoader

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.nn.modulation import insert_modulation
from fedrs_lightning.seeding import rng_stream, torch_stream
from fedrs_lightning.tasks.base import Task
from fedrs_lightning.tasks.classification import ClassificationTask
from fedrs_lightning.types import Output


def tiny(**arguments):
    with rng_stream("model"):
        return ClassificationTask(
            **({"backbone": "resnet18", "num_classes": 2, "in_channels": 4, "width": 4, "stem": "small"} | arguments)
        )


def samples(count=48, seed=0):
    """Two classes that differ in the first band's level."""
    draws = torch_stream(seed, "images")
    label = torch.arange(count) % 2
    image = torch.randn(count, 4, 16, 16, generator=draws)
    image[:, 0] += 3.0 * label[:, None, None]
    return [{"image": image[i], "label": label[i]} for i in range(count)]


def batch(count=8):
    return torch.utils.data.default_collate(samples(count))


def test_a_trainer_fits_validates_and_tests(tmp_path):
    task = tiny()
    task.optimizer = partial(torch.optim.Adam, lr=0.01)
    trainer = L.Trainer(
        max_epochs=10,
        accelerator="cpu",
        logger=CSVLogger(tmp_path),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    loader = partial(DataLoader, samples(), batch_size=16)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have many workers.*")
        trainer.fit(task, loader(shuffle=True), loader())
        # seeds 0 to 5: both accuracies of validation and that of the test are 1, the loss is below 2e-4
        assert trainer.callback_metrics["val/overall_accuracy"] == 1.0
        assert trainer.callback_metrics["val/mean_class_accuracy"] == 1.0
        assert trainer.callback_metrics["val/loss"] < 0.3
        results = trainer.test(task, DataLoader(samples(seed=1), batch_size=16), verbose=False)
        assert results[0]["test/overall_accuracy"] > 0.9
    header = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()[0]
    assert {"train/loss", "val/loss", "val/overall_accuracy", "test/overall_accuracy"} <= set(header.split(","))
    assert all(key.startswith("model.") for key in task.state_dict())
    # a task that a Trainer has finished with goes on in a plain loop
    assert task.training_step(batch()).requires_grad


def test_steps_are_silent_without_a_trainer():
    task = tiny()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss = task.training_step(batch())
        task.log("anything", 1.0)
        task.log_dict({"anything": 1.0})
        task.validation_step(batch())
    loss.backward()
    assert all(parameter.grad is not None for parameter in task.model.parameters())
    assert isinstance(task.configure_optimizers(), torch.optim.Adam)


def test_fabric_loggers_see_no_step(tmp_path):
    logger = CSVLogger(tmp_path)
    fabric = L.Fabric(accelerator="cpu", devices=1, loggers=logger)
    task = tiny()
    model, optimizer = fabric.setup(task, task.configure_optimizers())
    model.mark_forward_method("training_step")
    fabric.backward(model.training_step(batch()))
    optimizer.step()
    assert logger.experiment.metrics == []


def test_model_state_is_the_network_itself():
    task = tiny()
    state = task.model_state()
    assert list(state) == [f"model/{name}" for name in task.model.state_dict()]
    state["model/fc.bias"].fill_(7.0)
    assert task.model.fc.bias.tolist() == [7.0, 7.0]


def test_head_keys_are_the_classifier():
    assert tiny().head_keys() == {"model/fc.weight", "model/fc.bias"}


def test_optimizers_skip_frozen_parameters():
    task = tiny()
    task.model.conv1.weight.requires_grad_(False)
    trained = [p for group in task.configure_optimizers().param_groups for p in group["params"]]
    assert len(trained) == len(list(task.parameters())) - 1


@pytest.mark.parametrize("chunks", [1, 3, 7])
def test_scores_equal_scikit_learn_and_add_up_over_batches(chunks):
    numbers = np.random.default_rng(3)
    logits, label = numbers.normal(size=(60, 5)), numbers.choice([0, 1, 2, 4], size=60)  # class 3 never occurs
    predicted = logits.argmax(1)
    task = tiny(num_classes=5)
    metrics = [task.metric() for _ in range(chunks)]
    for metric, part in zip(metrics, np.array_split(np.arange(60), chunks), strict=True):
        task.update(metric, Output(torch.tensor(logits[part]), torch.empty(0)), {"label": torch.tensor(label[part])})
    total = task.metric()
    total.confmat = sum(metric.confmat for metric in metrics)
    assert total.confmat.dtype == torch.int64
    assert torch.equal(total.confmat, torch.tensor(confusion_matrix(label, predicted, labels=range(5))))
    scores = task.scores(total)
    assert list(scores) == ["overall_accuracy", "mean_class_accuracy"]
    assert scores["overall_accuracy"] == pytest.approx(accuracy_score(label, predicted), abs=1e-15)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn mentions the class that is predicted but never occurs
        assert scores["mean_class_accuracy"] == pytest.approx(balanced_accuracy_score(label, predicted), abs=1e-15)
    assert np.isnan(task.scores(task.metric())["overall_accuracy"])


def test_metric_does_not_wait_for_other_ranks():
    assert tiny().metric().sync_on_compute is False


def test_channels_last_and_bfloat16():
    plain, other = tiny().train(), tiny().to(memory_format=torch.channels_last).train()
    images = batch()
    expected = plain(images["image"]).logits
    output = other(images["image"].to(memory_format=torch.channels_last))
    assert output.deep.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(output.logits, expected, rtol=1e-3, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        output = plain(images["image"])
        loss = plain.criterion(output, images)
    assert output.deep.dtype == torch.bfloat16
    torch.testing.assert_close(output.logits.float(), expected, rtol=0.1, atol=0.1)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.dtype == torch.float32 for p in plain.parameters())


@pytest.mark.skipif(
    shutil.which("c++") is None and shutil.which("g++") is None, reason="torch.compile on a CPU needs a C++ compiler"
)
def test_compiling_keeps_the_keys_and_the_result():
    plain, compiled = tiny(num_classes=3), tiny(num_classes=3)
    for task in (plain, compiled):
        insert_modulation(task.model, 4)
    keys = list(compiled.state_dict())
    compiled.model.compile(
        backend="aot_eager", fullgraph=True
    )  # traces forward and backward, but spends no minute on kernels
    images = batch()
    for _ in range(2):
        expected, output = plain.training_step(images), compiled.training_step(images)
        torch.testing.assert_close(output, expected)
    expected.backward()
    output.backward()
    for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    assert list(compiled.state_dict()) == keys


def test_label_smoothing_is_the_mixture_with_the_uniform_target():
    task = tiny(num_classes=3, label_smoothing=0.2)
    output, label = Output(torch.tensor([[2.0, 0.0, -1.0]]), torch.empty(0)), torch.tensor([1])
    log_probability = output.logits.log_softmax(1)[0]
    expected = -0.8 * log_probability[1] - 0.2 * log_probability.mean()
    torch.testing.assert_close(task.criterion(output, {"label": label}), expected)
    with pytest.raises(ConfigError, match=r"label_smoothing: 1.0 is not in \[0, 1\)"):
        tiny(label_smoothing=1.0)


def test_a_config_constructs_the_task(tmp_path):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Task, "task", required=True)
    init_args = {
        "backbone": "resnet34",
        "num_classes": 10,
        "in_channels": 3,
        "width": 8,
        "stem": "small",
        "weights": None,
    }
    class_path = "fedrs_lightning.tasks.classification.ClassificationTask"
    config = parser.parse_object({"task": {"class_path": class_path, "init_args": init_args}})
    assert isinstance(parser.instantiate(config).task, ClassificationTask)
    init_args["weights"] = str(tmp_path / "none.pt")
    config = parser.parse_string(
        parser.dump(parser.parse_object({"task": {"class_path": class_path, "init_args": init_args}}))
    )
    with pytest.raises(
        ValueError, match="nothing is downloaded"
    ) as error:  # jsonargparse wraps it; the command line unwraps
        parser.instantiate(config)
    assert isinstance(error.value.__cause__, ConfigError)
