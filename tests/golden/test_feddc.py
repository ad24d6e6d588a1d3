"""Golden numbers of FedDC through its hooks."""

import numpy as np
import pytest
import torch
from torch import nn

from fedrs_lightning.methods.feddc import FedDC
from fedrs_lightning.nn.trainable import trainable
from fedrs_lightning.types import Client, Local, Upload

from .linear import linear_visit
from .test_golden import Network, cases


def split(flat, task):
    """Entries of a flat vector by state key."""
    parameters, vector, found = trainable(task), torch.tensor(flat, dtype=torch.float32), {}
    for key, part in zip(parameters, vector.split([p.numel() for p in parameters.values()]), strict=True):
        found[key] = part.view(parameters[key].shape)
    return found


def flat(state, task, prefix=""):
    return torch.cat([state[prefix + key].detach().reshape(-1) for key in trainable(task)])


@pytest.mark.parametrize(("case", "tolerance"), cases("feddc", "local_loss"))
def test_local_loss(case, tolerance):
    inputs, params, outputs = case["inputs"], case["params"], case["outputs"]
    logged = {}
    for learning_rate in (0.0, params["lr"]):
        method = FedDC(alpha=params["alpha"], clip=params["max_norm"])
        local, batch = linear_visit(inputs, inputs["weight"], inputs["bias"], learning_rate, torch.float32)
        task = local.task
        for name, values in (("feddc/drift/", "drift_h"), ("feddc/state/", "local_state")):
            local.memory |= {name + key: value for key, value in split(inputs[values], task).items()}
        local.received |= {f"feddc/state/{key}": value for key, value in split(inputs["global_state"], task).items()}
        local.received["feddc/size"] = torch.ones(1, dtype=torch.float64)
        with torch.no_grad():
            for key, value in split(inputs["global_flat"], task).items():
                trainable(task)[key].copy_(value)
        method.on_local_start(local)
        with torch.no_grad():
            for key, value in split(inputs["theta_flat"], task).items():
                trainable(task)[key].copy_(value)
        terms = method.local_step(local, batch)
        method.on_local_end(local)
        logged = logged or local.log | {"ce": float(terms["task"])}
    np.testing.assert_allclose(flat(task.model_state(), task), outputs["theta_after_one_sgd_step"], **tolerance)
    np.testing.assert_allclose(logged["ce"], outputs["ce"], **tolerance)
    np.testing.assert_allclose(logged["feddc/penalty"], outputs["penalty"], **tolerance)
    np.testing.assert_allclose(logged["feddc/correction"], outputs["correction"], **tolerance)
    np.testing.assert_allclose(sum(logged.values()), outputs["total"], **tolerance)


@pytest.mark.parametrize(("case", "tolerance"), cases("feddc", "rounds"))
def test_rounds(case, tolerance):
    inputs, params, expected = case["inputs"], case["params"], case["outputs"]["rounds"]
    method = FedDC(alpha=params["alpha_coef"])
    size = len(inputs["initial_flat"])
    task = Network(nn.ParameterDict({"flat": torch.zeros(size)}))
    clients = [Client(k, samples) for k, samples in enumerate(params["num_samples"])]
    server = split(inputs["initial_flat"], task) | method.init_server(task, clients)
    memories = {client.id: {} for client in clients}
    for visits, wanted in zip(inputs["rounds"], expected, strict=True):
        uploads = []
        for visit in visits:
            client, before = (
                clients[visit["client"]],
                next(row for row in wanted["before_training"] if row["client"] == visit["client"]),
            )
            received = method.download(server, client.id)
            optimizer = torch.optim.SGD(task.parameters(), lr=params["lr"])
            local = Local(
                client,
                1,
                task,
                received,
                memories[client.id],
                params["minibatches_per_round"],
                optimizer,
                fabric=None,
                batches=None,
            )
            with torch.no_grad():
                for key, parameter in trainable(task).items():
                    parameter.copy_(received[key])
            np.testing.assert_allclose(flat(received, task), before["global_flat"], **tolerance)
            quotient = float(received["feddc/size"])
            np.testing.assert_allclose(params["alpha_coef"] / quotient, before["alpha"], **tolerance)
            np.testing.assert_allclose(
                flat(received, task, "feddc/state/") / quotient, before["global_state_used"], **tolerance
            )
            for name, values in (("feddc/drift/", "drift_h"), ("feddc/state/", "local_state")):
                kept = flat(local.memory, task, name) if local.memory else torch.zeros(size)
                np.testing.assert_allclose(kept, before[values], **tolerance)
            method.on_local_start(local)
            with torch.no_grad():
                for key, value in split(visit["trained_flat"], task).items():
                    trainable(task)[key].copy_(value)
            method.on_local_end(local)
            memories[client.id] = local.memory
            uploads.append(
                Upload(
                    client,
                    {key: value.detach().clone() for key, value in task.model_state().items()} | method.upload(local),
                    parameters=tuple(trainable(task)),
                )
            )
        server = method.aggregate(server, uploads)
        np.testing.assert_allclose(flat(server, task), wanted["server_flat_after"], **tolerance)
