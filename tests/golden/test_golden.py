"""Golden numbers through the public hooks; `-k fedmad` selects a file, a case name selects a case."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedrs_lightning.methods.base import FedAvg
from fedrs_lightning.methods.fedbn import FedBN
from fedrs_lightning.methods.fedmad import FedMAD
from fedrs_lightning.nn.modulation import Modulation
from fedrs_lightning.tasks.base import Task
from fedrs_lightning.tasks.classification import ClassificationTask
from fedrs_lightning.tasks.multilabel import MultilabelTask
from fedrs_lightning.types import Client, Local, Output, Upload

OWN = Path(__file__).resolve().parent / "cases"
ROOT = Path(os.environ.get("FEDRS_GOLDEN", OWN))
if not ROOT.is_dir():
    raise FileNotFoundError(f"{ROOT}: no such folder of golden cases; see FEDRS_GOLDEN")


def cases(file, kind=None):
    """One parameter a case (and a parameter set, where a case has several). Another folder may hold fewer files."""
    path, found = ROOT / f"{file}.json", []
    content = json.loads(path.read_text()) if path.is_file() or ROOT == OWN else {"cases": []}
    for case in content["cases"]:
        if case.get("kind") == kind:
            for result in case.get("results", [{}]):
                suffix = "".join(f"-{value}" for value in result.get("params", {}).values())
                found.append(
                    pytest.param({**case, **result}, content["tolerance"], id=f"{file}-{case['name']}{suffix}")
                )
    assert found or ROOT != OWN, f"{path} has no case of kind {kind}"
    missing = pytest.mark.skip(reason=f"{path} has no case of kind {kind}")
    return found or [pytest.param(None, None, id=file, marks=missing)]


def state_of(entries, namespace="model/"):
    return {
        namespace + name: torch.tensor(value, dtype=torch.float64 if np.ndim(value) else torch.int64)
        for name, value in entries.items()
    }


def assert_state(actual, expected, tolerance, skip=()):
    assert actual.keys() == expected.keys()
    for key in actual.keys() - set(skip):
        torch.testing.assert_close(actual[key], expected[key], **tolerance)


class Network(Task):
    """A task around any network: enough for the structural hooks."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def criterion(self, output, batch):
        raise AssertionError("not called")

    metric = update = scores = criterion


@pytest.mark.parametrize(("case", "tolerance"), cases("fedavg"))
def test_fedavg(case, tolerance):
    inputs, outputs = case["inputs"], case["outputs"]
    uploads = [
        Upload(Client(k, count), state_of(entries))
        for k, (count, entries) in enumerate(zip(inputs["num_samples"], inputs["client_states"], strict=True))
    ]
    np.testing.assert_allclose(FedAvg().weights({}, uploads), outputs["weights"], **tolerance)
    assert_state(FedAvg().aggregate({}, uploads), state_of(outputs["weighted"]), tolerance)
    assert_state(FedAvg(weighting="uniform").aggregate({}, uploads), state_of(outputs["unweighted"]), tolerance)
    assert [upload.log["weight"] for upload in uploads] == [1 / len(uploads)] * len(uploads)


@pytest.mark.parametrize("method", [FedBN(), FedAvg()], ids=["fedbn_mode", "fedavg_mode"])
@pytest.mark.parametrize(("case", "tolerance"), cases("fedbn"))
def test_fedbn(case, tolerance, method):
    inputs, expected = case["inputs"], case["outputs"]["fedbn" if isinstance(method, FedBN) else "fedavg"]
    channels, bands, kernel, _ = np.shape(inputs["server_state"]["conv1.weight"])
    classes = len(inputs["server_state"]["fc.bias"])
    network = nn.Sequential()
    network.add_module("conv1", nn.Conv2d(bands, channels, kernel))
    network.add_module("bn1", nn.BatchNorm2d(channels))
    network.add_module("fc", nn.Linear(channels, classes))
    task = Network(network)
    method.adapt(task)
    private, sent = method.private_keys(task), method.sent_keys(task)
    server, clients = state_of(inputs["server_state"]), [state_of(entries) for entries in inputs["client_states"]]
    assert server.keys() == task.model_state().keys()
    uploads = [  # the stated weight takes the place of a number of samples
        Upload(Client(k, weight), {key: value for key, value in client.items() if key in sent})
        for k, (client, weight) in enumerate(zip(clients, inputs["client_weights"], strict=True))
    ]
    server = method.aggregate(server, uploads)

    # the released averaging copies the first client's counter; ours keeps the largest
    counters = () if isinstance(method, FedBN) else ("model/bn1.num_batches_tracked",)
    assert_state(server, state_of(expected["server"]), tolerance, skip=counters)
    for k, client in enumerate(clients):
        received = {key: value for key, value in method.download(server, k).items() if key not in private}
        assert_state(client | received, state_of(expected["clients"][k]), tolerance, skip=counters)


def modulated(size):
    """A task whose modulation parameters in float64 have exactly `size` elements; an odd one needs a beta that does not
    count.
    """
    layers = [Modulation(size // 2)] + [Modulation(1)] * (size % 2)
    for layer in layers[1:]:
        layer.beta_is_dead = True
    parameters = [p for layer in layers for p in ([layer.gamma] if layer.beta_is_dead else [layer.gamma, layer.beta])]
    return Network(nn.Sequential(*layers).double()), parameters


@pytest.mark.parametrize("sent", ["direction", "delta"])
@pytest.mark.parametrize(("case", "tolerance"), cases("fedmad"))
def test_fedmad(case, tolerance, sent):
    inputs, params, outputs = case["inputs"], case["params"], case["outputs"]
    method = FedMAD(
        power=params["p"],
        eps=params["eps"],
        negative=params["negative_scores"],
        reference={"sum": "sum", "sample_weighted": "weighted"}[params["reference"]],
        upload=sent,
    )
    task, parameters = modulated(len(inputs["modulation_before"][0]))
    uploads = []
    for k, count in enumerate(inputs["num_samples"]):
        local = Local(Client(k, count), 1, task, {}, {}, 1, optimizer=None, fabric=None, batches=None)
        nn.utils.vector_to_parameters(torch.tensor(inputs["modulation_before"][k], dtype=torch.float64), parameters)
        method.on_local_start(local)
        nn.utils.vector_to_parameters(torch.tensor(inputs["modulation_after"][k], dtype=torch.float64), parameters)
        extra = method.upload(local)
        np.testing.assert_allclose(extra["fedmad/direction"], outputs[sent][k], **tolerance)
        uploads.append(Upload(local.client, state_of(inputs["shared_parameters"][k]) | extra))
    server = method.aggregate({}, uploads)
    logged = {name: [upload.log[name] for upload in uploads] for name in uploads[0].log}
    np.testing.assert_allclose(logged["fedmad/score"], outputs["score"], **tolerance)
    np.testing.assert_allclose(logged["weight"], outputs["weight"], **tolerance)
    assert logged["fedmad/moved"] == [float(norm > params["zero_norm_tolerance"]) for norm in outputs["delta_norm"]]
    assert_state(server, state_of(outputs["aggregated_shared"]), tolerance)


@pytest.mark.parametrize(("case", "tolerance"), cases("metrics", "accuracy"))
def test_metrics_accuracy(case, tolerance):
    logits, label = torch.tensor(case["inputs"]["logits"]), torch.tensor(case["inputs"]["labels"])
    task = ClassificationTask("resnet18", num_classes=logits.shape[1], in_channels=1, width=2)
    metric = task.metric()
    for rows in torch.arange(len(label)).split(4):
        task.update(metric, Output(logits[rows], torch.empty(0)), {"label": label[rows]})
    np.testing.assert_allclose(
        task.scores(metric)["overall_accuracy"], case["outputs"]["overall_accuracy"], **tolerance
    )


def multilabel_scores(*samples, batch=4):
    """Scores of metrics that saw these (scores, targets) in batches and were then merged."""
    task = MultilabelTask("resnet18", num_classes=np.shape(samples[0][0])[1], in_channels=1, width=2)
    pooled = task.metric()
    for scores, targets in samples:
        metric = task.metric()
        for rows in torch.arange(len(scores)).split(batch):
            output = Output(torch.tensor(scores, dtype=torch.float64)[rows], torch.empty(0))
            task.update(metric, output, {"label": torch.tensor(targets)[rows]})
        pooled.merge_state(metric)
    return task.scores(pooled)


@pytest.mark.parametrize(("case", "tolerance"), cases("metrics", "multilabel"))
def test_metrics_multilabel(case, tolerance):
    outputs = case["outputs"]
    scores = multilabel_scores((case["inputs"]["scores"], case["inputs"]["targets"]))
    np.testing.assert_allclose(scores["micro_map"], outputs["micro_map"], **tolerance)
    np.testing.assert_allclose(scores["macro_map"], outputs["macro_map_over_classes_with_positives"], **tolerance)
    each = {str(number): value for number, value in enumerate(outputs["ap_per_class"]) if value != "nan"}
    assert {
        name.removeprefix("ap/"): pytest.approx(value, rel=tolerance["rtol"], abs=tolerance["atol"])
        for name, value in scores.items()
        if "ap/" in name
    } == each


@pytest.mark.parametrize(("case", "tolerance"), cases("metrics", "multilabel_clients"))
def test_metrics_multilabel_clients(case, tolerance):
    clients, outputs = [(client["scores"], client["targets"]) for client in case["inputs"]["clients"]], case["outputs"]
    np.testing.assert_allclose(multilabel_scores(*clients)["micro_map"], outputs["micro_map_pooled"], **tolerance)
    each = [multilabel_scores(client)["micro_map"] for client in clients]
    np.testing.assert_allclose(each, outputs["micro_map_each"], **tolerance)
