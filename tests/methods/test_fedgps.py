"""FedGPS: surrogates of any number of bands, 2C outputs, the look-ahead's memory, and FedAvg without its parts."""

from functools import partial
from itertools import pairwise

import lightning as L
import pytest
import torch
from torch.nn import functional as F

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods import FedAvg, FedGPS
from fedrs_lightning.nn.surrogate import class_means, draw, supervised_contrast
from fedrs_lightning.nn.trainable import trainable
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks import ClassificationTask
from fedrs_lightning.types import Client, Local, Output, Upload

from ..engine.conftest import CLASSES, run
from .checks import check_neutral, count_passes, trained
from .conftest import small_segmentation_task

OFF = {"surrogate": None, "rho": 0.0, "class_weight": 0.0, "clip": None, "weighting": "samples"}


def task_of(method, bands=3, kind=ClassificationTask):
    with rng_stream(1, "model"):
        task = kind("resnet18", CLASSES, bands, width=4, stem="small")
    with rng_stream(1, "adapt"):
        method.adapt(task)
    return task


def visit_of(method, task, server, memory=None):
    optimizer, fabric = torch.optim.SGD(task.parameters(), lr=0.1), L.Fabric(accelerator="cpu", devices=1)
    local = Local(
        Client(0, 8), 2, task.train(), method.download(server, 0), memory or {}, 1, optimizer, fabric, batches=None
    )
    method.on_local_start(local)
    return local


def start_of(method, task, num_clients=2):
    clients = [Client(k, 8) for k in range(num_clients)]
    return {key: value.detach().clone() for key, value in task.model_state().items()} | method.init_server(
        task, clients
    )


def test_the_look_ahead_begins_with_the_second_visit(tmp_path):
    outcome, seen = run(FedGPS, tmp_path, num_rounds=4), set()
    for row in trained(outcome):
        assert row["fedgps/look_ahead"] == float(row["client"] in seen)
        assert (row["loss/prototype"] > 0) == (row["round"] > 1)
        seen.add(row["client"])
    assert bool(outcome.server["fedgps/seen"].all())


def test_without_its_parts_it_is_fedavg(tmp_path):
    neutral = check_neutral(partial(FedGPS, **OFF), FedAvg, tmp_path)
    assert {row["loss/contrast"] for row in neutral.clients if row["phase"] == "train"} == {0.0}
    assert any(value.any() for key, value in neutral.server.items() if key.startswith("fedgps/update/"))


def test_a_batch_has_as_many_surrogates_and_passes_once(tmp_path):
    double, plain = ({True: [], False: []} for _ in range(2))
    run(FedGPS, tmp_path, num_rounds=1, before=count_passes(double))
    run(partial(FedGPS, **OFF), tmp_path / "plain", num_rounds=1, before=count_passes(plain))
    assert double[True] == [2 * size for size in plain[True]]


def test_a_single_participant_never_looks_ahead_along_itself(tmp_path):
    outcome = run(FedGPS, tmp_path, num_rounds=4, clients_per_round=1)
    rows = [row for row in outcome.clients if row["phase"] == "train"]
    for before, now in pairwise(rows):
        if before["client"] == now["client"]:
            assert now["fedgps/look_ahead"] == 0.0
    assert all(bool(torch.isfinite(value).all()) for value in outcome.server.values())


@pytest.mark.parametrize("bands", [1, 3, 10])
def test_surrogates_have_the_bands_of_the_task_and_depend_on_their_own_seed(bands):
    means = class_means(5, CLASSES, bands, 4, std=2.0)
    assert torch.equal(means, class_means(5, CLASSES, bands, 4, std=2.0))
    assert not torch.equal(means, class_means(6, CLASSES, bands, 4, std=2.0))
    labels = torch.arange(CLASSES).repeat(500)
    with rng_stream("images"):
        images = draw(means, labels, (12, 9), noise=0.5)
    assert images.shape == (len(labels), bands, 12, 9)
    for kind in range(CLASSES):
        rows = images[labels == kind]
        expected = F.interpolate(means[kind : kind + 1], size=(12, 9), mode="bilinear")[0]
        assert (rows.mean(0) - expected).abs().max() < 0.15
        assert rows.std(0).mean().item() == pytest.approx(0.5, abs=0.01)
    method = FedGPS()
    task = task_of(method, bands)
    local = visit_of(method, task, start_of(method, task))
    terms = method.local_step(local, {"image": torch.randn(4, bands, 12, 12), "label": torch.arange(4)})
    assert set(terms) == {"task", "surrogate", "contrast", "surrogate_contrast", "prototype"}
    assert all(bool(torch.isfinite(term)) for term in terms.values())


def test_twice_as_many_outputs_of_which_the_first_half_predicts():
    plain, task = task_of(FedAvg()), task_of(FedGPS())
    assert task.model.fc.weight.shape[0] == 2 * CLASSES
    assert torch.equal(task.model.fc.weight[:CLASSES], plain.model.fc.weight)
    image = torch.randn(5, 3, 12, 12)
    torch.testing.assert_close(task.eval()(image).logits, plain.eval()(image).logits)
    assert task.train()(image).logits.shape == (5, 2 * CLASSES)
    everything = task_of(FedGPS(evaluate="all")).eval()
    with torch.no_grad():
        everything.model.fc.bias[CLASSES:] += 100.0  # a surrogate class wins everywhere
    metric = everything.metric()
    everything.update(metric, everything(image), {"label": torch.arange(5) % CLASSES})
    assert everything.scores(metric)["overall_accuracy"] == 0.0


def reference_contrast(features, positive, temperature):
    """The loss once more, one pair at a time."""
    rows = F.normalize(features, dim=1)
    losses = []
    for i in range(len(rows)):
        others = [j for j in range(len(rows)) if j != i]
        chosen = [j for j in others if positive[i][j]]
        total = torch.logsumexp(torch.stack([rows[i] @ rows[j] / temperature for j in others]), 0)
        losses.append(
            sum((total - rows[i] @ rows[j] / temperature for j in chosen), torch.tensor(0.0)) / max(1, len(chosen))
        )
    return torch.stack(losses).mean()


def test_contrast_against_pairs_and_without_any():
    features, labels = (
        torch.randn(7, 5, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1, 0, 2, 1, 1, 3]),
    )
    positive = labels[:, None] == labels
    expected = reference_contrast(features, positive, 0.2)
    torch.testing.assert_close(supervised_contrast(features, labels, 0.2), expected)
    torch.testing.assert_close(supervised_contrast(features, positive, 0.2), expected)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(supervised_contrast(features, labels, 0.2), expected)
    for lonely in (features[:1], features[:3]):
        lonely = lonely.clone().requires_grad_(True)
        loss = supervised_contrast(lonely, torch.arange(len(lonely)), 0.2)
        loss.backward()
        assert loss.item() == 0.0
        assert not lonely.grad.any()


def test_absent_clients_and_shares():
    method = FedGPS(weighting="samples", surrogate=None)
    task = task_of(method)
    server, key = start_of(method, task, 3), "model/conv1.weight"
    moved = [
        {
            name: value + (k + 1) if value.is_floating_point() else value
            for name, value in server.items()
            if name.startswith("model/")
        }
        for k in range(2)
    ]
    keys = tuple(trainable(task))
    sent = [
        Upload(Client(k, size), state, parameters=keys)
        for (k, size), state in zip([(0, 10), (2, 30)], moved, strict=True)
    ]
    after = method.aggregate(server, sent)
    assert after["fedgps/shares"].tolist() == [0.25, 0.0, 0.75]
    torch.testing.assert_close(after[f"fedgps/update/{key}"], torch.full_like(server[key], 1.75), rtol=1e-5, atol=1e-5)
    own = {
        name.replace("update", "own"): torch.full_like(value, 1.0)
        for name, value in after.items()
        if name.startswith("fedgps/update/")
    }
    direction = visit_of(method, task, after, own).scratch["fedgps/direction"]
    assert sum(value.norm() for value in direction).item() == pytest.approx(1.0, rel=1e-5)
    assert all(bool((value > 0).all()) for value in direction)  # (1.75 - 0.25) / 0.75 = 2 everywhere
    assert visit_of(method, task, after).scratch["fedgps/direction"] is None  # never visited
    assert visit_of(method, task, server, own).scratch["fedgps/direction"] is None  # nothing moved yet


def test_a_class_without_surrogates_keeps_its_prototype():
    method = FedGPS()
    task = task_of(method)
    server = start_of(method, task)
    server["fedgps/prototypes"][3], server["fedgps/seen"][3] = 7.0, True
    width = server["fedgps/prototypes"].shape[1]
    model = {key: value for key, value in server.items() if key.startswith("model/")}
    sent = {"fedgps/prototypes": torch.ones(CLASSES, width), "fedgps/counts": torch.tensor([2, 0, 1, 0])}
    after = method.aggregate(server, [Upload(Client(0, 8), model | sent)])
    assert after["fedgps/seen"].tolist() == [True, False, True, True]
    assert after["fedgps/prototypes"][:, 0].tolist() == [1.0, 0.0, 1.0, 7.0]


class MultiLabel(ClassificationTask):
    """Several classes an image."""

    def criterion(self, output, batch):
        return F.binary_cross_entropy_with_logits(output.logits, batch["label"])


@pytest.mark.parametrize("positives", ["drop", "same_labels"])
def test_multilabel_extension(positives):
    method = FedGPS(multilabel=positives)
    task = task_of(method, kind=MultiLabel)
    local = visit_of(method, task, start_of(method, task))
    labels = torch.tensor([[1.0, 0, 1, 0], [1, 0, 1, 0], [0, 1, 0, 0]])
    kinds, logits, features = (
        torch.tensor([0, 3]),
        torch.randn(5, 2 * CLASSES),
        torch.randn(5, len(local.received["fedgps/prototypes"][0])),
    )
    terms = method.loss(local, {"label": labels, "surrogate": kinds}, Output(logits, features))
    targets = torch.zeros(5, 2 * CLASSES)
    targets[:3, :CLASSES] = labels
    targets[3, CLASSES], targets[4, CLASSES + 3] = 1, 1
    torch.testing.assert_close(terms["task"], F.binary_cross_entropy_with_logits(logits[:3], targets[:3]))
    torch.testing.assert_close(terms["surrogate"], F.binary_cross_entropy_with_logits(logits[3:], targets[3:]))
    positive = torch.zeros(5, 5)
    positive[0, 1] = positive[1, 0] = 1
    expected = 0.0 if positives == "drop" else reference_contrast(features, positive, 0.07).item()
    assert terms["contrast"].item() == pytest.approx(expected, rel=1e-5)


def test_class_match_makes_real_and_surrogate_positives():
    features, batch = torch.randn(4, 8), {"label": torch.tensor([0, 1]), "surrogate": torch.tensor([0, 1])}
    values = {}
    for match in (False, True):
        method = FedGPS(class_match=match)
        task = task_of(method)
        local = visit_of(method, task, start_of(method, task) | {"fedgps/prototypes": torch.zeros(CLASSES, 8)})
        values[match] = method.loss(local, batch, Output(torch.zeros(4, 2 * CLASSES), features))["contrast"].item()
    assert values[False] == 0.0
    assert values[True] > 0


def test_pixels_are_refused():
    with pytest.raises(ConfigError, match="not defined for pixels"):
        FedGPS(surrogate=None).adapt(small_segmentation_task())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"surrogate": "folder"}, "surrogate must be gaussian or null, got 'folder'"),
        ({"rho": -1.0}, "rho:"),
        ({"temperature": 0.0}, "temperature:"),
        ({"clip": -1.0}, "clip:"),
        ({"surrogate_side": 0}, "surrogate_side:"),
        ({"evaluate": "last"}, "evaluate must be first or all, got 'last'"),
    ],
)
def test_errors_name_the_option(options, message):
    with pytest.raises(ConfigError, match=message):
        FedGPS(**options)
