"""Golden numbers of FedGPS through its hooks."""

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn

from fedrs_lightning.methods.fedgps import FedGPS
from fedrs_lightning.tasks.base import Task
from fedrs_lightning.types import Client, Local, Output, Upload

from .test_golden import cases


class Tensors(nn.Module):
    """A network of given tensors, which classifies nothing."""

    def __init__(self, values):
        super().__init__()
        self.tensors = nn.ParameterList([nn.Parameter(value) for value in values])

    def forward(self, image):
        return Output(torch.zeros(len(image), 2), torch.zeros(len(image), 2))


class Quartic(Task):
    """The loss of the golden cases: the sum of (parameter - target)^4."""

    def __init__(self, values, targets=None):
        super().__init__()
        self.model, self.targets, self.seen = Tensors(values), targets, []

    def criterion(self, output, batch):
        if self.targets is None:
            return output.logits.sum() * 0
        self.seen.append([value.detach().clone() for value in self.model.tensors])
        return sum(
            (value - target).pow(4).sum() for value, target in zip(self.model.tensors, self.targets, strict=True)
        )

    metric = update = scores = criterion


def visit(task, received, memory=None, client=0, learning_rate=0.01):
    fabric = L.Fabric(accelerator="cpu", devices=1)
    optimizer = torch.optim.SGD(task.parameters(), lr=learning_rate)
    return Local(Client(client, 1), 2, task, received, memory or {}, 1, optimizer, fabric, batches=None)


def surrogates(prototypes):
    """The parts of a download that the losses read; the last entry keeps class prototypes."""
    return {
        "fedgps/share": torch.zeros(1, dtype=torch.float64),
        "fedgps/prototypes": prototypes,
        "fedgps/seen": torch.ones(len(prototypes), dtype=torch.bool),
    }


@pytest.mark.parametrize(("case", "tolerance"), cases("fedgps", "alignment"))
def test_alignment(case, tolerance):
    inputs, params, outputs, tolerance = case["inputs"], case["params"], case["outputs"], tolerance["alignment"]
    classes, count = params["num_classes"], len(inputs["real_labels"])
    method = FedGPS(
        temperature=params["temperature"],
        class_weight=params["class_weight"],
        surrogate_weight=params["surrogate_weight"],
        clip=None,
    )
    prototypes = torch.tensor([inputs["global_surrogate_prototypes"][str(classes + c)] for c in range(classes)])
    local = visit(Quartic([torch.zeros(1)]), surrogates(prototypes))
    method.on_local_start(local)
    features = torch.tensor(inputs["real_features"] + inputs["surrogate_features"], requires_grad=True)
    batch = {
        "label": torch.tensor(inputs["real_labels"]),
        "surrogate": torch.tensor(inputs["surrogate_labels_shifted"]) - classes,
    }
    assert len(batch["label"]) == count
    terms = method.loss(local, batch, Output(torch.zeros(len(features), 2 * classes), features))
    np.testing.assert_allclose(terms["contrast"].item(), outputs["supcon_all"], **tolerance)
    np.testing.assert_allclose(
        terms["surrogate_contrast"].item(), method.surrogate_weight * outputs["supcon_surrogate"], **tolerance
    )
    total = terms["contrast"] + terms["surrogate_contrast"]
    np.testing.assert_allclose(total.item(), outputs["alignment_total"], **tolerance)
    np.testing.assert_allclose(
        torch.autograd.grad(total, features, retain_graph=True)[0], outputs["grad_features"], **tolerance
    )
    mse = terms["prototype"] / method.prototype_weight
    np.testing.assert_allclose(mse.item(), outputs["prototype_mse"], **tolerance)
    gradient = torch.autograd.grad(mse, features)[0]
    np.testing.assert_allclose(gradient, outputs["grad_prototype_mse"], **tolerance)


@pytest.mark.parametrize("when", ["not_in_previous_round", "in_previous_round"])
@pytest.mark.parametrize(("case", "tolerance"), cases("fedgps", "path"))
def test_path(case, tolerance, when):
    params, expected, tolerance = case["params"], case["outputs"][when], tolerance["path"]
    given = {
        name: [torch.tensor(value, dtype=torch.float64) for value in values] for name, values in case["inputs"].items()
    }
    share = 1 / params["clients_per_round"] if when == "in_previous_round" else 0.0
    for clip in (None, params["max_norm"]):
        task = Quartic([value.clone() for value in given["params"]], given["quartic_target"])
        keys = [f"model/tensors.{number}" for number in range(len(given["params"]))]
        received = {"fedgps/share": torch.tensor([share], dtype=torch.float64)}
        received |= {f"fedgps/update/{key}": value for key, value in zip(keys, given["global_update"], strict=True)}
        own = {f"fedgps/own/{key}": value for key, value in zip(keys, given["own_previous_update"], strict=True)}
        method = FedGPS(surrogate=None, rho=params["rho"], clip=clip)
        local = visit(task, received, own, learning_rate=params["lr"])
        method.on_local_start(local)
        length = sum(np.linalg.norm(value) for value in expected["direction"])
        for value, wanted in zip(local.scratch["fedgps/direction"], expected["direction"], strict=True):
            np.testing.assert_allclose(value * length, wanted, **tolerance)
        method.local_step(local, {"image": torch.zeros(2, 1), "label": torch.tensor([0, 1])})
        (perturbed,) = task.seen
        for value, wanted in zip(perturbed, expected["perturbed"], strict=True):
            np.testing.assert_allclose(value, wanted, **tolerance)
        if clip is None:
            for number, (value, wanted) in enumerate(
                zip(task.model.tensors, expected["gradient_at_perturbed"], strict=True)
            ):
                np.testing.assert_allclose(value.grad, wanted, **tolerance)
                np.testing.assert_allclose(
                    value.detach() + params["lr"] * value.grad, expected["restored"][number], **tolerance
                )
        else:
            for value, wanted in zip(task.model.tensors, expected["after_sgd"], strict=True):
                np.testing.assert_allclose(value.detach(), wanted, **tolerance)


@pytest.mark.parametrize(("case", "tolerance"), cases("fedgps", "prototypes"))
def test_prototypes(case, tolerance):
    outputs, tolerance = case["outputs"], tolerance["prototypes"]
    classes, width = len(outputs["global_"]), len(outputs["global_"]["0"])
    method, uploads = FedGPS(clip=None), []
    for client, features in case["inputs"]["surrogate_features"].items():
        local = visit(
            Quartic([torch.zeros(1)]), surrogates(torch.zeros(classes, width, dtype=torch.float64)), client=int(client)
        )
        method.on_local_start(local)
        for (
            kind,
            rows,
        ) in features.items():  # a batch a class: one real image, whose feature is the first row, and the surrogates
            both = torch.tensor([rows[0], *rows], dtype=torch.float64)
            batch = {"label": torch.zeros(1, dtype=torch.int64), "surrogate": torch.full((len(rows),), int(kind))}
            method.loss(local, batch, Output(torch.zeros(len(both), 2 * classes), both))
        sent = method.upload(local)
        for kind, wanted in outputs["local"][client].items():
            np.testing.assert_allclose(sent["fedgps/prototypes"][int(kind)], wanted, **tolerance)
        assert sent["fedgps/counts"].tolist() == [len(features.get(str(kind), [])) for kind in range(classes)]
        uploads.append(Upload(local.client, sent | {"model/x": torch.zeros(1)}))
    server = {
        "model/x": torch.zeros(1),
        "fedgps/clients": torch.arange(len(uploads)),
        "fedgps/shares": torch.zeros(len(uploads), dtype=torch.float64),
        "fedgps/prototypes": torch.zeros(classes, width, dtype=torch.float64),
        "fedgps/seen": torch.zeros(classes, dtype=torch.bool),
    }
    after = method.aggregate(server, uploads)
    assert bool(after["fedgps/seen"].all())
    for kind, wanted in outputs["global_"].items():
        np.testing.assert_allclose(after["fedgps/prototypes"][int(kind)], wanted, **tolerance)
