"""Several labels an image: scores under every protocol against scikit-learn, on one rank and on two."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods import FedAvg, FedBN

from .conftest import SIZES, make_several, multilabel_task
from .test_evaluate import composed


def predicted(model, federation, indices):
    """Logits and labels of these samples, flattened: what micro mAP ranks."""
    batch = federation.transform(federation.source.gather(indices), None)
    with torch.no_grad():
        return model.eval()(batch["image"]).logits.ravel().numpy(), batch["label"].ravel().numpy()


def precision(pairs):
    scores, labels = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return average_precision_score(labels, scores)


@pytest.mark.parametrize("method", [FedAvg, FedBN])
def test_protocols(method, tiny_run, tmp_path):
    federation = make_several(never=[2], validation=12)
    kept = {}
    options = {"federation": federation, "num_rounds": 2, "make_task": multilabel_task}
    one = tiny_run(method, path=tmp_path / "run", **options)
    two = tiny_run(method, world_size=2, **options)
    assert (two.digest, two.history, two.clients) == (one.digest, one.history, one.clients)
    tiny_run(method, path=tmp_path / "run", before=lambda engine: kept.update(engine=engine), **options)
    engine, record = kept["engine"], one.history[-1]
    assert engine.headline == "personal_own/micro_map_pooled"
    metrics = record["metrics"]
    models = [composed(engine, client) for client in range(len(SIZES))]
    own = [predicted(model, federation, split.test) for model, split in zip(models, federation.clients, strict=True)]
    common = [precision([predicted(model, federation, federation.test)]) for model in models]
    each = np.array([precision([pair]) for pair in own])
    assert metrics["personal_own/micro_map_pooled"] == pytest.approx(precision(own), abs=1e-12)
    assert metrics["personal_own/micro_map"] == pytest.approx(each.mean(), abs=1e-12)
    assert metrics["personal_own/micro_map_weighted"] == pytest.approx(each @ SIZES / sum(SIZES), abs=1e-12)
    assert metrics["personal_common/micro_map"] == pytest.approx(np.mean(common), abs=1e-12)
    assert ("global/micro_map" in metrics) == (method is FedAvg)
    assert {name for name in metrics if name.startswith("personal_own/ap/")} == {
        f"personal_own/ap/{name}{suffix}" for name in ("crop", "forest, mixed", "water") for suffix in ("", "_pooled")
    }
    # nothing but plain numbers in the log: the gathered scores stay out of it
    assert record["counts"] == {}
    assert set(record["absent_classes"]) == {name.partition("/")[0] for name in metrics} - {"train"}
    assert record["absent_classes"]["personal_own"] == ["sand"]
    rows = [row for row in one.clients if row.get("protocol") == "personal_own" and row["round"] == 2]
    assert [row["micro_map"] for row in rows] == pytest.approx(each, abs=1e-12)
    assert all(row["absent_classes"] == ["sand"] for row in rows)


def test_a_run_without_test_data_is_refused_before_it_trains(tiny_run, tmp_path):
    with pytest.raises(ConfigError, match="no test data for personal_own, which this run reports"):
        tiny_run(FedAvg, federation=make_several(test=0), make_task=multilabel_task, path=tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.jsonl"))


def test_a_client_whose_test_data_show_nothing_has_no_score(tiny_run):
    federation = make_several()
    federation.source.labels[federation.clients[1].test] = 0
    outcome = tiny_run(FedAvg, federation=federation, num_rounds=1, make_task=multilabel_task)
    rows = {row["client"]: row for row in outcome.clients if row.get("protocol") == "personal_own"}
    assert [client for client in rows if "micro_map" not in rows[client]] == [1, 4]  # these two share their test data
    assert rows[1]["absent_classes"] == ["crop", "forest, mixed", "sand", "water"]
    having = [row["micro_map"] for client, row in rows.items() if client not in (1, 4)]
    assert outcome.history[0]["metrics"]["personal_own/micro_map"] == pytest.approx(np.mean(having), abs=1e-12)
