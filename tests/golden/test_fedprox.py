"""Golden numbers of FedProx through its hooks: gradients after one step of learning rate 0, penalty from the client
log.
"""

import numpy as np
import pytest
import torch

from fedrs_lightning.methods.fedprox import FedProx

from .linear import linear_visit
from .test_golden import cases


@pytest.mark.parametrize(("case", "tolerance"), cases("fedprox"))
def test_fedprox(case, tolerance):
    inputs, outputs = case["inputs"], case["outputs"]
    method = FedProx(mu=case["params"]["mu"])
    local, batch = linear_visit(inputs, inputs["global_weight"], inputs["global_bias"])
    method.on_local_start(local)
    with torch.no_grad():
        local.task.model.fc.weight.copy_(torch.tensor(inputs["weight"], dtype=torch.float64))
        local.task.model.fc.bias.copy_(torch.tensor(inputs["bias"], dtype=torch.float64))
    terms = method.local_step(local, batch)
    method.on_local_end(local)
    np.testing.assert_allclose(terms["task"], outputs["ce"], **tolerance)
    np.testing.assert_allclose(local.log["fedprox/penalty"], outputs["prox_term"], **tolerance)
    np.testing.assert_allclose(float(terms["task"]) + local.log["fedprox/penalty"], outputs["total"], **tolerance)
    np.testing.assert_allclose(local.task.model.fc.weight.grad, outputs["grad_weight"], **tolerance)
    np.testing.assert_allclose(local.task.model.fc.bias.grad, outputs["grad_bias"], **tolerance)
