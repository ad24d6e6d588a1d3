"""Golden numbers of FPL through its hooks: clusters of the server step, both terms and their gradient."""

import numpy as np
import pytest
import torch

from fedrs_lightning.methods.fpl import FPL, cluster_means
from fedrs_lightning.nn.clustering import finch
from fedrs_lightning.types import Client, Local, Output, Upload

from .test_fedproto import Classifier
from .test_golden import cases


def single(values):
    return torch.tensor(values, dtype=torch.float32)


def as_set(rows):
    return sorted(map(tuple, np.asarray(rows).tolist()))


@pytest.mark.parametrize(("case", "tolerance"), cases("fpl"))
def test_fpl(case, tolerance):
    inputs, outputs = case["inputs"], case["outputs"]
    method = FPL(temperature=case["params"]["temperature"])
    dimension, classes = len(inputs["features"][0]), len(outputs["unbiased_prototypes"])
    server = {"fpl/prototypes": torch.zeros(0, dimension), "fpl/classes": torch.zeros(0, dtype=torch.int64)}
    uploads = []
    for number, given in enumerate(inputs["local_prototypes"]):
        means, held = torch.zeros(classes, dimension), torch.zeros(classes, dtype=torch.bool)
        for name, value in given.items():
            means[int(name)], held[int(name)] = single(value), True
        uploads.append(Upload(Client(number, 1), {"fpl/prototypes": means, "fpl/held": held}))
    state = method.aggregate(server, uploads)
    for number, expected in outputs["cluster_prototypes"].items():
        found = state["fpl/prototypes"][state["fpl/classes"] == int(number)]
        np.testing.assert_allclose(as_set(found), as_set(expected), **tolerance)
    for number, expected in outputs["finch"].items():
        points = torch.stack([single(inputs["local_prototypes"][client][number]) for client in expected["clients"]])
        partitions, same = finch(points), torch.tensor(expected["partition_used"])
        assert len(partitions) == len(expected["all_partitions"][0])
        assert torch.equal(partitions[-1][:, None] == partitions[-1], same[:, None] == same)

    features, labels = single(inputs["features"]).requires_grad_(), torch.tensor(inputs["labels"])
    task = Classifier(torch.nn.Identity())
    task.num_classes = classes
    local = Local(Client(0, len(labels)), 2, task, state, {}, 1, optimizer=None, fabric=None, batches=None)
    method.on_local_start(local)
    for number, expected in outputs["unbiased_prototypes"].items():
        np.testing.assert_allclose(local.scratch["fpl/unbiased"][int(number)], expected, **tolerance)
    terms = method.loss(
        local, {"image": features, "label": labels}, Output(torch.zeros(len(labels), classes), features)
    )
    total = terms["contrastive"] + terms["unbiased"]
    total.backward()
    np.testing.assert_allclose(total.item(), outputs["prototype_loss"], **tolerance)
    np.testing.assert_allclose(features.grad, outputs["grad_features"], **tolerance)
    with torch.no_grad():
        each = method.contrastive(features, labels, state["fpl/prototypes"], state["fpl/classes"])
        np.testing.assert_allclose(each, outputs["contrastive_each"], **tolerance)
        each = method.unbiased(features, labels, local.scratch["fpl/unbiased"], local.scratch["fpl/valid"])
        np.testing.assert_allclose(each, outputs["mse_each"], **tolerance)


@pytest.mark.parametrize(("case", "tolerance"), cases("fpl", "finch_only"))
def test_cluster_means(case, tolerance):
    found = cluster_means(torch.tensor(case["inputs"]["points"], dtype=torch.float64))
    np.testing.assert_allclose(as_set(found), as_set(case["outputs"]["cluster_means"]), **tolerance)
