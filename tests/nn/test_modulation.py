"""Modulation layers: arithmetic, places in a ResNet, and which of their parameters can learn at all."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torchvision.models import resnet18, resnet34, resnet50, resnet101

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.nn.modulation import Modulation, insert_modulation
from fedrs_lightning.seeding import rng_stream

from ..conftest import modulations

PLACES = ["pre_block", "pre_bn", "pre_conv2", "post_bn"]


def insert(model, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return insert_modulation(model, *args, **kwargs)


def test_modulation_is_affine_per_channel():
    layer = Modulation(3).double()
    with torch.no_grad():
        layer.gamma.copy_(torch.tensor([2.0, -1.0, 0.5]))
        layer.beta.copy_(torch.tensor([0.25, 3.0, 0.0]))
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    expected = torch.stack([2 * x[:, 0] + 0.25, 3 - x[:, 1], x[:, 2] / 2], dim=1)
    assert_close(layer(x), expected)
    assert_close(layer(x[:, :, 0, 0]), expected[:, :, 0, 0])
    assert torch.autograd.gradcheck(layer, (x,))


def test_modulation_keeps_memory_format_and_dtype_and_small_changes():
    layer = Modulation(8, gamma=1.001)
    x = torch.full((2, 8, 4, 4), 100.0).to(memory_format=torch.channels_last)
    assert layer(x).is_contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(torch.full((2, 8, 4, 4), 192.0, dtype=torch.bfloat16))
        # 1.003 would round to 1.0 in bfloat16; 192 * 1.003 = 192.58 rounds to 193
        z = Modulation(8, gamma=1.003)(torch.full((2, 8, 4, 4), 192.0, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    assert z.unique().tolist() == [193.0]


@pytest.mark.parametrize("placement", PLACES)
def test_insertion_renames_nothing_draws_nothing_and_changes_no_output(placement):
    model = resnet18(num_classes=3).eval()
    before, image = list(model.state_dict()), torch.randn(2, 3, 32, 32)
    expected = model(image)
    torch.manual_seed(5)
    stream = torch.get_rng_state()
    names = insert(model, 4, placement)
    assert torch.equal(torch.get_rng_state(), stream)
    after = list(model.state_dict())
    added = [name for name in after if name not in before]
    assert [name for name in after if name in before] == before
    assert set(added) == {f"{name}.{entry}" for name in names for entry in ("gamma", "beta")}
    assert torch.equal(model(image), expected)


@pytest.mark.parametrize(
    ("network", "count", "expected"),
    [
        (resnet50, 4, "1.1 2.1 3.1 4.1"),
        (resnet50, 16, "1.1 2.1 3.1 4.1 1.2 2.2 3.2 4.2 2.3 3.3 3.4 3.5 1.0 2.0 3.0 4.0"),
        (resnet18, 8, "1.0 2.1 3.1 4.1 1.1 2.0 3.0 4.0"),
        (resnet34, 5, "1.0 2.1 3.1 4.1 1.1"),
        (resnet101, 6, "1.1 2.1 3.1 4.1 1.2 2.2"),
    ],
)
def test_stage_round_robin(network, count, expected):
    with torch.device("meta"):
        model = network()
        assert insert_modulation(model, count) == [f"layer{block}.modulation" for block in expected.split()]
    if network is resnet50 and count == 4:
        assert [layer.gamma.numel() for _, layer in modulations(model)] == [256, 512, 1024, 2048]
        assert sum(p.numel() for _, layer in modulations(model) for p in layer.parameters()) == 7680


@pytest.mark.parametrize(
    ("order", "count", "expected"),
    [
        ("first_n", 2, ["layer1.0", "layer1.1"]),
        ("last_n", 2, ["layer4.0", "layer4.1"]),
        ("last_n", 0, []),
        (["layer3.1", "layer1.0"], 2, ["layer3.1", "layer1.0"]),
    ],
)
def test_other_orders(order, count, expected):
    assert insert_modulation(resnet18(), count, order=order) == [f"{block}.modulation" for block in expected]


def test_pre_bn_all_takes_every_batch_norm_of_the_main_path():
    assert insert(resnet50(), 1, "pre_bn") == [f"layer1.1.bn{i}.modulation" for i in (1, 2, 3)]
    assert insert(resnet50(), 1, "pre_bn", which="bn3") == ["layer1.1.bn3.modulation"]


def test_pre_bn_warns_that_batch_norm_cancels_it():
    with pytest.warns(UserWarning, match="batch norm, which cancels it"):
        insert_modulation(resnet18(), 1, "pre_bn")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 9}, "9, but the network has 8 residual blocks"),
        ({"count": -1}, "-1 is negative"),
        ({"count": 1, "placement": "pre_blok"}, "placement must be .* or .*, got 'pre_blok'"),
        ({"count": 1, "order": "random"}, "order: 'random' is not one of"),
        ({"count": 1, "order": ["layer5.0"]}, "no block 'layer5.0'"),
        ({"count": 2, "order": ["layer1.0"]}, "1 different blocks are listed, 2 asked for"),
        ({"count": 2, "order": ["layer1.0", "layer1.0"]}, "1 different blocks are listed, 2 asked for"),
        ({"count": 1, "placement": "pre_bn", "which": "bn3"}, "'bn3' is not in layer1.0, a BasicBlock with bn1, bn2"),
    ],
)
def test_errors_name_the_setting(arguments, message):
    model = resnet18()
    keys = list(model.state_dict())
    with pytest.raises(ConfigError, match=message):
        insert(model, **arguments)
    assert list(model.state_dict()) == keys


def test_a_network_without_blocks_and_a_second_insertion_are_errors():
    with pytest.raises(ConfigError, match="has 0 residual blocks"):
        insert_modulation(nn.Sequential(nn.Conv2d(3, 3, 1)), 1)
    model = resnet18()
    insert_modulation(model, 1)
    with pytest.raises(ConfigError, match=r"layer1\.0 is modulated already"):
        insert_modulation(model, 2)


def test_a_deep_copy_uses_its_own_layers():
    model = resnet18().eval()
    insert_modulation(model, 4)
    twin = copy.deepcopy(model)
    image = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        expected = model(image)
        for _, layer in modulations(twin):
            layer.beta.fill_(7.0)
        assert torch.equal(model(image), expected)
        assert not torch.equal(twin(image), expected)


def gradient_norms(network, placement):
    """Float64 norms of d loss / d gamma and d loss / d beta of one batch, by layer, with every block modulated."""
    with rng_stream("gradients"):
        model = network(num_classes=5).double().train()
        count = len([1 for name, _ in model.named_modules() if name.count(".") == 1 and name.startswith("layer")])
        insert(model, count, placement)
        loss = nn.functional.cross_entropy(
            model(torch.randn(4, 3, 64, 64, dtype=torch.float64)), torch.tensor([0, 1, 2, 3])
        )
    loss.backward()
    weight = min(module.weight.grad.norm() for module in model.modules() if isinstance(module, nn.Conv2d))
    return weight, {
        name: (layer.beta_is_dead, layer.gamma.grad.norm(), layer.beta.grad.norm())
        for name, layer in modulations(model)
    }


@pytest.mark.parametrize("network", [resnet18, resnet50])
@pytest.mark.parametrize("placement", PLACES)
def test_dead_betas_are_exactly_those_without_a_gradient(network, placement):
    smallest_weight, norms = gradient_norms(network, placement)
    assert len(norms) >= 8
    for name, (dead, gamma, beta) in norms.items():
        if dead:
            assert beta < 1e-11 * smallest_weight, name
        else:
            assert beta > 1e-3 * smallest_weight, name
        if placement == "pre_bn":
            assert dead, name
            assert gamma < 1e-3 * smallest_weight, name  # only through batch norm's own epsilon
        else:
            assert gamma > 1e-3 * smallest_weight, name
    if placement == "pre_block":
        expected = {f"layer{stage}.0.modulation" for stage in (1, 2, 3, 4)} if network is resnet50 else set()
        assert {name for name, (dead, _, _) in norms.items() if dead} == expected


def test_dead_beta_follows_the_structure_not_the_name():
    model = resnet50()
    model.layer1[0].bn1 = nn.GroupNorm(8, 64)  # removes the mean of a group, not of a channel
    model.layer2[0].downsample[0] = nn.Conv2d(256, 512, 3, stride=2, padding=1, bias=False)
    model.layer3[0].conv1 = nn.Conv2d(512, 256, 3, bias=False, padding=0)
    insert_modulation(model, 4, order=[f"layer{stage}.0" for stage in (1, 2, 3, 4)])
    assert [layer.beta_is_dead for _, layer in modulations(model)] == [False, False, True, True]
