"""FedProx: what the added gradient does, and FedAvg without it."""

from functools import partial

import pytest
import torch

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods import FedAvg, FedProx
from fedrs_lightning.nn.trainable import squared_distance, trainable
from fedrs_lightning.types import Client, Local

from ..engine.conftest import ADAM, run
from .checks import check_neutral, trained


def test_the_log_tells_the_penalty(tmp_path):
    outcome = run(partial(FedProx, mu=0.5), tmp_path, num_rounds=2)
    assert all(row["fedprox/penalty"] > 0 for row in trained(outcome))


@pytest.mark.parametrize(
    "optimizer", [ADAM, partial(torch.optim.SGD, lr=0.02, momentum=0.9, weight_decay=1e-3)], ids=["adam", "sgd"]
)
def test_without_its_penalty_it_is_fedavg(optimizer, tmp_path):
    neutral = check_neutral(partial(FedProx, mu=0.0), FedAvg, tmp_path, optimizer=optimizer)
    assert {row["fedprox/penalty"] for row in neutral.clients if row["phase"] == "train"} == {0.0}


def test_a_larger_penalty_holds_clients_nearer(tmp_path):
    """Seeds 3 to 8: at most 0.58 times the squared distance, for every client."""
    # small steps: a step of SGD times mu must stay well below 1
    optimizer = partial(torch.optim.SGD, lr=0.01)
    moved = {}
    for mu in (0.1, 30.0):
        path = tmp_path / f"{mu}"
        outcome = run(partial(FedProx, mu=mu), path, optimizer=optimizer, num_rounds=1, local_epochs=4)
        moved[mu] = [2 * row["fedprox/penalty"] / mu for row in outcome.clients if row["phase"] == "train"]
    assert all(near < far for near, far in zip(moved[30.0], moved[0.1], strict=True))


def test_penalty_counts_parameters_and_leaves_those_without_a_gradient_alone():
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    network[0].weight.requires_grad_(False)
    parameters = trainable(network)
    assert list(parameters) == ["model/0.bias", "model/1.weight", "model/1.bias", "model/2.weight", "model/2.bias"]
    method = FedProx(mu=0.5)
    local = Local(Client(0, 1), 1, network, {}, {}, 1, optimizer=None, fabric=None, batches=None)
    method.on_local_start(local)
    with torch.no_grad():
        for parameter in parameters.values():
            parameter += 2.0
        network[1].weight.grad, network[2].bias.grad = torch.ones(2), torch.ones(1)
        method.before_step(local)
    assert network[1].weight.grad.tolist() == [1.0 + 0.5 * 2.0] * 2
    assert network[2].bias.grad.tolist() == [1.0 + 0.5 * 2.0]
    assert all(parameters[f"model/{name}"].grad is None for name in ("0.bias", "1.bias", "2.weight"))
    assert squared_distance([torch.tensor([1.0, 2.0])], [torch.tensor([0.0, 4.0])]).item() == 5.0


@pytest.mark.parametrize("mu", [-0.1, float("nan"), float("inf")])
def test_errors_name_the_option(mu):
    with pytest.raises(ConfigError, match="mu:"):
        FedProx(mu=mu)
