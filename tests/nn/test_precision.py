"""Full precision stays full under lower precisions of torch, in values and in gradients."""

import pytest
import torch
from torch.nn import functional as F

from fedrs_lightning.nn import precision
from fedrs_lightning.nn.dap import DAP
from fedrs_lightning.nn.precision import full_precision, linear, pointwise, product
from fedrs_lightning.nn.prototypes import cosines
from fedrs_lightning.types import Output

from .test_dap import SIZES


@pytest.fixture(params=["highest", "high", "medium"])
def level(request):
    """Torch's precision of products, with TF32 in convolutions as torch itself has it."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(request.param)
    torch.backends.cudnn.allow_tf32 = True
    yield request.param
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


class Seen(torch.autograd.Function):
    """The product, noting the precision under which value and gradients are computed."""

    notes: list = []  # noqa: RUF012

    @staticmethod
    def forward(ctx, first, second):
        ctx.save_for_backward(first, second)
        Seen.notes.append(torch.get_float32_matmul_precision())
        return first @ second

    @staticmethod
    def backward(ctx, gradient):
        first, second = ctx.saved_tensors
        Seen.notes.append(torch.get_float32_matmul_precision())
        return gradient @ second.mT, first.mT @ gradient


@pytest.mark.parametrize("inside", [False, True])
def test_gradients_are_computed_as_exactly_as_values(level, inside, monkeypatch):
    monkeypatch.setattr(Seen, "notes", [])
    first, second = numbers(3, 4), numbers(4, 5, seed=1)
    with full_precision(first) if inside else torch.enable_grad():
        made = precision._exactly(Seen.apply, first, second)
    assert torch.get_float32_matmul_precision() == level
    made.square().sum().backward()
    assert set(Seen.notes) == {"highest"}
    assert torch.get_float32_matmul_precision() == level
    assert torch.backends.cudnn.allow_tf32 is True
    expected = torch.autograd.grad((first @ second).square().sum(), (first, second))
    torch.testing.assert_close((first.grad, second.grad), expected, rtol=2e-2, atol=2e-2)


def with_gradients(function, *tensors):
    made = function(*tensors)
    return [made.detach(), *torch.autograd.grad(made.sin().sum(), tensors)]


@pytest.mark.parametrize(
    ("function", "reference", "shapes"),
    [
        (product, torch.matmul, [(2, 30, 40), (40, 50)]),
        (linear, F.linear, [(6, 40), (50, 40), (50,)]),
        (
            pointwise,
            lambda maps, weight, bias: F.conv2d(maps, weight[:, :, None, None], bias),
            [(2, 40, 5, 6), (30, 40), (30,)],
        ),
    ],
)
def test_values_and_gradients_are_torchs_own_at_its_highest(level, function, reference, shapes):
    tensors = [numbers(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    made = with_gradients(function, *tensors)
    torch.set_float32_matmul_precision("highest")
    with torch.no_grad():
        exact = [tensor.double().requires_grad_() for tensor in tensors]
    torch.testing.assert_close([one.double() for one in made], with_gradients(reference, *exact), rtol=1e-4, atol=1e-4)
    assert all(map(torch.equal, made, with_gradients(function, *tensors)))


def test_only_what_needs_a_gradient_gets_one(level):
    weight, bias = numbers(4, 3), numbers(4, seed=1)
    linear(numbers(2, 3).detach(), weight, bias).sum().backward()
    torch.testing.assert_close(bias.grad, torch.full((4,), 2.0))
    linear(numbers(2, 3), weight.detach(), None).sum().backward()


def test_nothing_of_the_prototypes_is_rounded(level):
    """Every value and gradient is the same bits whatever torch's precision is, also under autocast."""
    layers = DAP(**SIZES)
    output = Output(logits=None, embedding=numbers(2, 6, 8, 8), shallow=numbers(2, 5, 8, 8), deep=numbers(2, 7, 4, 4))
    anchors = F.normalize(numbers(3, 4, seed=5).detach(), dim=1)

    def everything():
        layers.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            prototypes = layers(output, anchors)
            near = cosines(layers.embed(output.embedding), prototypes.dap)
        near.square().sum().backward()
        return [near.detach(), *(parameter.grad for parameter in layers.parameters() if parameter.grad is not None)]

    made = everything()
    assert len(made) > 8
    assert all(one.dtype == torch.float32 for one in made)
    torch.set_float32_matmul_precision("highest")
    assert all(map(torch.equal, made, everything()))
