"""FedAWA: the Gram form against the direct one, logits by client id, and FedAvg without a server step."""

from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods import FedAvg, FedAWA
from fedrs_lightning.methods.fedawa import measure
from fedrs_lightning.types import Client, Upload

from ..engine.conftest import SIZES, make_federation, run
from .checks import check_neutral, trained


def test_weights_change_and_logits_stay_on_the_server(tmp_path):
    outcome = run(partial(FedAWA, lr=0.1, init="log_fractions"), tmp_path)
    assert len({row["weight"] for row in trained(outcome)}) > 4
    assert not any(key.startswith("fedawa/") for key in FedAWA().download(outcome.server, 0))


def test_without_a_server_step_equal_clients_give_fedavg_in_all_bits(tmp_path):
    check_neutral(partial(FedAWA, lr=0.0), FedAvg, tmp_path, federation=make_federation((11,) * 6))


def test_without_a_server_step_log_fractions_are_the_sample_weights(tmp_path):
    plain = run(FedAvg, tmp_path / "plain", num_rounds=1)
    ours = run(partial(FedAWA, lr=0.0, init="log_fractions"), tmp_path / "ours", num_rounds=1)
    weights = [[row["weight"] for row in outcome.clients if row["phase"] == "train"] for outcome in (plain, ours)]
    assert weights[0] == pytest.approx(weights[1], abs=1e-14, rel=0)
    for key, value in plain.server.items():
        if value.is_floating_point():
            ulp = torch.nextafter(value.abs(), torch.tensor(torch.inf)) - value.abs()
            assert bool(((ours.server[key] - value).abs() <= ulp).all()), key


def federation_of(num_clients, seed=0, spread=1.0, dtype=torch.float64):
    """A server state and uploads with two trainable entries of which one spans several pieces, and a buffer."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    model = {"model/a": draw(7, 3), "model/b": draw(150_001), "model/c": draw(4)}
    clients = [Client(3 * k + 1, 5 + 7 * k) for k in range(num_clients)]
    uploads = [
        Upload(
            client,
            {key: value + spread * draw(value.shape) for key, value in model.items()},
            parameters=("model/a", "model/b"),
        )
        for client in clients
    ]
    fractions = torch.tensor([client.num_samples for client in clients], dtype=torch.float64)
    server = model | {
        "fedawa/clients": torch.tensor([client.id for client in clients]),
        "fedawa/logits": fractions / fractions.sum(),
    }
    return server, uploads


def direct_objective(method, logits, server, uploads):
    """J over whole vectors, as one would write it down."""
    w = torch.cat([server[key].reshape(-1) for key in ("model/a", "model/b")])
    theta = torch.stack(
        [torch.cat([upload.state[key].reshape(-1) for key in ("model/a", "model/b")]) for upload in uploads]
    )
    share = logits.softmax(0)
    tau = theta - w
    mean = share @ tau

    def apart(other):
        return 1 - F.cosine_similarity(w, other, dim=-1) if method.distance == "cos" else (w - other).square().mean(-1)

    spread = share @ (tau - mean).norm(dim=1)
    return spread + (apart(w + mean) if method.regulariser == "aggregate" else share @ apart(theta))


@pytest.mark.parametrize(("distance", "regulariser"), list(product(["cos", "euc"], ["per_client", "aggregate"])))
def test_the_matrix_form_is_the_direct_form(distance, regulariser):
    method = FedAWA(distance=distance, regulariser=regulariser)
    server, uploads = federation_of(5, spread=0.3)
    geometry = measure(server, uploads, ["model/a", "model/b"])
    assert geometry.size == 150_022
    gradients = []
    for objective in (method.objective, partial(direct_objective, method, server=server, uploads=uploads)):
        logits = server["fedawa/logits"].clone().requires_grad_(True)
        value = objective(logits, geometry) if not gradients else objective(logits)
        value.backward()
        gradients.append((value.item(), logits.grad))
    assert gradients[0][0] == pytest.approx(gradients[1][0], rel=1e-11)
    torch.testing.assert_close(gradients[0][1], gradients[1][1], rtol=1e-9, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.sampled_from(["adam", "sgd"]), st.floats(0, 1), st.floats(1e-6, 1e6))
def test_weights_are_a_distribution(num_clients, steps, optimizer, lr, spread):
    server, uploads = federation_of(num_clients, spread=spread)
    weights = FedAWA(optimizer, lr, steps).weights(server, uploads)
    assert weights.dtype == torch.float64
    assert bool((weights >= 0).all())
    assert weights.sum().item() == pytest.approx(1, abs=1e-12)


def test_rows_of_absent_clients_stay_and_order_does_not_matter():
    method = FedAWA(lr=0.1)
    server, uploads = federation_of(6)
    chosen = [uploads[4], uploads[1]]
    after = method.aggregate(server, chosen)
    moved = (after["fedawa/logits"] != server["fedawa/logits"]).nonzero().flatten().tolist()
    assert moved == [1, 4]
    assert chosen[0].log["fedawa/logit"] == after["fedawa/logits"][4].item()
    torch.testing.assert_close(
        method.aggregate(server, chosen[::-1])["fedawa/logits"], after["fedawa/logits"], rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("distance", ["cos", "euc"])
def test_identical_uploads_no_movement_and_a_zero_model_give_numbers(distance):
    method = FedAWA(distance=distance, regulariser="aggregate", server_steps=3)
    server, uploads = federation_of(3)
    same = [replace(upload, state=uploads[0].state) for upload in uploads]
    still = [replace(upload, state={key: server[key] for key in upload.state}) for upload in uploads]
    nothing = server | {key: torch.zeros_like(value) for key, value in server.items() if key.startswith("model/")}
    for start, case in (
        (server, same),
        (server, still),
        (nothing, uploads),
        (nothing, [replace(upload, state=nothing) for upload in uploads]),
    ):
        weights = method.weights(start, case)
        assert bool(torch.isfinite(weights).all())
        assert bool(torch.isfinite(FedAWA(distance=distance).aggregate(start, case)["fedawa/logits"]).all())
    one = method.aggregate(server, uploads[1:2])
    assert torch.equal(one["model/b"], uploads[1].state["model/b"])
    assert torch.equal(one["fedawa/logits"], server["fedawa/logits"])


def test_gamma_scales_the_aggregate_and_not_the_weights():
    server, uploads = federation_of(3)
    plain, scaled = FedAWA().aggregate(server, uploads), FedAWA(gamma=0.5).aggregate(server, uploads)
    torch.testing.assert_close(scaled["model/b"], 0.5 * plain["model/b"])
    assert sum(upload.log["weight"] for upload in uploads) == pytest.approx(1)


@pytest.mark.parametrize(
    ("init", "values"), [("fractions", lambda f: f), ("log_fractions", torch.log), ("uniform", torch.zeros_like)]
)
def test_initial_logits(init, values, tmp_path):
    outcome = run(partial(FedAWA, lr=0.0, init=init), tmp_path, num_rounds=1)
    samples = torch.tensor(SIZES, dtype=torch.float64)
    torch.testing.assert_close(outcome.server["fedawa/logits"], values(samples / samples.sum()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr:"),
        ({"gamma": 0.0}, "gamma:"),
        ({"server_steps": 0}, "server_steps:"),
        ({"betas": (0.5, 1.0)}, "betas:"),
        ({"distance": "l2"}, "distance must be cos or euc, got 'l2'"),
    ],
)
def test_errors_name_the_option(options, message):
    with pytest.raises(ConfigError, match=message):
        FedAWA(**options)
