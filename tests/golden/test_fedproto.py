"""Golden numbers of FedProto through its hooks: loss, local prototypes, server step."""

import numpy as np
import pytest
import torch

from fedrs_lightning.methods.fedproto import FedProto
from fedrs_lightning.types import Client, Local, Output, Upload

from .test_feddap import tensor
from .test_golden import Network, cases


class Classifier(Network):
    """A task whose loss is the cross-entropy of given logits."""

    def criterion(self, output, batch):
        return torch.nn.functional.cross_entropy(output.logits, batch["label"])


def visit(method, received, num_samples):
    local = Local(
        Client(0, num_samples),
        2,
        Classifier(torch.nn.Identity()),
        received,
        {},
        1,
        optimizer=None,
        fabric=None,
        batches=None,
    )
    method.on_local_start(local)
    return local


def table(prototypes, shape):
    """Prototypes by class as entries of the server state."""
    values, valid = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape[0], dtype=torch.bool)
    for name, value in prototypes.items():
        values[int(name)], valid[int(name)] = tensor(value), True
    return {"fedproto/prototypes": values, "fedproto/valid": valid}


@pytest.mark.parametrize(("case", "tolerance"), cases("fedproto"))
def test_fedproto(case, tolerance):
    inputs, outputs = case["inputs"]["loss"], case["outputs"]
    method = FedProto(weight=case["params"]["lambda_"])
    shape = (np.shape(inputs["logits"])[1], np.shape(inputs["features"])[1])
    for prototypes, expected in (
        (inputs["global_prototypes"], outputs["loss"]),
        ({}, outputs["loss_without_prototypes"]),
    ):
        logits, features = tensor(inputs["logits"]).requires_grad_(), tensor(inputs["features"]).requires_grad_()
        local = visit(method, table(prototypes, shape), len(features))
        batch = {"image": features, "label": torch.tensor(inputs["labels"])}
        terms = method.loss(local, batch, Output(logits, features))
        sum(terms.values()).backward()
        np.testing.assert_allclose(terms["task"].item(), expected["ce"], **tolerance)
        np.testing.assert_allclose(terms["prototype"].item(), method.weight * expected["proto_mse"], **tolerance)
        np.testing.assert_allclose(sum(terms.values()).item(), expected["total"], **tolerance)
        if "grad_features" in expected:
            np.testing.assert_allclose(features.grad, expected["grad_features"], **tolerance)
            np.testing.assert_allclose(logits.grad, expected["grad_logits"], **tolerance)

    uploads, server = [], table({}, shape)
    for number, (features_of, prototypes) in enumerate(
        zip(case["inputs"]["client_features"].values(), outputs["local_prototypes"], strict=True)
    ):
        rows = torch.cat([tensor(rows) for rows in features_of.values()])
        labels = torch.tensor([int(name) for name, rows in features_of.items() for _ in rows])
        local = visit(method, server, len(rows))
        for epoch in range(2):  # the first one does not count
            for part in (slice(0, 1), slice(1, None)):
                if len(rows[part]):
                    output = Output(
                        torch.zeros(len(rows[part]), shape[0], dtype=torch.float64), rows[part] * (epoch or 3)
                    )
                    method.loss(local, {"image": rows[part], "label": labels[part]}, output)
        uploads.append(Upload(Client(number, len(rows)), method.upload(local)))
        for name, value in prototypes.items():
            np.testing.assert_allclose(uploads[-1].state["fedproto/prototypes"][int(name)], value, **tolerance)
    state = method.aggregate(server, uploads)
    expected = table(outputs["global_prototypes"], shape)
    torch.testing.assert_close(state["fedproto/prototypes"], expected["fedproto/prototypes"], **tolerance)
    assert torch.equal(state["fedproto/valid"], expected["fedproto/valid"])
