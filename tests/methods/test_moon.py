"""MOON: the head, frozen models that stay frozen, memory, and FedAvg without the contrast."""

from functools import partial

import lightning as L
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods import MOON, FedAvg
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks import ClassificationTask
from fedrs_lightning.types import Client, Local

from ..engine.conftest import run
from .checks import check_neutral, trained
from .conftest import make_segmentation_federation, small_segmentation_task


class Projected(FedAvg):
    """FedAvg on the task that MOON adapts."""

    def adapt(self, task):
        MOON(out_dim=16).adapt(task)


def task_of(method, width=4):
    with rng_stream(1, "model"):
        task = ClassificationTask("resnet18", 5, 3, width=width, stem="small")
    with rng_stream(1, "adapt"):
        method.adapt(task)
    return task


def visit(task, memory=None, received=None, round=1):
    state = {key: value.detach().clone() for key, value in task.model_state().items()}
    fabric = L.Fabric(accelerator="cpu", devices=1)
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
    return Local(Client(0, 8), round, task, received or state, memory or {}, 1, optimizer, fabric, batches=None)


BATCH = {"image": torch.randn(8, 3, 12, 12, generator=torch.Generator().manual_seed(0)), "label": torch.arange(8) % 5}


def test_the_contrast_begins_with_the_second_visit(tmp_path):
    seen = set()
    for row in trained(run(partial(MOON, out_dim=16, mu=5.0), tmp_path)):
        assert (row["loss/contrast"] > 0) == (row["client"] in seen)
        seen.add(row["client"])


def test_without_its_contrast_it_is_fedavg(tmp_path):
    plain = check_neutral(partial(MOON, mu=0.0, projection=False, first_round="use_global"), FedAvg, tmp_path / "plain")
    assert {row["loss/contrast"] for row in plain.clients if row["phase"] == "train"} == {0.0}
    check_neutral(partial(MOON, mu=0.0, out_dim=16, buffer=2), Projected, tmp_path / "head")


def test_the_head_stands_between_embedding_and_classifier():
    task = task_of(MOON(out_dim=16))
    assert task.model.fc.weight.shape == (5, 16)
    keys = {key for key in task.model_state() if "projection" in key}
    assert keys == {f"model/fc.projection.{layer}.{name}" for layer in (0, 2) for name in ("weight", "bias")}
    assert task_of(MOON(projection=False)).model_state().keys() == task.model_state().keys() - keys
    task.eval()
    output = task(BATCH["image"])
    bare = torch.flatten(task.model.avgpool(output.deep), 1)
    first, second = task.model.fc.projection[0], task.model.fc.projection[2]
    torch.testing.assert_close(output.embedding, second(F.relu(first(bare))))
    torch.testing.assert_close(output.logits, F.linear(output.embedding, task.model.fc.weight, task.model.fc.bias))


def test_frozen_models_are_in_evaluation_mode_and_nothing_moves_them():
    """Against two deep copies of the network; neither mode nor statistics nor gradient leak from one to the other."""
    method = MOON(out_dim=16, mu=2.0, temperature=0.3)
    task, other = task_of(method).train(), task_of(method)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(
                0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            )
    previous = {f"moon/previous/0/{key}": value.detach().clone() for key, value in other.model_state().items()}
    local = visit(task, previous)
    kept = {key: value.clone() for key, value in (*local.received.items(), *previous.items())}
    method.on_local_start(local)
    task.model.layer1.eval()  # a layer that somebody froze stays as it was
    with torch.no_grad():
        task.model.conv1.weight.mul_(1.1)
    output = task(BATCH["image"])
    statistics = task.model.bn1.running_mean.clone()
    terms = method.loss(local, BATCH, output)
    assert torch.equal(task.model.bn1.running_mean, statistics)
    assert [task.model.training, task.model.layer1.training, task.model.layer1[0].training] == [True, False, False]
    assert all(torch.equal(value, kept[key]) for key, value in (*local.received.items(), *local.memory.items()))
    received = task_of(method)
    received.load_state_dict({key.replace("model/", "model.", 1): value for key, value in local.received.items()})
    with torch.no_grad():
        features = [frozen.eval()(BATCH["image"]).embedding for frozen in (received, other)]
    near = torch.stack([F.cosine_similarity(output.embedding, feature) for feature in features]) / 0.3
    expected = 2.0 * (torch.logsumexp(near, 0) - near[0]).mean()
    torch.testing.assert_close(terms["contrast"], expected)
    terms["contrast"].backward()
    assert task.model.conv1.weight.grad.any()


def test_first_visit_and_earlier_models():
    for rule, expected in (("skip", 0.0), ("use_global", torch.log(torch.tensor(2.0)).item())):
        method = MOON(out_dim=16, first_round=rule)
        task = task_of(method)
        local = visit(task)
        method.on_local_start(local)
        assert method.loss(local, BATCH, task.train()(BATCH["image"]))["contrast"].item() == pytest.approx(
            expected, abs=1e-6
        )
    method = MOON(out_dim=16, buffer=2)
    task, memory = task_of(method), {}
    for number in (1.0, 2.0, 3.0):
        nn.init.constant_(task.model.fc.bias, number)
        local = visit(task, memory)
        method.on_local_start(local)
        assert len(local.scratch["moon/frozen"]) == min(number, 3)
        method.on_local_end(local)
        memory = dict(local.memory)
    assert [memory[f"moon/previous/{number}/model/fc.bias"][0].item() for number in (0, 1)] == [3.0, 2.0]
    assert len({value.data_ptr() for value in memory.values()} | {task.model.fc.bias.data_ptr()}) == len(memory) + 1


def test_a_batch_of_one_gives_numbers():
    method = MOON(out_dim=16)
    task = task_of(method)
    local = visit(task, {f"moon/previous/0/{key}": value.detach().clone() for key, value in task.model_state().items()})
    method.on_local_start(local)
    one = {key: value[:1] for key, value in BATCH.items()}
    assert torch.isfinite(method.loss(local, one, task.eval()(one["image"]))["contrast"])


def test_segmentation_without_a_head(tmp_path):
    engine = {
        "federation": make_segmentation_federation(),
        "make_task": small_segmentation_task,
        "clients_per_round": 1,
        "num_rounds": 2,
    }
    outcome = run(partial(MOON, projection=False, first_round="use_global"), tmp_path, **engine)
    assert all(row["loss/contrast"] > 0 for row in outcome.clients if row["phase"] == "train")
    with pytest.raises(ConfigError, match="set projection: false"):
        MOON().adapt(small_segmentation_task())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mu": -1.0}, "mu:"),
        ({"temperature": 0.0}, "temperature:"),
        ({"out_dim": 0}, "out_dim:"),
        ({"buffer": 0}, "buffer:"),
        ({"first_round": "log2"}, "first_round must be skip or use_global, got 'log2'"),
    ],
)
def test_errors_name_the_option(options, message):
    with pytest.raises(ConfigError, match=message):
        MOON(**options)
