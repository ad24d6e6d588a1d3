"""FedProto: through the engine, and its corners."""

from functools import partial

import pytest
import torch

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods import FedProto
from fedrs_lightning.tasks import ClassificationTask, MultilabelTask
from fedrs_lightning.types import Client, Local, Output, Upload

from ..engine.conftest import run
from .checks import CLASSIFICATION, SEGMENTATION, assert_fedavg
from .conftest import small_segmentation_task

KINDS = {"classification": CLASSIFICATION, "segmentation": SEGMENTATION}


@pytest.mark.parametrize("kind", KINDS)
def test_without_its_term_it_is_federated_averaging(kind, tmp_path):
    neutral, full = assert_fedavg(partial(FedProto, weight=0.0), partial(FedProto, weight=1.0), tmp_path, **KINDS[kind])
    assert bool(full.server["fedproto/valid"].all())
    first, *later = [
        row for row in full.clients if row["phase"] == "train" and row["client"] == full.history[0]["cohort"][0]
    ]
    assert first["loss/prototype"] == 0.0
    assert all(row["loss/prototype"] > 0 for row in later)
    assert all(row["loss/prototype"] == 0.0 for row in neutral.clients if row["phase"] == "train")


def test_authors_variant_sends_prototypes_alone(tmp_path):
    outcome = run(partial(FedProto, average_model=False, keep_missing=False), tmp_path, num_rounds=1, **CLASSIFICATION)
    assert not any(key.startswith("model/") for key in outcome.server)
    size = outcome.server["fedproto/prototypes"].numel() * 4 + len(outcome.server["fedproto/valid"]) * 8
    assert outcome.history[0]["bytes"]["up"] == 4 * size


def uploads(*given):
    """Uploads from ([means], [counts]) of each client."""
    return [
        Upload(
            Client(number, 1),
            {"fedproto/prototypes": torch.tensor(means)[:, None], "fedproto/counts": torch.tensor(counts)},
        )
        for number, (means, counts) in enumerate(given)
    ]


def test_server_step_by_hand():
    server = {
        "fedproto/prototypes": torch.tensor([[9.0], [9.0], [9.0]]),
        "fedproto/valid": torch.tensor([True, True, False]),
    }
    sent = uploads(([1.0, 0.0, 0.0], [1, 0, 0]), ([4.0, 0.0, 0.0], [2, 0, 0]))
    state = FedProto(proto_weighting="samples").aggregate(server, sent)
    assert state["fedproto/prototypes"].tolist() == [[3.0], [9.0], [9.0]]
    assert state["fedproto/valid"].tolist() == [True, True, False]
    state = FedProto(keep_missing=False).aggregate(
        server, uploads(([1.0, 0.0, 0.0], [1, 0, 0]), ([4.0, 0.0, 0.0], [1, 0, 0]))
    )
    assert state["fedproto/prototypes"][0].tolist() == [2.5]
    assert state["fedproto/valid"].tolist() == [True, False, False]


def test_pixels_by_hand():
    """Labels at the embedding's resolution; ignored pixels and classes without a prototype do not count; gradients flow
    to embeddings only.
    """
    method, task = FedProto(weight=2.0), small_segmentation_task()
    embedding = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]], requires_grad=True)  # D = 1
    mask = torch.tensor([[[0, 9, 1, 9], [9, 9, 9, 9], [2, 9, 255, 9], [9, 9, 9, 9]]])  # nearest: 0 1 / 2 255
    prototypes = torch.tensor([[2.0], [5.0], [7.0]], requires_grad=True)
    received = {"fedproto/prototypes": prototypes.detach(), "fedproto/valid": torch.tensor([True, True, False])}
    local = Local(Client(0, 1), 2, task, received, {}, 1, optimizer=None, fabric=None, batches=None)
    method.on_local_start(local)
    logits = torch.zeros(1, 3, 4, 4)
    batch = {"image": torch.zeros(1, 3, 4, 4), "mask": torch.where(mask == 9, 255, mask)}
    term = method.loss(local, batch, Output(logits, embedding))["prototype"]
    assert term.item() == 2.0 * ((1 - 2) ** 2 + (2 - 5) ** 2) / 2
    term.backward()
    assert embedding.grad.flatten().tolist() == [2.0 * (1 - 2), 2.0 * (2 - 5), 0.0, 0.0]
    sent = method.upload(local)
    assert sent["fedproto/prototypes"].flatten().tolist() == [1.0, 2.0, 3.0]
    assert sent["fedproto/counts"].tolist() == [1, 1, 1]

    batch["mask"] = torch.full_like(batch["mask"], 255)
    terms = method.loss(local, batch, Output(logits, embedding))
    assert [term.item() for term in terms.values()] == [0.0, 0.0]
    assert method.upload(local)["fedproto/counts"].tolist() == [0, 0, 0]  # a new pass


def test_errors():
    with pytest.raises(ConfigError, match="weight: -1 is not a number of at least 0"):
        FedProto(weight=-1)
    with pytest.raises(ConfigError, match="proto_weighting must be clients or samples, got 'pixels'"):
        FedProto(proto_weighting="pixels")
    with pytest.raises(ConfigError, match="regulariser must be samples or prototypes, got 'both'"):
        FedProto(regulariser="both")
    with pytest.raises(ConfigError, match="weight has no default for segmentation"):
        FedProto().check(small_segmentation_task())
    FedProto().check(ClassificationTask("resnet18", 4, 3, width=4))
    with pytest.raises(ConfigError, match="one class per sample"):
        FedProto().check(MultilabelTask("resnet18", 4, 3, width=4))
    unnamed = ClassificationTask("resnet18", 4, 3, width=4)
    del unnamed.num_classes
    with pytest.raises(ConfigError, match="FedProto needs a task with classes; ClassificationTask has no num_classes"):
        FedProto().check(unnamed)
