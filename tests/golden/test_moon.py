"""Golden numbers of MOON through its hooks. The network looks its features and logits up, in the state it is called
with.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedrs_lightning.methods.moon import MOON
from fedrs_lightning.tasks.base import Task
from fedrs_lightning.types import Client, Local, Output

from .test_golden import cases


def double(values):
    return torch.tensor(values, dtype=torch.float64)


class Given(nn.Module):
    """Features and logits are parameters."""

    def __init__(self, z, logits):
        super().__init__()
        self.z, self.logits = nn.Parameter(z), nn.Parameter(logits)

    def forward(self, image):
        return Output(self.logits, self.z)


class GivenTask(Task):
    def __init__(self, z, logits):
        super().__init__()
        self.model = Given(z, logits)

    def criterion(self, output, batch):
        return F.cross_entropy(output.logits, batch["label"])

    metric = update = scores = criterion


@pytest.mark.parametrize(("case", "tolerance"), cases("moon"))
def test_moon(case, tolerance):
    inputs, params, outputs = case["inputs"], case["params"], case["outputs"]
    logits, previous = double(inputs["logits"]), inputs["z_previous"]
    task = GivenTask(double(inputs["z_local"]), logits)
    method = MOON(params["mu"], params["temperature"], projection=False, buffer=max(1, len(previous)))
    memory = {}
    for number, z in enumerate(previous):
        memory |= {f"moon/previous/{number}/model/z": double(z), f"moon/previous/{number}/model/logits": logits}
    local = Local(
        Client(0, 1),
        1,
        task,
        {"model/z": double(inputs["z_global"]), "model/logits": logits},
        memory,
        1,
        optimizer=None,
        fabric=None,
        batches=None,
    )
    method.on_local_start(local)
    batch = {"image": torch.zeros(len(logits), 1), "label": torch.tensor(inputs["labels"])}
    terms = method.loss(local, batch, task(batch["image"]))
    np.testing.assert_allclose(terms["task"].item(), outputs["ce"], **tolerance)
    np.testing.assert_allclose(terms["contrast"].item(), outputs["contrastive_times_mu"], **tolerance)
    total = terms["task"] + terms["contrast"]
    np.testing.assert_allclose(total.item(), outputs["total"], **tolerance)
    total.backward()
    np.testing.assert_allclose(task.model.z.grad, outputs["grad_z_local"], **tolerance)
    np.testing.assert_allclose(task.model.logits.grad, outputs["grad_logits"], **tolerance)
