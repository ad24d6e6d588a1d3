"""Golden numbers of FedDAP and of segmentation scores, through the public functions and hooks."""

import numpy as np
import pytest
import torch
from torch import nn

from fedrs_lightning.methods.feddap import FedDAP
from fedrs_lightning.nn.clustering import finch
from fedrs_lightning.nn.dap import DAP, drift, smooth
from fedrs_lightning.nn.prototypes import class_statistics
from fedrs_lightning.tasks.base import Task
from fedrs_lightning.tasks.segmentation import SegmentationTask
from fedrs_lightning.types import Client, Local, Output, Upload

from .test_golden import cases

OPEN = {  # arguments without a default that a case does not use
    "sync_every": 1,
    "smoothing": 0.9,
    "clustering": "kmeans",
    "num_clusters": 2,
    "embedding_dim": 3,
    "spectral_dim": 2,
    "spatial_dim": 1,
    "class_dim": 2,
    "hidden_sizes": [4],
    "activation": "relu",
    "eps": 1e-5,
    "temperature": 0.1,
    "lambda_dap": 0.5,
    "lambda_inv": 0.5,
    "lambda_drift": 0.1,
}


def tensor(values):
    array = np.asarray(values)
    return torch.tensor(array, dtype=torch.float64 if array.dtype.kind == "f" else None)


class Parts(nn.Module):
    """A network that only says how wide its feature maps are."""

    def __init__(self, embedding, shallow, deep):
        super().__init__()
        self.embedding_channels, self.shallow_channels, self.deep_channels = embedding, shallow, deep


class Given(Task):
    """A task whose segmentation loss is a given number."""

    label_kind = "pixel_classes"

    def __init__(self, num_classes, channels, value=0.0, ignore_index=255):
        super().__init__()
        self.model, self.num_classes, self.ignore_index, self.value = Parts(*channels), num_classes, ignore_index, value

    def criterion(self, output, batch):
        return torch.tensor(self.value, dtype=torch.float64)

    metric = update = scores = criterion


def visit(task, method, received, round=2, samples=1, **fields):
    local = Local(Client(0, samples), round, task, received, {}, 1, optimizer=None, fabric=None, batches=None, **fields)
    method.on_local_start(local)
    return local


def pass_through(layers):
    """Make the embedding head the identity: the cases give embeddings, not decoder outputs."""
    layers.head.weight.data = torch.eye(layers.head.out_channels, dtype=torch.float64)[..., None, None]
    layers.head.bias.data.zero_()


def fill(layers: DAP, inputs):
    pass_through(layers)
    for name in ("spectral", "spatial"):
        conv, modulator = getattr(layers, f"{name}_conv"), getattr(layers, name)
        conv.weight.data = tensor(inputs[f"{name}_conv"]["weight"])[..., None, None]
        conv.bias.data = tensor(inputs[f"{name}_conv"]["bias"])
        modulator.classes.data = tensor(inputs[f"class_embedding_{name}"])
    for name, layer in (("spectral", layers.spectral.mlp), ("spatial", layers.spatial.mlp), ("gate", layers.gate)):
        for number, linear in enumerate(part for part in layer if isinstance(part, nn.Linear)):
            assert linear.weight.shape == np.shape(inputs[f"mlp_{name}"][f"w{number + 1}"])
            linear.weight.data = tensor(inputs[f"mlp_{name}"][f"w{number + 1}"])
            linear.bias.data = tensor(inputs[f"mlp_{name}"][f"b{number + 1}"])


@pytest.mark.parametrize(("case", "tolerance"), cases("feddap", "forward"))
def test_forward(case, tolerance):
    inputs, expected, params = case["inputs"], case["outputs"], case["params"]
    anchors, valid = tensor(inputs["anchors"]), torch.tensor(inputs["anchor_valid"])
    shallow, deep, embeddings = (tensor(inputs[name]) for name in ("shallow", "deep", "embeddings"))
    method = FedDAP(
        **OPEN
        | {
            "temperature": params["temperature"],
            "eps": params["eps_std"],
            "activation": params["activation"],
            **{f"lambda_{name}": value for name, value in params["lambdas"].items()},
            "embedding_dim": anchors.shape[1],
            "spectral_dim": len(inputs["spectral_conv"]["bias"]),
            "spatial_dim": len(inputs["spatial_conv"]["bias"]),
            "class_dim": len(inputs["class_embedding_spectral"][0]),
            "hidden_sizes": [len(inputs["mlp_gate"]["b1"])],
        }
    )
    task = Given(
        len(anchors),
        (embeddings.shape[1], shallow.shape[1], deep.shape[1]),
        inputs["segmentation_loss"],
        params["ignore_index"],
    )
    method.adapt(task)
    layers = task.model.feddap.double()
    fill(layers, inputs)
    output = Output(torch.empty(0), embeddings, shallow, deep)

    made = layers(output, anchors)
    found = {
        "spectral_descriptor": made.spectral_descriptor,
        "spatial_descriptor": made.spatial_descriptor,
        "gamma_spectral": made.gamma[0],
        "gamma_spatial": made.gamma[1],
        "beta_spectral": made.beta[0],
        "beta_spatial": made.beta[1],
        "prototype_spectral": made.branches[0],
        "prototype_spatial": made.branches[1],
        "prototype_dap": made.dap,
        "gate": made.gate,
    }
    for name, value in found.items():
        np.testing.assert_allclose(value.detach(), expected[name], **tolerance, err_msg=name)

    local = visit(task, method, {"feddap/anchors": anchors, "feddap/valid": valid})
    batch = {"mask": torch.tensor(inputs["labels"]), "image": torch.empty(len(shallow))}
    terms = {name: float(term.detach()) for name, term in method.loss(local, batch, output).items()}
    weights = params["lambdas"]
    np.testing.assert_allclose(terms["dap"], weights["dap"] * expected["dap_loss"], **tolerance)
    np.testing.assert_allclose(terms["anchor"], weights["inv"] * expected["anchor_loss"], **tolerance)
    np.testing.assert_allclose(terms["drift"], weights["drift"] * expected["drift_loss"], **tolerance)
    np.testing.assert_allclose(sum(terms.values()), expected["total"], **tolerance)
    np.testing.assert_allclose(
        local.memory["feddap/descriptor"], expected["spectral_descriptor"] + expected["spatial_descriptor"], **tolerance
    )
    np.testing.assert_allclose(
        float(drift(made.branches, anchors)[:, valid].detach().sum(0).mean()), expected["drift_loss"], **tolerance
    )


@pytest.mark.parametrize(("case", "tolerance"), cases("feddap", "anchors"))
def test_anchors(case, tolerance):
    """Through the hooks: each client counts its batch in the last epoch, the server merges."""
    inputs, outputs = case["inputs"], case["outputs"]
    previous, valid = tensor(inputs["previous_anchors"]), torch.tensor(inputs["previous_valid"])
    method = FedDAP(**OPEN | {"embedding_dim": previous.shape[1], "sync_every": None}, anchor_source="last_epoch")
    task = Given(len(previous), (previous.shape[1], 2, 2))
    method.adapt(task)
    task.model.feddap.double()
    pass_through(task.model.feddap)
    clients = [Client(number, 5) for number in range(len(inputs["clients"]))]
    server = method.init_server(task, clients) | {"feddap/anchors": previous, "feddap/valid": valid}
    uploads = []
    for client, given, expected in zip(clients, inputs["clients"], outputs["client_statistics"], strict=True):
        embeddings, labels = tensor(given["embeddings"]), torch.tensor(given["labels"])
        for name, normalised in (("raw", False), ("normalised", True)):
            sums, counts = class_statistics(embeddings, labels, len(previous), normalised)
            np.testing.assert_allclose(sums, expected[name]["sum"], **tolerance)
            assert counts.tolist() == expected[name]["count"]
        maps = torch.ones(len(labels), 2, 4, 4, dtype=torch.float64)
        local = visit(task, method, method.download(server, client.id), samples=len(labels))
        method.loss(local, {"mask": labels, "image": maps}, Output(torch.empty(0), embeddings, maps, maps))
        method.on_local_end(local)
        uploads.append(Upload(client, method.upload(local)))
    state = method.aggregate(server, uploads)
    np.testing.assert_allclose(state["feddap/anchors"], outputs["anchors"], **tolerance)
    assert state["feddap/valid"].tolist() == outputs["valid"]


@pytest.mark.parametrize(("case", "tolerance"), cases("feddap", "synchronisation"))
def test_synchronisation(case, tolerance):
    """Smoothing, then clustering and averaging through `aggregate`, then what each client downloads."""
    inputs, outputs, params = case["inputs"], case["outputs"], case["params"]
    descriptors, counts = tensor(inputs["batch_descriptors"]), inputs["num_samples"]
    method = FedDAP(
        **OPEN | {"num_clusters": params["num_clusters"], "smoothing": params["ema_keep"]},
        cluster_weights=params["weights"],
    )
    clients = [Client(number, count) for number, count in enumerate(counts)]
    classes, width = 3, descriptors.shape[2]
    server = {
        "feddap/clients": torch.arange(len(clients)),
        "feddap/anchors": torch.zeros(classes, 3, dtype=torch.float64),
        "feddap/valid": torch.zeros(classes, dtype=torch.bool),
        "feddap/descriptors": torch.zeros(len(clients), width, dtype=torch.float64),
        "feddap/described": torch.zeros(len(clients), dtype=torch.bool),
        "feddap/cluster": torch.full((len(clients),), -1),
        "feddap/pending": torch.zeros(len(clients), dtype=torch.bool),
    }
    uploads = []
    for client, batches, parts, expected in zip(
        clients, descriptors, inputs["modulators"], outputs["smoothed_descriptors"], strict=True
    ):
        smoothed = None
        for descriptor in batches:
            smoothed = smooth(smoothed, descriptor, params["ema_keep"])
        np.testing.assert_allclose(smoothed, expected, **tolerance)
        sent = {f"feddap/sent/model/feddap.{name}.mlp.0.bias": tensor(value) for name, value in parts.items()}
        nothing = {
            "feddap/sums": torch.zeros(classes, 3, dtype=torch.float64),
            "feddap/counts": torch.zeros(classes, dtype=torch.int64),
        }
        uploads.append(Upload(client, {"feddap/descriptor": smoothed} | nothing | sent))
    state = method.aggregate(server, uploads)
    same = torch.tensor(inputs["cluster_of_client"])
    assert torch.equal(
        state["feddap/cluster"][:, None] == state["feddap/cluster"], same[:, None] == same
    )  # up to renaming
    for client, expected in zip(clients, outputs["after"], strict=True):
        received = method.download(state, client.id)
        for name, value in expected.items():
            np.testing.assert_allclose(received[f"model/feddap.{name}.mlp.0.bias"], value, **tolerance, err_msg=name)


@pytest.mark.parametrize(("case", "tolerance"), cases("fpl", "finch_only"))
def test_finch(case, tolerance):
    """FedDAP's alternative to k-means, by the vectors that FPL's server step shares with it."""
    partitions = finch(tensor(case["inputs"]["points"]), "cosine")
    assert [int(partition.max()) + 1 for partition in partitions] == case["outputs"]["clusters_per_partition"]
    for found, same in zip(partitions, torch.tensor(case["outputs"]["all_partitions"]).T, strict=True):
        assert torch.equal(found[:, None] == found, same[:, None] == same)


@pytest.mark.parametrize(("case", "tolerance"), cases("metrics", "segmentation"))
def test_metrics_segmentation(case, tolerance):
    labels, predictions = torch.tensor(case["inputs"]["labels"]), torch.tensor(case["inputs"]["predictions"])
    classes, outputs = case["params"]["num_classes"], case["outputs"]
    scores = {}
    for absent in ("left_out", "zero", "labelled_only"):
        task = SegmentationTask(
            "deeplabv3plus",
            "resnet18",
            classes,
            1,
            "ce",
            case["params"]["ignore_index"],
            absent,
            encoder_width=2,
            decoder_channels=2,
        )
        metric = task.metric()
        for label, prediction in zip(labels, predictions, strict=True):
            logits = nn.functional.one_hot(prediction, classes).permute(2, 0, 1)[None].float()
            task.update(metric, Output(logits, torch.empty(0)), {"mask": label[None]})
        scores[absent] = task.scores(metric)
    assert metric.confmat.tolist() == outputs["confusion_rows_are_labels"]
    np.testing.assert_allclose(scores["left_out"]["miou"], outputs["miou_absent_classes_left_out"], **tolerance)
    np.testing.assert_allclose(scores["zero"]["miou"], outputs["miou_absent_classes_as_zero"], **tolerance)
    np.testing.assert_allclose(scores["labelled_only"]["miou"], outputs["miou_classes_in_labels_only"], **tolerance)
    np.testing.assert_allclose(scores["zero"]["pixel_accuracy"], outputs["pixel_accuracy"], **tolerance)
    np.testing.assert_allclose(
        scores["zero"]["mean_class_accuracy"], outputs["mean_class_accuracy_of_present"], **tolerance
    )
    named = {f"iou/{number}": iou for number, iou in enumerate(outputs["iou"]) if iou != "nan"}
    found = {name: value for name, value in scores["left_out"].items() if name.startswith("iou/")}
    assert found == pytest.approx(named, rel=tolerance["rtol"], abs=tolerance["atol"])
    assert task.absent_classes(metric) == [str(number) for number, iou in enumerate(outputs["iou"]) if iou == "nan"]
