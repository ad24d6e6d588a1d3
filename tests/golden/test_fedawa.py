"""Golden numbers of FedAWA through its hooks: weights, logits and aggregates of every round."""

import numpy as np
import pytest
import torch
from torch import nn

from fedrs_lightning.methods.fedawa import FedAWA, measure
from fedrs_lightning.types import Client, Upload

from .test_golden import Network, cases


class Flat(nn.Module):
    """One trainable vector and one buffer."""

    def __init__(self, values, buffer):
        super().__init__()
        self.vector = nn.Parameter(torch.tensor(values, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(buffer, dtype=torch.float64))


@pytest.mark.parametrize(("case", "tolerance"), cases("fedawa"))
def test_fedawa(case, tolerance):
    inputs, params = case["inputs"], case["params"]
    options = {
        "optimizer": params["optimizer"],
        "lr": params["lr"],
        "server_steps": params["server_epochs"],
        "betas": tuple(params["betas"]),
        "momentum": params["momentum"],
        "weight_decay": params["weight_decay"],
        "gamma": params["gamma"],
        "distance": params["distance"],
    }
    method, late = FedAWA(**options), FedAWA(**options, use_weights="after_last_step")
    task = Network(Flat(inputs["global_flat_init"], len(inputs["rounds"][0]["client_running_mean"][0])))
    clients = [Client(k, samples) for k, samples in enumerate(inputs["num_samples"])]
    server = {key: value.detach().clone() for key, value in task.model_state().items()} | method.init_server(
        task, clients
    )
    np.testing.assert_allclose(server["fedawa/logits"], inputs["t_init"], **tolerance)
    for given, wanted in zip(inputs["rounds"], case["outputs"]["rounds"], strict=True):
        uploads = [
            Upload(
                client,
                {
                    "model/vector": torch.tensor(vector, dtype=torch.float64),
                    "model/mean": torch.tensor(mean, dtype=torch.float64),
                },
                parameters=("model/vector",),
            )
            for client, vector, mean in zip(clients, given["client_flat"], given["client_running_mean"], strict=True)
        ]
        geometry = measure(server, uploads, ["model/vector"])
        value = method.objective(torch.tensor(wanted["t_before"], dtype=torch.float64), geometry)
        np.testing.assert_allclose(value, wanted["steps"][0]["total"], **tolerance)
        np.testing.assert_allclose(late.weights(server, uploads), wanted["probability_of_t_after"], **tolerance)
        server = method.aggregate(server, uploads)
        np.testing.assert_allclose(
            [upload.log["weight"] for upload in uploads], wanted["aggregation_weights_used"], **tolerance
        )
        np.testing.assert_allclose(server["fedawa/logits"], wanted["t_after"], **tolerance)
        np.testing.assert_allclose(server["model/vector"], wanted["aggregated_flat"], **tolerance)
        np.testing.assert_allclose(server["model/mean"], wanted["aggregated_running_mean"], **tolerance)
