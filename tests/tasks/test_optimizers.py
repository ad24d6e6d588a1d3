from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from fedrs_lightning.tasks.optimizers import ReusedOptimizer

MADE = {
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "Adam": partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "AdamW": partial(torch.optim.AdamW, lr=0.01),
    "Adam, learning rate a tensor": partial(torch.optim.Adam, lr=torch.tensor(0.01)),
}


def train(net, optimizer):
    """Three steps from the same values, after which a schedule has changed an option of each group."""
    with torch.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter) + number)
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        net(torch.linspace(0, 1 + step, 12).view(4, 3)).square().sum().backward()
        optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * 0.5
        group["seen"] = True
    return [parameter.detach().clone() for parameter in net.parameters()]


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_a_reused_optimiser_gives_the_bits_of_a_new_one(name, groups):
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def made():
        first, second = list(net[0].parameters()), list(net[2].parameters())
        return MADE[name]([{"params": first}, {"params": second, "lr": 0.05}] if groups else first + second)

    reused = ReusedOptimizer(made())
    expected = train(net, made())
    for _ in range(3):
        optimizer = reused.fresh()
        assert not optimizer.state
        assert all("seen" not in group for group in optimizer.param_groups)
        assert all(torch.equal(*pair) for pair in zip(train(net, optimizer), expected, strict=True))
