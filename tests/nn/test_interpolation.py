from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedrs_lightning.models.segmentation import SegmentationNetwork
from fedrs_lightning.nn import interpolation
from fedrs_lightning.nn.interpolation import deterministic_interpolation, separable

SIZES = [
    ((5, 7), (20, 28)),
    ((8, 8), (5, 3)),
    ((1, 1), (6, 4)),
    ((6, 3), (6, 9)),
    ((4, 5), (1, 1)),
    ((13, 2), (31, 64)),
]


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(("old", "new"), SIZES)
def test_values_and_gradients_are_those_of_torch(old, new, aligned):
    maps = torch.randn(2, 3, *old, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    ours, theirs = separable(maps, new, aligned), F.interpolate(maps, new, mode="bilinear", align_corners=aligned)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
    seed = torch.randn(ours.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    (mine,), (reference,) = torch.autograd.grad(ours, maps, seed), torch.autograd.grad(theirs, maps, seed)
    torch.testing.assert_close(mine, reference, rtol=0, atol=1e-13)
    single = maps.detach().float()
    torch.testing.assert_close(separable(single, new, aligned), ours.detach().float(), rtol=0, atol=1e-6)


def test_half_precision():
    maps = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert separable(maps, (8, 8)).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        inside = separable(maps, (8, 8))
    assert inside.dtype == torch.float32
    torch.testing.assert_close(inside, separable(maps.float(), (8, 8)), rtol=0, atol=0)


NETWORKS = {"deeplabv3plus": "resnet18", "fpn": "resnet18", "unet": "resnet18", "segformer": "mit_b0"}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_bilinear_call_of_a_network_is_replaced(name, monkeypatch):
    narrow = {} if name == "segformer" else {"encoder_width": 8}
    torch.manual_seed(0)
    channels = {"decoder_channels": 32} if name == "fpn" else {"decoder_channels": 8}
    network = SegmentationNetwork(name, NETWORKS[name], 3, 2, **narrow, **channels).eval()
    image = torch.randn(2, 2, 64, 64, generator=torch.Generator().manual_seed(1))
    plain = network(image).logits
    monkeypatch.setattr(interpolation, "wanted", lambda device: True)
    called = []
    monkeypatch.setattr(torch._C._nn, "upsample_bilinear2d", lambda *args: called.append(args))
    other = network(image).logits
    assert not called
    torch.testing.assert_close(other, plain, rtol=1e-4, atol=1e-5)
    assert torch.equal(other, plain) == (name == "unet")


def test_other_calls_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(interpolation, "wanted", lambda device: True)
    maps = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(1))
    calls = (
        {"scale_factor": 2.5, "mode": "bilinear"},
        {"size": 9, "mode": "nearest"},
        {"size": (3, 3), "mode": "area"},
    )
    for options in (*calls, {"size": 3, "mode": "bilinear", "antialias": True}):
        with deterministic_interpolation(maps.device):
            inside = F.interpolate(maps, **options)
        assert torch.equal(inside, F.interpolate(maps, **options)), options


def test_weights_serve_training_after_an_evaluation():
    interpolation.interpolation_weights.cache_clear()
    maps = torch.randn(1, 1, 3, 3)
    with torch.inference_mode():
        separable(maps, (7, 7))
    maps.requires_grad_()
    separable(maps, (7, 7)).sum().backward()
    assert maps.grad is not None
