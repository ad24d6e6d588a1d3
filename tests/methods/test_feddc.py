"""FedDC: both server rules against a second spelling, drift over absences, and what Adam does to it."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods import FedAvg, FedDC
from fedrs_lightning.tasks import ClassificationTask
from fedrs_lightning.types import Client, Upload

from ..engine.conftest import CLASSES, SIZES, run
from .checks import check_neutral, trained

SGD = partial(torch.optim.SGD, lr=0.05)


def test_the_log_tells_both_terms(tmp_path):
    rows = trained(run(FedDC, tmp_path, optimizer=SGD))
    assert all(row["feddc/penalty"] > 0 for row in rows)
    assert all(row["feddc/correction"] != 0 for row in rows if row["round"] > 1)


class Watched(FedDC):
    """Notes what every client held at the end of its visits, and every round's models."""

    seen: list

    def on_local_end(self, local):
        super().on_local_end(local)
        clone = {key: value.clone() for key, value in local.memory.items()}
        model = {key: value.detach().double() for key, value in local.task.model_state().items()}
        self.seen.append(
            (
                local.round,
                local.client,
                local.num_steps,
                clone,
                model,
                {k: v.double() for k, v in local.received.items()},
            )
        )


@pytest.mark.parametrize("rule", ["released", "paper"])
def test_rounds_with_partial_participation_follow_the_equations(rule, tmp_path):
    """h, c and the server's model once more from the trained models alone, in float64."""
    method, key = Watched(alpha=0.1, server_rule=rule), "model/layer1.0.conv1.weight"
    method.seen = []
    outcome = run(lambda: method, tmp_path, optimizer=SGD, num_rounds=4)
    total, zero, clients = sum(SIZES), torch.zeros_like(method.seen[0][4][key]), range(len(SIZES))
    drift, state, shared = dict.fromkeys(clients, zero), dict.fromkeys(clients, zero), zero
    for round in range(1, 5):
        visits = [visit for visit in method.seen if visit[0] == round]
        change = zero
        for _, client, steps, memory, model, received in visits:
            size = 6 * client.num_samples / total
            moved = model[key] - received[key]
            torch.testing.assert_close(received[f"feddc/state/{key}"], shared, rtol=1e-4, atol=1e-6)
            new = state[client.id] - shared / size - moved / (steps * 0.05)
            change = change + size * (new - state[client.id])
            drift[client.id], state[client.id] = drift[client.id] + moved, new
            torch.testing.assert_close(memory[f"feddc/drift/{key}"].double(), drift[client.id], rtol=1e-4, atol=1e-7)
            torch.testing.assert_close(memory[f"feddc/state/{key}"].double(), new, rtol=1e-4, atol=1e-6)
        shared = shared + change / 6
        if rule == "released":
            server = sum(visit[4][key] for visit in visits) / len(visits) + sum(drift.values()) / 6
        else:
            samples = sum(visit[1].num_samples for visit in visits)
            server = sum(visit[1].num_samples / samples * (visit[4][key] + drift[visit[1].id]) for visit in visits)
        following = [visit[5][key] for visit in method.seen if visit[0] == round + 1] or [outcome.server[key].double()]
        torch.testing.assert_close(following[0], server, rtol=1e-4, atol=1e-6)


def test_rules_agree_for_equal_clients_that_all_take_part():
    task, clients = ClassificationTask("resnet18", CLASSES, 3, width=2, stem="small"), [Client(k, 10) for k in range(3)]
    models, draw = [], torch.Generator().manual_seed(0)
    start = {key: value.detach().clone() for key, value in task.model_state().items()}
    results = []
    for rule in ("released", "paper"):
        method = FedDC(server_rule=rule)
        server = start | method.init_server(task, clients)
        parameters = [key.removeprefix("feddc/state/") for key in server if key.startswith("feddc/state/")]
        if not models:
            models = [
                {key: start[key] + 0.1 * torch.randn(start[key].shape, generator=draw) for key in parameters}
                for _ in clients
            ]
        uploads = [
            Upload(
                client,
                start
                | model
                | {f"feddc/change/{key}": torch.zeros_like(model[key]) for key in parameters}
                | {f"feddc/drift/{key}": model[key] - start[key] for key in parameters},
                parameters=tuple(parameters),
            )
            for client, model in zip(clients, models, strict=True)
        ]
        results.append(method.aggregate(server, uploads))
    for key in parameters:
        torch.testing.assert_close(results[0][key], results[1][key], rtol=1e-5, atol=1e-6)
        assert not torch.equal(results[0][key], start[key])


def test_first_round_without_drift_is_a_plain_step(tmp_path):
    """alpha = 0 in round 1: h = c = 0 and nothing pulls. The model then moves twice as far as the plain mean under
    `paper`.
    """
    options = {"optimizer": SGD, "num_rounds": 1, "clients_per_round": None}
    plain = run(FedAvg, tmp_path / "plain", **options)
    start = run(FedAvg, tmp_path / "start", **options | {"optimizer": partial(torch.optim.SGD, lr=0.0)})
    neutral = run(partial(FedDC, alpha=0.0, clip=None, server_rule="paper"), tmp_path / "neutral", **options)
    for key, value in plain.server.items():
        doubled = key.replace("model/", "feddc/state/model/") in neutral.server
        expected = 2 * value.double() - start.server[key].double() if doubled else value.double()
        torch.testing.assert_close(neutral.server[key].double(), expected, rtol=1e-5, atol=1e-6)


class WithoutDrift(FedDC):
    """FedDC that forgets, with its terms evaluated: what remains is federated averaging."""

    def on_local_end(self, local):
        super().on_local_end(local)
        local.memory = {key: torch.zeros_like(value) for key, value in local.memory.items()}


def test_without_drift_state_and_penalty_it_is_fedavg(tmp_path):
    check_neutral(
        partial(WithoutDrift, alpha=0.0, clip=None, state_scale="none", server_rule="paper"),
        FedAvg,
        tmp_path,
        optimizer=SGD,
    )


def test_clipping_bounds_a_step(tmp_path):
    steps = []

    class Steps(FedDC):
        def local_step(self, local, batch):
            before = torch.cat([p.detach().reshape(-1).clone() for p in local.task.parameters()])
            terms = super().local_step(local, batch)
            steps.append((torch.cat([p.detach().reshape(-1) for p in local.task.parameters()]) - before).norm().item())
            return terms

    run(partial(Steps, clip=0.01), tmp_path, optimizer=partial(torch.optim.SGD, lr=1.0), num_rounds=1)
    assert max(steps) == pytest.approx(0.01, rel=1e-3)


def test_adam_is_warned_about_and_the_state_can_be_dropped(tmp_path):
    with pytest.warns(UserWarning, match=r"SGD only; with Adam.*state_scale: none"):
        run(FedDC, tmp_path / "adam", num_rounds=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="FedDC")
        outcome = run(partial(FedDC, state_scale="none"), tmp_path / "none", num_rounds=2)
    assert {row["feddc/correction"] for row in outcome.clients if row["phase"] == "train"} == {0.0}
    assert not any(value.any() for key, value in outcome.server.items() if key.startswith("feddc/state/"))


def test_a_single_participant(tmp_path):
    outcome = run(FedDC, tmp_path, num_rounds=3, clients_per_round=1, optimizer=SGD)
    assert all(bool(torch.isfinite(value).all()) for value in outcome.server.values())
    np.testing.assert_allclose(outcome.server["feddc/sizes"].sum(), 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -1.0}, "alpha:"),
        ({"clip": 0.0}, "clip:"),
        ({"server_rule": "mean"}, "server_rule must be released or paper, got 'mean'"),
        ({"state_scale": "sgd"}, "state_scale must be step_count or none, got 'sgd'"),
    ],
)
def test_errors_name_the_option(options, message):
    with pytest.raises(ConfigError, match=message):
        FedDC(**options)
