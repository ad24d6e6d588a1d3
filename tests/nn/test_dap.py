"""Descriptors, modulators and gate: against torch's own pooling and moments, and their initial state."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.nn.dap import (
    DAP,
    channel_statistics,
    drift,
    fuse,
    pooled_cells,
    smooth,
    spatial_descriptor,
    spectral_descriptor,
)
from fedrs_lightning.nn.prototypes import unit
from fedrs_lightning.types import Output

SIZES = {
    "num_classes": 3,
    "embedding_channels": 6,
    "shallow_channels": 5,
    "deep_channels": 7,
    "embedding_dim": 4,
    "spectral_dim": 2,
    "spatial_dim": 3,
    "class_dim": 2,
    "hidden_sizes": [8],
    "activation": "relu",
    "gate": "learned",
    "eps": 1e-5,
    "detach": True,
}


def maps(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=40, deadline=None)
@given(height=st.integers(1, 17), width=st.integers(1, 17), side=st.sampled_from([1, 2, 4]))
def test_cells_are_adaptive_average_pooling(height, width, side):
    values = maps(2, 3, height, width)
    torch.testing.assert_close(pooled_cells(values, side), F.adaptive_avg_pool2d(values, side).flatten(1))


def test_descriptors_are_means_over_the_batch_of_moments_and_cells():
    values = maps(2, 3, 5, 6)
    mean, std = values.mean((2, 3)), (values.var((2, 3), correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(channel_statistics(values, 1e-5), (mean, std))
    torch.testing.assert_close(spectral_descriptor(values, 1e-5), torch.cat([mean, std], 1).mean(0))
    spatial = spatial_descriptor(values, 1e-5)
    assert spatial.shape == (23 * 3,)
    torch.testing.assert_close(spatial[:3], mean.mean(0))
    torch.testing.assert_close(spatial[3:15].view(3, 2, 2), F.adaptive_avg_pool2d(values, 2).mean(0))
    torch.testing.assert_close(spatial[-3:], std.mean(0))


def test_a_constant_map_has_a_finite_gradient():
    values = torch.ones(1, 2, 4, 4, requires_grad=True)
    spectral_descriptor(values, 1e-5).sum().backward()
    assert bool(torch.isfinite(values.grad).all())


def layers(**options):
    torch.manual_seed(0)
    return DAP(**SIZES | options)


def output():
    return Output(torch.empty(0), torch.randn(2, 6, 8, 8), torch.randn(2, 5, 8, 8), torch.randn(2, 7, 4, 4))


def test_prototypes_begin_as_the_anchors():
    anchors = unit(torch.randn(3, 4))
    made = layers()(output(), anchors)
    torch.testing.assert_close(made.branches, anchors.expand(3, -1, -1))
    assert made.gate.tolist() == [0.5] * 3
    assert [gamma.unique().tolist() for gamma in made.gamma] == [[1.0], [1.0]]
    torch.testing.assert_close(drift(made.branches, anchors), torch.zeros(3, 3), atol=1e-6, rtol=0)


def test_spatial_scales_stay_in_0_2_and_spectral_ones_do_not():
    module = layers()
    for modulator in (module.spectral, module.spatial):
        modulator.mlp[-1].weight.data.normal_(std=100)
    made = module(output(), unit(torch.randn(3, 4)))
    assert bool(((made.gamma[1] >= 0) & (made.gamma[1] <= 2)).all())
    assert bool((made.gamma[0].abs() > 2).any())
    torch.testing.assert_close(made.branches.norm(dim=-1), torch.ones(3, 3))


def test_the_gate_leans_class_by_class():
    first, second = unit(torch.randn(2, 4)), unit(torch.randn(2, 4))
    torch.testing.assert_close(fuse(torch.tensor([1.0, 0.0]), first, second), torch.stack([first[0], second[1]]))


def test_modulators_have_class_tables_of_their_own():
    module = layers()
    made = module(output(), unit(torch.randn(3, 4)))
    assert not torch.equal(module.spectral.classes, module.spatial.classes)
    assert module.descriptor_dim == 2 * 2 + 23 * 3
    assert (made.spectral_descriptor.shape, made.spatial_descriptor.shape) == ((4,), (69,))


def test_half_precision_stops_at_the_descriptors():
    module = layers()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = module(output(), unit(torch.randn(3, 4)))
        embedded = module.embed(output().embedding)
    assert {made.spectral_descriptor.dtype, made.gate.dtype, made.branches.dtype, embedded.dtype} == {torch.float32}


def test_smoothing_starts_with_the_first_value():
    value = None
    for new in (4.0, 8.0):
        value = smooth(value, torch.tensor(new), 0.75)
    assert float(value) == 5.0


@pytest.mark.parametrize("option", [{"activation": "step"}, {"gate": "open"}])
def test_unknown_choices_are_named(option):
    with pytest.raises(ConfigError, match=f"{next(iter(option))} must be .* or .*, got"):
        layers(**option)
