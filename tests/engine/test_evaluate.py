"""Protocols against predictions made by hand."""

import numpy as np
import pytest
import torch

from fedrs_lightning.engine.cohort import assign
from fedrs_lightning.methods import FedAvg, FedBN, LocalOnly
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks import ClassificationTask

from .conftest import CLASSES, SIZES, make_federation


def accuracy(model: torch.nn.Module, federation, indices) -> float:
    batch = federation.transform(federation.source.gather(indices), None)
    with torch.no_grad():
        return float((model.eval()(batch["image"]).logits.argmax(1) == batch["label"]).double().mean())


def composed(engine, client: int) -> torch.nn.Module:
    with rng_stream(3, "model"):
        model = ClassificationTask("resnet18", CLASSES, 3, width=4, stem="small").model
    state = {
        name.removeprefix("model/"): value
        for name, value in (engine.server | engine.memory.load(client)).items()
        if name.startswith("model/")
    }
    assert not model.load_state_dict(state, strict=False).unexpected_keys
    return model


@pytest.mark.parametrize(("method", "world_size"), [(FedAvg, 1), (FedBN, 3), (LocalOnly, 1)])
def test_protocols(method, world_size, tiny_run, tmp_path):
    federation = make_federation(own_test=True, validation=12)
    kept = {}

    def remember(engine):
        kept["engine"] = engine

    options = {"federation": federation, "num_rounds": 2, "path": tmp_path / "run"}
    outcome = tiny_run(method, world_size=world_size, **options)
    # A complete run is read back from its own files; nothing is trained again.
    tiny_run(method, before=remember, **options)
    engine = kept["engine"]
    metrics = outcome.history[-1]["metrics"]
    models = {client: composed(engine, client) for client in range(len(SIZES))}
    common = np.array([accuracy(model, federation, federation.test) for model in models.values()])
    own = np.array([accuracy(models[split.id], federation, split.test) for split in federation.clients])
    held = np.array([accuracy(model, federation, federation.validation) for model in models.values()])
    sizes = np.array(SIZES)
    key = "personal_common/overall_accuracy"
    assert metrics[key] == pytest.approx(common.mean(), abs=1e-12)
    assert metrics[f"{key}_weighted"] == pytest.approx(common @ sizes / sizes.sum(), abs=1e-12)
    assert metrics[f"{key}_min"] == pytest.approx(common.min(), abs=1e-12)
    assert metrics["personal_own/overall_accuracy"] == pytest.approx(own.mean(), abs=1e-12)
    counts = np.array([len(split.test) for split in federation.clients])
    assert metrics["personal_own/overall_accuracy_pooled"] == pytest.approx(own @ counts / counts.sum(), abs=1e-12)
    assert metrics["validation/overall_accuracy"] == pytest.approx(held.mean(), abs=1e-12)
    assert ("global/overall_accuracy" in metrics) == (method is FedAvg)
    if method is FedAvg:
        assert metrics["global/overall_accuracy"] == pytest.approx(common[0], abs=1e-12)
    rows = [row for row in outcome.clients if row["phase"] == "evaluate" and row["round"] == 2]
    assert len(rows) == 3 * len(SIZES)
    by_client = {row["client"]: row["overall_accuracy"] for row in rows if row["protocol"] == "personal_own"}
    np.testing.assert_allclose([by_client[client] for client in range(len(SIZES))], own, atol=1e-12)


def test_results_do_not_depend_on_how_often_one_evaluates(tiny_run):
    often, rarely = tiny_run(FedBN, num_rounds=5), tiny_run(FedBN, num_rounds=5, evaluate_every=5)
    assert often.digest == rarely.digest
    assert [record["metrics"].get("personal_common/overall_accuracy") is not None for record in rarely.history] == [
        False
    ] + [True] * 4
    assert often.history[-1] == rarely.history[-1]


def test_longest_first_assignment():
    costs = {0: 3.0, 1: 9.0, 2: 3.0, 3: 5.0, 4: 1.0}
    assert assign(costs, 2) == [[1, 4], [3, 0, 2]]
    assert sorted(client for rank in assign(costs, 8) for client in rank) == [0, 1, 2, 3, 4]
    assert assign({}, 2) == [[], []]
