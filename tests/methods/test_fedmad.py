"""FedMAD: weights against a second spelling of the formula, their properties, and every option."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.testing import assert_close

from fedrs_lightning.errors import ConfigError, TrainingError
from fedrs_lightning.methods.base import FedAvg
from fedrs_lightning.methods.fedbn import FedBN
from fedrs_lightning.methods.fedmad import FedMAD
from fedrs_lightning.nn.modulation import Modulation
from fedrs_lightning.nn.surgery import keys_of
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks.classification import ClassificationTask
from fedrs_lightning.types import Client, Local, Upload

from ..conftest import modulations


def sent(sizes, *parts, names=("",)):
    """Uploads of clients with these sample counts and, for each part, these vectors."""
    return [
        Upload(
            Client(k, size),
            {f"fedmad/direction{name}": torch.as_tensor(part[k]) for name, part in zip(names, parts, strict=True)},
        )
        for k, size in enumerate(sizes)
    ]


def task_of(method, backbone="resnet18", width=4):
    with rng_stream("task"):
        task = ClassificationTask(backbone, num_classes=3, in_channels=3, width=width)
        method.adapt(task)
    return task


def visit(task, client=None):
    return Local(client or Client(0, 10), 1, task, {}, {}, 1, optimizer=None, fabric=None, batches=None)


def move(method, task, step=0.1):
    """Upload of a client whose trainable parameters all move by `step` times their index."""
    local = visit(task)
    method.on_local_start(local)
    with torch.no_grad():
        for index, parameter in enumerate(task.parameters()):
            parameter.add_(step * (index + 1))
    return method.upload(local)


def test_weights_follow_alignment():
    uploads = sent([10, 10, 10], [[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    assert_close(FedMAD(power=1.0, eps=0.0).weights({}, uploads), torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))
    assert [upload.log["fedmad/score"] for upload in uploads] == [1.0, 1.0, -1.0]
    # hand-made: r = (1, 1), both at 45 degrees, so that only the samples count
    assert_close(
        FedMAD().weights({}, sent([10, 30], [[1.0, 0.0], [0.0, 1.0]])), torch.tensor([0.25, 0.75], dtype=torch.float64)
    )


def reference_weights(sizes, parts, power, eps, negative, eps_place, reference):
    """The formula once more, one number at a time."""
    cosines = []
    for part in parts:
        lengths = [np.sqrt(sum(v * v for v in row)) for row in part]
        unit = [
            [v / length for v in row] if length > 1e-12 else [0.0] * len(row)
            for row, length in zip(part, lengths, strict=True)
        ]
        emphasis = [size / sum(sizes) if reference == "weighted" else 1.0 for size in sizes]
        r = [sum(e * row[i] for e, row in zip(emphasis, unit, strict=True)) for i in range(len(part[0]))]
        length_r = np.sqrt(sum(v * v for v in r))
        if length_r <= 1e-12:
            continue
        extra = eps if eps_place == "denominator" else 0.0
        cosines.append(
            [sum(a * b for a, b in zip(row, r, strict=True)) / (length_r + extra) if length > 1e-12 else 0.0
             for row, length in zip(unit, lengths, strict=True)]
        )  # fmt: skip
    if not cosines:
        return np.array(sizes) / sum(sizes)
    scores = np.mean(cosines, axis=0)
    base = [max(s, 0.0) if negative == "clamp" else (1 + s) / 2 for s in scores]
    raw = [size * (b + (eps if eps_place == "inside" else 0.0)) ** power for size, b in zip(sizes, base, strict=True)]
    return np.array(raw) / sum(raw)


@pytest.mark.parametrize(
    ("negative", "eps_place", "reference"),
    list(itertools.product(["clamp", "shift"], ["inside", "denominator"], ["sum", "weighted"])),
)
@pytest.mark.parametrize("power", [0.5, 2.0, 3.0])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_every_option_against_the_second_spelling(negative, eps_place, reference, power, num_parts):
    numbers = np.random.default_rng(7)
    sizes = [30, 5, 120, 44, 61]
    parts = [numbers.normal(size=(5, 4)) + 0.3 for _ in range(num_parts)]
    parts[0][2] = 0.0  # did not move
    options = {"power": power, "eps": 1e-3, "negative": negative, "eps_place": eps_place, "reference": reference}
    uploads = sent(sizes, *parts, names=[f"/{i}" for i in range(num_parts)])
    weights = FedMAD(**options, upload="delta", granularity="per_module").weights({}, uploads)
    np.testing.assert_allclose(weights, reference_weights(sizes, parts, **options), rtol=1e-12)
    assert [upload.log["fedmad/moved"] for upload in uploads] == [1.0, 1.0, float(num_parts > 1), 1.0, 1.0]


vectors = st.integers(1, 6).flatmap(
    lambda k: st.tuples(
        st.lists(st.integers(1, 1000), min_size=k, max_size=k),
        arrays(np.float64, (k, 3), elements=st.floats(-5, 5).map(lambda v: round(v, 3))),
        st.permutations(range(k)),
        st.lists(st.floats(0.01, 100), min_size=k, max_size=k),
    )
)
methods = st.builds(
    FedMAD,
    power=st.floats(0, 3),
    eps=st.sampled_from([1e-8, 1e-3]),
    negative=st.sampled_from(["clamp", "shift"]),
    eps_place=st.sampled_from(["inside", "denominator"]),
    reference=st.sampled_from(["sum", "weighted"]),
    weighting=st.sampled_from(["samples", "uniform"]),
)


@given(drawn=vectors, method=methods)
@settings(max_examples=150, deadline=None)
def test_weights_are_a_distribution_that_knows_neither_order_nor_length(drawn, method):
    sizes, deltas, order, factors = drawn
    weights = method.weights({}, sent(sizes, deltas))
    assert weights.dtype == torch.float64
    assert bool((weights >= 0).all())
    assert weights.sum().item() == pytest.approx(1.0, abs=1e-12)

    order = list(order)
    shuffled = method.weights({}, sent([sizes[k] for k in order], deltas[order]))
    # directions that cancel up to rounding point anywhere, so that order may tip them
    lengths = np.linalg.norm(deltas, axis=1, keepdims=True)
    unit = np.divide(deltas, lengths, out=np.zeros_like(deltas), where=lengths > 1e-12)
    emphasis = (
        np.array(sizes) / sum(sizes)
        if method.reference == "weighted" and method.weighting == "samples"
        else np.ones(len(sizes))
    )
    if np.linalg.norm(emphasis @ unit) > 1e-6:
        assert_close(shuffled, weights[order], rtol=1e-6, atol=1e-9)
        scaled = method.weights({}, sent(sizes, deltas * np.array(factors)[:, None]))
        assert_close(scaled, weights, rtol=1e-6, atol=1e-9)


@given(
    drawn=vectors,
    weighting=st.sampled_from(["samples", "uniform"]),
    eps_place=st.sampled_from(["inside", "denominator"]),
)
@settings(max_examples=60, deadline=None)
def test_power_zero_is_fedavg_bit_for_bit(drawn, weighting, eps_place):
    sizes, deltas, _, _ = drawn
    uploads = sent(sizes, deltas)
    expected = FedAvg(weighting).weights({}, uploads)
    assert torch.equal(FedMAD(power=0.0, weighting=weighting, eps_place=eps_place).weights({}, uploads), expected)


def test_without_direction_the_weights_are_those_of_fedavg():
    for uploads in (
        [Upload(Client(k, size), {}) for k, size in enumerate([3, 1])],
        sent([3, 1], [[0.0, 0.0], [0.0, 0.0]]),
        sent([3, 1], [[0.6, 0.8], [-0.6, -0.8]]),
    ):
        assert FedMAD().weights({}, uploads).tolist() == [0.75, 0.25]


def test_a_client_that_did_not_move_is_logged_or_stops_the_run():
    uploads = sent([3, 1], [[0.6, 0.8], [0.0, 0.0]])
    weights = FedMAD(eps=1e-4, power=1.0).weights({}, uploads)
    assert weights.tolist() == pytest.approx([3 * 1.0001 / (3 * 1.0001 + 1e-4), 1e-4 / (3 * 1.0001 + 1e-4)])
    assert uploads[1].log == {"fedmad/score": 0.0, "fedmad/moved": 0.0}
    with pytest.raises(TrainingError, match="client 1: its modulation did not move"):
        FedMAD(zero_update="fail").weights({}, uploads)


def test_what_stays_on_the_client():
    task = task_of(FedMAD())
    norm, modulation = keys_of(task, _BatchNorm), keys_of(task, Modulation)
    assert len(modulation) == 8
    assert FedMAD().private_keys(task) == norm | modulation
    assert FedMAD().sent_keys(task) == set(task.model_state()) - norm - modulation
    assert FedMAD(modulation="shared").private_keys(task) == norm
    assert FedMAD(modulation="shared", norms=[]).private_keys(task) == set()
    assert FedMAD(head="private").private_keys(task) == norm | modulation | {"model/fc.weight", "model/fc.bias"}
    assert FedMAD(buffers="keep_client", norms=[]).private_keys(task) == modulation | FedBN(
        "statistics_only"
    ).private_keys(task)


def test_no_layers_is_fedbn():
    method = FedMAD(num_layers=0)
    task, twin = task_of(method), task_of(FedBN())
    assert list(task.state_dict()) == list(twin.state_dict())
    assert all(torch.equal(value, twin.state_dict()[name]) for name, value in task.state_dict().items())
    assert method.private_keys(task) == FedBN().private_keys(task)
    assert move(method, task) == {}
    assert move(FedMAD(num_layers=0, direction_of="gamma_beta_bn"), task) == {}
    # batch norm as the source needs no modulation layer (row 13)
    assert len(move(FedMAD(num_layers=0, direction_of="bn"), task)["fedmad/direction"]) == sum(
        p.numel() for m in task.modules() if isinstance(m, _BatchNorm) for p in m.parameters()
    )


def test_upload_is_the_unit_direction_of_modulation_alone():
    method = FedMAD(num_layers=2)
    task = task_of(method)
    before = torch.cat([p.detach().clone() for _, layer in modulations(task.model) for p in (layer.gamma, layer.beta)])
    upload = move(method, task)
    after = torch.cat([p.detach() for _, layer in modulations(task.model) for p in (layer.gamma, layer.beta)])
    assert list(upload) == ["fedmad/direction"]
    direction = upload["fedmad/direction"]
    assert (direction.dtype, direction.shape) == (torch.float32, before.shape)
    assert direction.norm().item() == pytest.approx(1.0, abs=1e-6)
    assert_close(direction * (after - before).norm(), after - before)
    assert_close(move(FedMAD(num_layers=2, upload="delta"), task)["fedmad/direction"].norm(), (after - before).norm())


@pytest.mark.parametrize("what", ["gamma_beta", "gamma", "gamma_beta_bn", "bn"])
def test_what_and_granularity_choose_the_parameters(what):
    method, parts = (
        FedMAD(num_layers=2, direction_of=what),
        FedMAD(num_layers=2, direction_of=what, granularity="per_module"),
    )
    task = task_of(method)
    layers = [
        m
        for m in task.modules()
        if isinstance(m, {"bn": _BatchNorm, "gamma_beta_bn": (Modulation, _BatchNorm)}.get(what, Modulation))
    ]
    sizes = [
        layer.gamma.numel() if what == "gamma" else sum(p.numel() for p in layer.parameters(recurse=False))
        for layer in layers
    ]
    assert len(move(method, task)["fedmad/direction"]) == sum(sizes)
    upload = move(parts, task)
    assert [len(value) for value in upload.values()] == sizes
    assert all(value.norm().item() == pytest.approx(1.0, abs=1e-5) for value in upload.values())


def test_a_modulation_inside_a_batch_norm_is_counted_once():
    method = FedMAD(num_layers=1, placement="pre_bn", direction_of="gamma_beta_bn", skip_dead_beta=False)
    with pytest.warns(UserWarning, match="cancels it"):
        task = task_of(method)
    norms = sum(p.numel() for key, p in task.model_state().items() if key in FedBN("affine_only").private_keys(task))
    assert len(move(method, task)["fedmad/direction"]) == norms + sum(
        2 * layer.gamma.numel() for _, layer in modulations(task.model)
    )


def test_dead_beta_is_left_out_of_m():
    method = FedMAD(num_layers=16)
    task = task_of(method, "resnet50")
    layers = dict(modulations(task.model))
    dead = sum(layer.beta.numel() for layer in layers.values() if layer.beta_is_dead)
    everything = sum(2 * layer.beta.numel() for layer in layers.values())
    assert dead > 0
    assert len(move(method, task)["fedmad/direction"]) == everything - dead
    assert len(move(FedMAD(num_layers=16, skip_dead_beta=False), task)["fedmad/direction"]) == everything


def test_placement_and_initial_values_reach_the_layers():
    with pytest.warns(UserWarning, match="cancels it"):
        task = task_of(FedMAD(num_layers=1, placement="pre_bn", which="bn2", initial_gamma=0.5, initial_beta=0.25))
    ((name, layer),) = modulations(task.model)
    assert name == "layer1.0.bn2.modulation"
    assert (layer.gamma.unique().tolist(), layer.beta.unique().tolist()) == ([0.5], [0.25])
    assert [name for name, _ in modulations(task_of(FedMAD(num_layers=1, order=["layer3.1"])).model)] == [
        "layer3.1.modulation"
    ]


def test_gradients_reach_the_modulation_of_the_default_placement():
    method = FedMAD()
    task = task_of(method, "resnet50", width=8)
    task.training_step({"image": torch.randn(8, 3, 64, 64), "label": torch.arange(8) % 3}).backward()
    smallest = min(m.weight.grad.norm() for m in task.modules() if isinstance(m, nn.Conv2d))
    for name, layer in modulations(task.model):
        assert min(layer.gamma.grad.norm(), layer.beta.grad.norm()) > 1e-3 * smallest, name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"power": -1.0}, "power: -1.0"),
        ({"power": float("nan")}, "power: nan"),
        ({"eps": -1e-8}, "eps: -1e-08"),
        ({"negative": "abs"}, "negative must be clamp or shift, got 'abs'"),
        ({"norms": ["bn"]}, "norms must be batch, .* or .*, got 'bn'"),
        ({"direction_of": "beta"}, "direction_of must be .* or .*, got 'beta'"),
        ({"upload": "model"}, "upload must be .* or .*, got 'model'"),
    ],
)
def test_errors_name_the_option(options, message):
    with pytest.raises(ConfigError, match=message):
        FedMAD(**options)
    with pytest.raises(ConfigError, match="8 residual blocks"):
        task_of(FedMAD(num_layers=9))
