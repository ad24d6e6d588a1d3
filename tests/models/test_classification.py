"""Residual networks: the same as torchvision's where both exist, and what differs from it."""

import pytest
import torch
import torchvision
from torch import nn

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.models.classification import ResNet
from fedrs_lightning.nn.modulation import insert_modulation
from fedrs_lightning.seeding import rng_stream


@pytest.mark.parametrize("backbone", ["resnet18", "resnet50"])
def test_the_standard_network_is_torchvisions_bit_for_bit(backbone):
    with rng_stream("twin"):
        ours = ResNet(backbone, num_classes=7, in_channels=3)
    with rng_stream("twin"):
        theirs = getattr(torchvision.models, backbone)(num_classes=7)
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in ours.state_dict().items())
    image = torch.randn(2, 3, 64, 64)
    for mode in (True, False):
        output = ours.train(mode)(image)
        assert torch.equal(output.logits, theirs.train(mode)(image))
    assert torch.equal(ours.fc(output.embedding), output.logits)
    torch.testing.assert_close(output.embedding, output.deep.mean((2, 3)))


@pytest.mark.parametrize(
    ("backbone", "width", "stem", "shallow", "deep"),
    [
        ("resnet18", 16, "small", (16, 32, 32), (128, 4, 4)),
        ("resnet34", 8, "imagenet", (8, 8, 8), (64, 1, 1)),
        ("resnet50", 16, "small", (64, 32, 32), (512, 4, 4)),
        ("resnet101", 4, "imagenet", (16, 8, 8), (128, 1, 1)),
    ],
)
def test_width_stem_and_bands(backbone, width, stem, shallow, deep):
    model = ResNet(backbone, num_classes=5, in_channels=10, width=width, stem=stem)
    output = model(torch.randn(2, 10, 32, 32))
    assert output.logits.shape == (2, 5)
    assert output.embedding.shape == (2, deep[0])
    assert output.shallow.shape == (2, *shallow)
    assert output.deep.shape == (2, *deep)
    standard = getattr(torchvision.models, backbone)().state_dict()
    assert list(model.state_dict()) == list(standard)
    # every width scales alike, apart from the bands and classes
    for name, value in model.state_dict().items():
        if value.dim() and not name.startswith("conv1") and name != "fc.bias":
            assert value.shape[0] * 64 == standard[name].shape[0] * width or name == "fc.weight", name


def test_the_replaced_stem_starts_like_the_other_convolutions():
    with rng_stream("stem"):
        weight = ResNet("resnet18", 2, in_channels=10, width=64).conv1.weight
    assert weight.std().item() == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.05)  # He initialisation by fan-out


def test_maps_returned_are_not_overwritten_by_later_layers():
    model = ResNet("resnet18", 3, 3, width=8).eval()
    insert_modulation(model, 8)
    kept = {}
    model.layer1.register_forward_hook(lambda module, inputs, output: kept.update(shallow=output.clone()))
    assert torch.equal(model(torch.randn(2, 3, 32, 32)).shallow, kept["shallow"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backbone": "resnet19"}, "backbone must be resnet18, .* or .*, got 'resnet19'"),
        ({"stem": "tiny"}, "stem must be imagenet or small, got 'tiny'"),
        ({"num_classes": 0}, "num_classes: 0 is below 1"),
        ({"in_channels": 0}, "in_channels: 0 is below 1"),
        ({"width": 0}, "width: 0 is below 1"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ResNet(**({"backbone": "resnet18", "num_classes": 3, "in_channels": 3} | arguments))


def test_every_batch_norm_is_a_batch_norm_2d():
    model = ResNet("resnet50", 3, 4, width=8)
    assert len([module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]) == 53
