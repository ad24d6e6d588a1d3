"""The pretended device itself: what it can, refuses and counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from .pretended import LEDGER, Refused, There, apart, device

REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "a sum with the CPU": lambda x: x + torch.ones(3),
    "a product with the CPU": lambda x: x @ torch.ones(3, 2),
    "a generator of the CPU": lambda x: torch.rand(3, generator=torch.Generator(), device=x.device),
    "numpy": lambda x: x.numpy(),
    "an array": np.asarray,
    "data of the CPU": lambda x: setattr(nn.Parameter(x), "data", torch.ones(3)),
    "no deterministic kernel": lambda x: torch.histc(x, 4),
    "a loss of maps": lambda x: nn.functional.cross_entropy(x.new_ones(1, 2, 4, 4), x.new_zeros(1, 4, 4).long()),
}
ALLOWED: dict[str, Callable[[Tensor], Tensor]] = {
    "a number": lambda x: x + torch.tensor(2.0),
    "places on the CPU": lambda x: x[torch.tensor([0, 1])],
    "deterministic in that mode": lambda x: x.cumsum(0).index_add(0, x[:1].long() * 0, x[:1]),
}
WAITS: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "item": (lambda x: x.sum().item(), 1),
    "bool": (lambda x: bool(x.any()), 1),
    "tolist": (lambda x: x.tolist(), 1),
    "cpu": (lambda x: x.cpu(), 1),
    "mask": (lambda x: x[x > 0], 1),
    "nonzero": (lambda x: x.nonzero(), 1),
    "list of places": (lambda x: x[[0, 2]], 1),
    "up": (lambda x: torch.ones(3).to(x.device), 1),
    "two entries up": (lambda x: torch._foreach_copy_([x, x], [torch.ones(3), torch.ones(3)]), 2),
    "up without blocking": (lambda x: torch.ones(3).to(x.device, non_blocking=True), 0),
    "fill": (lambda x: x.masked_fill_(x > 0, 2.0).where(x > 1, 0.0), 0),
    "places on the device": (lambda x: x[torch.arange(2, device=x.device)], 0),
    "on the device": (lambda x: torch.zeros_like(x).copy_(x).argsort().sum(), 0),
}


def try_all() -> dict[str, Any]:
    torch.use_deterministic_algorithms(True)
    assert torch.arange(3, device=device())[:0].shape == (0,)
    assert torch.empty(0, device=device()).resize_(2, 3).T.shape == (3, 2)
    found: dict[str, Any] = {"memory": one_run_of_memory(), "autocast": autocast()}
    for call in REFUSED.values():
        values = torch.ones(3, device=device())
        with pytest.raises(Refused):
            call(values)
    one = torch.ones(3, device=device())
    found["allowed"] = [name for name, use in ALLOWED.items() if isinstance(use(one), There)]
    found["waits"] = {}
    for name, (call, _) in WAITS.items():
        x = torch.ones(3, device=device())
        LEDGER.clear()
        call(x)
        found["waits"][name] = sum(LEDGER.waits.values())
    return found


def one_run_of_memory() -> list[float]:
    """Parameters and buffers that are views of one flat tensor: written through either, trained, saved, copied."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(device())
    flat = torch.zeros(20, device=device())
    place = 0
    for value in [*net.parameters(), *(buffer for buffer in net.buffers() if buffer.is_floating_point())]:
        view = flat[place : place + value.numel()].view(value.shape)
        view.copy_(value.detach())
        value.data = view
        place += value.numel()
    weight = net[0].weight
    flat[:6] = 1.0
    assert weight.detach().cpu().tolist() == [[1.0] * 3] * 2
    weight.data.mul_(3)
    torch._foreach_add_([weight.detach()], [torch.ones(2, 3, device=device())])
    assert flat[:6].tolist() == [4.0] * 6
    torch._foreach_copy_([weight.detach(), net[0].bias.detach()], [torch.ones(2, 3), torch.zeros(2)])
    assert flat[:8].tolist() == [1.0] * 6 + [0.0] * 2
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    rows = torch.ones(4, 3, device=device()) * torch.arange(4.0, device=device())[:, None]
    net(rows).pow(3).sum().backward()
    before = flat.cpu()
    optimizer.step()
    assert weight.grad.device == device()
    assert not torch.equal(before[8:12], flat.cpu()[8:12]), "a step shows in the run of memory"
    assert torch.equal(flat.cpu()[12:14], net.state_dict()["1.running_mean"].cpu())
    host = torch.zeros(20)
    host.copy_(flat)
    flat.zero_()
    assert not weight.any()
    flat.copy_(host, non_blocking=True)
    assert torch.equal(weight.detach().cpu(), host[:6].view(2, 3))
    return host.tolist()


def autocast() -> list[str]:
    net, x = nn.Conv2d(2, 3, 1).to(device()), torch.ones(1, 2, 4, 4, device=device())
    with torch.autocast("pretended", torch.bfloat16):
        half = net(x)
        return [str(half.dtype), str(half.sum().dtype), str(torch.linalg.vector_norm(half).dtype)]


def test_the_device():
    """Views of one run of memory serve as parameters; what CUDA refuses is refused; waits are counted; autocast is
    that of CUDA.
    """
    found = apart(try_all)
    assert np.isfinite(found["memory"]).all()
    assert found["allowed"] == list(ALLOWED)
    assert found["waits"] == {name: count for name, (_, count) in WAITS.items()}
    assert found["autocast"] == ["torch.bfloat16", "torch.float32", "torch.float32"]


def test_what_goes_wrong_there_is_told():
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        apart(divide, 0)


def divide(by: int) -> float:
    return 1 / by
