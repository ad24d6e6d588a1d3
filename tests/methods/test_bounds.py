"""Bounds: visits that carry the optimiser on equal one unbroken training."""

from functools import partial

import lightning as L
import pytest
import torch
from safetensors.torch import load, save

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods.bounds import Centralised, LocalOnly
from fedrs_lightning.seeding import rng_stream, torch_stream
from fedrs_lightning.tasks.classification import ClassificationTask
from fedrs_lightning.types import Client, Local, Upload

OPTIMIZERS = [
    partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    partial(torch.optim.AdamW, lr=0.01),
    partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    partial(torch.optim.SGD, lr=0.05),
    partial(torch.optim.RMSprop, lr=0.01, momentum=0.9, centered=True),
]


def batches(count=6):
    draws = torch_stream("batches")
    return [
        {"image": torch.randn(6, 3, 16, 16, generator=draws), "label": torch.randint(3, (6,), generator=draws)}
        for _ in range(count)
    ]


def task_with(optimizer):
    with rng_stream("task"):
        task = ClassificationTask("resnet18", num_classes=3, in_channels=3, width=2, stem="small").train()
    task.model.fc.bias.requires_grad_(False)
    task.optimizer = optimizer
    return task


def train(method, optimizer, rounds):
    """A fresh optimiser for each list of batches; memory goes through bytes between them, as it does on disk."""
    fabric, task, memory = L.Fabric(accelerator="cpu", devices=1), task_with(optimizer), {}
    for number, part in enumerate(rounds, 1):
        local = Local(
            Client(0, 36),
            number,
            task,
            {},
            load(save(memory)),
            len(part),
            task.configure_optimizers(),
            fabric,
            lambda augment: iter(()),
        )
        method.on_local_start(local)
        for batch in part:
            method.local_step(local, batch)
        method.on_local_end(local)
        memory = {key: value.clone().contiguous() for key, value in local.memory.items()}
    return task.model_state(), memory


@pytest.mark.parametrize("method", [Centralised(), LocalOnly()], ids=lambda method: type(method).__name__)
@pytest.mark.parametrize(
    "optimizer", OPTIMIZERS, ids=lambda factory: f"{factory.func.__name__}-{len(factory.keywords)}"
)
def test_rounds_with_kept_optimizer_equal_one_training(method, optimizer):
    data = batches()
    unbroken, _ = train(method, optimizer, [data])
    visits, memory = train(method, optimizer, [data[:1], data[1:4], data[4:]])
    assert all(torch.equal(value, visits[key]) for key, value in unbroken.items())
    assert all(key.startswith("optimizer/model.") for key in memory)
    restarted, nothing = train(type(method)(keep_optimizer=False), optimizer, [data[:1], data[1:4], data[4:]])
    assert nothing == {}
    stateless = optimizer.func is torch.optim.SGD and "momentum" not in optimizer.keywords
    assert all(torch.equal(value, restarted[key]) for key, value in unbroken.items()) == stateless


def test_settings_come_from_the_fresh_optimizer():
    data = batches(2)
    _, memory = train(Centralised(), OPTIMIZERS[0], [data])
    task = task_with(partial(torch.optim.Adam, lr=0.5, amsgrad=True))
    local = Local(Client(0, 1), 2, task, {}, memory, 1, task.configure_optimizers(), None, None)
    Centralised().on_local_start(local)
    assert local.learning_rate == 0.5
    assert len(local.optimizer.state) == len(list(task.parameters())) - 1  # the frozen bias has none
    # the optimiser works on copies: the memory is read only
    task.training_step(data[0]).backward()
    kept = {key: value.clone() for key, value in memory.items()}
    local.optimizer.step()
    assert all(torch.equal(value, kept[key]) for key, value in memory.items())


class Counting(torch.optim.SGD):
    """An optimiser that keeps a plain number."""

    def step(self, closure=None):
        super().step(closure)
        for state in self.state.values():
            state["calls"] = state.get("calls", 0) + 1


def test_an_optimizer_with_other_state_is_refused():
    with pytest.raises(ConfigError, match="keep_optimizer: Counting keeps 'calls' as int"):
        train(Centralised(), partial(Counting, lr=0.1, momentum=0.9), [batches(1)])


def test_local_only_sends_and_aggregates_nothing():
    method, task = LocalOnly(), task_with(OPTIMIZERS[0])
    assert method.private_keys(task) == set(task.model_state())
    assert method.sent_keys(task) == set()
    uploads = [Upload(Client(k, 5), {}) for k in range(3)]
    assert method.aggregate({}, uploads) == {}
    assert all(upload.log == {} for upload in uploads)
    assert not method.pools_clients


def test_centralised_pools_and_shares():
    method, task = Centralised(), task_with(OPTIMIZERS[0])
    assert method.pools_clients
    assert method.private_keys(task) == set()
    state = {key: value.clone() for key, value in task.model_state().items()}
    assert all(
        torch.equal(value, state[key]) for key, value in method.aggregate({}, [Upload(Client(0, 9), state)]).items()
    )
