"""The engine against loops that know nothing of it, bit for bit."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedrs_lightning.data import ClientLoader
from fedrs_lightning.methods import FedAvg, FedBN, FedMAD
from fedrs_lightning.nn.modulation import Modulation, insert_modulation
from fedrs_lightning.nn.surgery import keys_of
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks import ClassificationTask

from .conftest import CLASSES, SIZES, make_federation


def plain_model(seed: int) -> torch.nn.Module:
    with rng_stream(seed, "model"):
        return ClassificationTask("resnet18", CLASSES, 3, width=4, stem="small").model


def plain_epochs(model: torch.nn.Module, client: int, round: int, seed: int, epochs: int) -> None:
    loader = ClientLoader(make_federation(), 8, None, seed, "cpu")
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.train()
    for epoch in range(epochs):
        for batch in loader.epoch(client, round, epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(batch["image"]).logits, batch["label"]).backward()
            optimizer.step()


def test_one_client_for_one_round_is_a_plain_loop(tiny_run):
    federation = make_federation(sizes=(23,))
    outcome = tiny_run(FedAvg, federation=federation, num_rounds=1, local_epochs=2, clients_per_round=None)
    model = plain_model(3)
    loader = ClientLoader(federation, 8, None, 3, "cpu")
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(2):
        for batch in loader.epoch(0, 1, epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(batch["image"]).logits, batch["label"]).backward()
            optimizer.step()
    for name, value in model.state_dict().items():
        assert torch.equal(outcome.server[f"model/{name}"], value), (
            name,
            (outcome.server[f"model/{name}"] - value).abs().max(),
        )


def test_federated_averaging_is_a_short_loop(tiny_run):
    outcome = tiny_run(FedAvg, num_rounds=2, clients_per_round=None)
    model = plain_model(3)
    server = {name: value.clone() for name, value in model.state_dict().items()}
    order = (1, 4, 0, 2, 3, 5)  # most optimiser steps first, then by id
    for round in (1, 2):
        uploads = []
        for client in order:
            model.load_state_dict(server)
            plain_epochs(model, client, round, 3, epochs=1)
            uploads.append({name: value.clone() for name, value in model.state_dict().items()})
        for name, value in server.items():
            if value.is_floating_point():
                total = sum(
                    SIZES[client] * upload[name].double() for client, upload in zip(order, uploads, strict=True)
                )
                mean = total / sum(SIZES)
                server[name] = mean.float()
            else:
                server[name] = torch.stack([upload[name] for upload in uploads]).amax(0)
    for name, value in server.items():
        assert torch.equal(outcome.server[f"model/{name}"], value), (
            name,
            (outcome.server[f"model/{name}"] - value).abs().max(),
        )


class ModulatedFedBN(FedBN):
    """FedBN plus private modulation under sample weights: what FedMAD is at power 0."""

    def adapt(self, task):
        super().adapt(task)
        insert_modulation(task.model, 4, "pre_block")

    def private_keys(self, task):
        return keys_of(task, _BatchNorm, Modulation)


@pytest.mark.parametrize(
    ("method", "reference"),
    [(partial(FedMAD, num_layers=0), FedBN), (partial(FedMAD, power=0.0), ModulatedFedBN)],
    ids=["no-layers", "power-0"],
)
def test_fedmad_without_its_parts_is_what_remains(method, reference, tiny_run):
    ours, theirs = tiny_run(method), tiny_run(reference)
    assert ours.digest_model == theirs.digest_model
    weights = [row["weight"] for row in ours.clients if row["phase"] == "train"]
    assert weights == [row["weight"] for row in theirs.clients if row["phase"] == "train"]
    if method.keywords.get("num_layers") == 0:
        assert ours.digest == theirs.digest


def test_fedmad_differs_and_logs_scores_and_weights(tiny_run):
    ours = tiny_run(FedMAD)
    assert ours.digest_model != tiny_run(ModulatedFedBN).digest_model
    rows = [row for row in ours.clients if row["phase"] == "train"]
    assert len(rows) == 3 * 4
    assert all(-1 <= row["fedmad/score"] <= 1 for row in rows)
    for round in (1, 2, 3):
        assert sum(row["weight"] for row in rows if row["round"] == round) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("buffers", ["mean", "keep_server", "keep_client"])
def test_buffer_rules(buffers, tiny_run):
    outcome = tiny_run(partial(FedAvg, buffers=buffers))
    shared = {key for key in outcome.server if "running_mean" in key}
    assert bool(shared) == (buffers != "keep_client")
    untouched = [key for key in shared if not outcome.server[key].any()]
    assert bool(untouched) == (buffers == "keep_server")
    counters = [value for key, value in outcome.server.items() if "num_batches_tracked" in key]
    assert all(value.dtype == torch.int64 for value in counters)


def test_a_loss_method_runs_its_network_once_per_batch(tiny_run):
    calls = []

    def count(engine):
        engine.task.model.register_forward_hook(lambda *_: calls.append(engine.task.training))

    outcome = tiny_run(FedMAD, before=count)
    assert sum(calls) == sum(row["num_steps"] for row in outcome.clients if row["phase"] == "train")
