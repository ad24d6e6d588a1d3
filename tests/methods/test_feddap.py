"""FedDAP's hooks: who gets what, which gradients flow, and the cases without anything to learn from."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods import FedDAP
from fedrs_lightning.methods.feddap import ADAPTERS, PIXELS, _keys
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks import ClassificationTask
from fedrs_lightning.types import Client, Local, Output, Upload

from .conftest import CLASSES, FEDDAP, SIZES, feddap, small_segmentation_task


def hooks(num_classes=CLASSES, **options):
    """A method, its adapted task and the initial server state of six clients."""
    method = feddap(**options)
    with rng_stream(1, "model"):
        task = small_segmentation_task(num_classes)
    with rng_stream(1, "adapt"):
        method.adapt(task)
    clients = [Client(number, size) for number, size in enumerate(SIZES)]
    return method, task, clients, method.init_server(task, clients)


def uploads_of(method, task, clients, descriptors, sync):
    layers = task.model.feddap
    classes, width = len(layers.spectral.classes), method.embedding_dim
    keys = _keys(task, *ADAPTERS)
    uploads = []
    for client, value in zip(clients, descriptors, strict=True):
        state = {
            "feddap/sums": torch.ones(classes, width, dtype=torch.float64),
            "feddap/counts": torch.ones(classes, dtype=torch.int64),
            "feddap/descriptor": torch.full((layers.descriptor_dim,), float(value)),
        }
        if sync:
            state |= {f"feddap/sent/{key}": torch.full_like(task.model_state()[key], client.id + 1.0) for key in keys}
        uploads.append(Upload(client, state))
    return uploads


def test_who_gets_what_after_a_synchronisation():
    method, task, clients, server = hooks()
    assert not any("spectral." in key for key in method.download(server, 0))
    server = method.aggregate(
        server, uploads_of(method, task, clients[4:5], [8.0], sync=False)
    )  # client 4 is known, then absent
    server = method.aggregate(server, uploads_of(method, task, clients[:4], [0.0, 9.0, 1.0, 10.0], sync=True))
    spectral, gate = "model/feddap.spectral.mlp.0.bias", "model/feddap.gate.0.bias"
    weight = np.array(SIZES[:4], dtype=float)
    low, high = (
        (1 * weight[0] + 3 * weight[2]) / (weight[0] + weight[2]),
        (2 * weight[1] + 4 * weight[3]) / (weight[1] + weight[3]),
    )
    for client, expected in ((0, low), (1, high), (2, low), (3, high), (4, high)):
        torch.testing.assert_close(
            method.download(server, client)[spectral], torch.full((8,), expected, dtype=torch.float32)
        )
    unknown = method.download(server, 5)
    assert spectral not in unknown
    torch.testing.assert_close(unknown[gate], torch.full((8,), float(weight @ [1, 2, 3, 4] / weight.sum())))
    server = method.aggregate(server, uploads_of(method, task, clients[:1] + clients[5:], [0.0, 1.0], sync=False))
    for client, pending in ((0, False), (5, False), (1, True), (4, True)):
        received = method.download(server, client)
        assert (gate in received) == pending
        assert not any(key.startswith("feddap/") and key not in ("feddap/anchors", "feddap/valid") for key in received)
    assert server["feddap/cluster"].tolist() == [0, 1, 0, 1, 1, -1]


@pytest.mark.parametrize(
    ("scaling", "same"), [("zscore", [[0, 2], [1, 3]]), ("balanced", [[0, 1], [2, 3]]), ("none", [[0, 3], [1, 2]])]
)
def test_scaling_decides_which_entries_count(scaling, same):
    """The spectral entries say 01|23; half of the spatial ones, many more, say 02|13; a single large one says 03|12."""
    method, task, clients, server = hooks(descriptor_scaling=scaling)
    uploads = uploads_of(method, task, clients[:4], [0.0] * 4, sync=True)
    for upload, spectral, spatial, large in zip(uploads, (0, 0, 1, 1), (0, 1, 0, 1), (0, 99, 99, 0), strict=True):
        upload.state["feddap/descriptor"][: 2 * method.spectral_dim] = spectral
        upload.state["feddap/descriptor"][2 * method.spectral_dim :: 2] = spatial
        upload.state["feddap/descriptor"][-2] = large
    cluster = method.aggregate(server, uploads)["feddap/cluster"].tolist()
    assert all(cluster[a] == cluster[b] for a, b in same)
    assert cluster[same[0][0]] != cluster[same[1][0]]


def visit(method, task, server, batch, round=2):
    client = Client(0, len(batch["image"]))
    local = Local(client, round, task, method.download(server, 0), {}, 1, optimizer=None, fabric=None, batches=None)
    method.on_local_start(local)
    return local, method.loss(local, batch, task(batch["image"]))


def batch_of(labels, size=4):
    with rng_stream(2, "batch"):
        image = torch.randn(size, 3, 32, 32)
        mask = torch.tensor(labels)[torch.randint(0, len(labels), (size, 4, 4))]
    return {"image": image, "mask": mask.repeat_interleave(8, 1).repeat_interleave(8, 2)}


def with_anchors(server, valid):
    anchors = F.normalize(
        torch.randn(server["feddap/anchors"].shape, generator=torch.Generator().manual_seed(1)), dim=1
    )
    return server | {"feddap/anchors": anchors * torch.tensor(valid)[:, None], "feddap/valid": torch.tensor(valid)}


CASES = {  # labels in the batch, classes with an anchor, whether the cosine terms have pixels
    "all": ([0, 1, 2], [True, True, True], True),
    "a class without an anchor": ([0, 1, 2], [True, False, True], True),
    "no pixel": ([255], [True, True, True], False),
    "no pixel of a class with an anchor": ([1, 255], [True, False, True], False),
    "no anchors": ([0, 1, 2], [False, False, False], False),
}


@pytest.mark.parametrize(("labels", "valid", "supervised"), CASES.values(), ids=CASES)
def test_terms_and_gradients_are_finite(labels, valid, supervised):
    method, task, _, server = hooks(detach_descriptors=False, anchor_source="last_epoch")
    local, terms = visit(method, task, with_anchors(server, valid), batch_of(labels))
    assert list(terms) == ["task", "dap", "anchor", "drift"]
    assert (float(terms["dap"].detach()) > 0) == (float(terms["anchor"].detach()) > 0) == supervised
    sum(terms.values()).backward()
    gradients = {name: parameter.grad for name, parameter in task.named_parameters() if parameter.grad is not None}
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients.values())
    assert (
        bool(gradients["model.feddap.spectral.mlp.2.bias"].abs().max() > 1e-6) == supervised
    )  # drift is flat at the anchors
    small = batch_of(labels)["mask"][:, ::4, ::4]
    assert local.scratch[PIXELS].counts.tolist() == [int((small == number).sum()) for number in range(CLASSES)]


def test_half_precision_stops_in_front_of_sums_and_losses():
    method, task, _, server = hooks(anchor_source="last_epoch")
    server, batch = with_anchors(server, [True] * 3), batch_of([0, 1, 2])
    task.eval()
    local, terms = visit(method, task, server, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low, rough = visit(method, task, server, batch)
        exact = low.scratch[PIXELS].sums.norm(dim=1)
    assert {term.dtype for term in rough.values()} == {torch.float32}
    assert low.memory["feddap/descriptor"].dtype == torch.float32
    torch.testing.assert_close(rough, terms, rtol=0.03, atol=0.01)
    assert bool((exact <= low.scratch[PIXELS].counts).all())  # sums of unit vectors
    pixels = F.normalize(task.model.feddap.head(task(batch["image"]).embedding), dim=1).permute(0, 2, 3, 1)
    inside = batch["mask"][:, ::4, ::4] == 1
    torch.testing.assert_close(local.scratch[PIXELS].sums[1].float(), pixels[inside].sum(0), rtol=1e-4, atol=1e-4)


def test_warm_up_uses_no_anchor():
    method, task, _, server = hooks(anchor_warmup_rounds=2)
    server = with_anchors(server, [True, True, True])
    for round, active in ((1, False), (2, False), (3, True)):
        _, terms = visit(method, task, server, batch_of([0, 1, 2]), round)
        assert bool(terms["dap"].detach() > 0) == active


def test_gradients_reach_what_they_should():
    """Prototype supervision trains encoder, head, both modulators and the gate; the anchors are constants."""
    method, task, _, server = hooks()
    server = with_anchors(server, [True, True, True])
    layers = task.model.feddap
    with rng_stream(3, "noise"), torch.no_grad():
        for parameter in layers.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    local, terms = visit(method, task, server, batch_of([0, 1, 2]))
    terms["dap"].backward()
    for part in (
        task.model.encoder.conv1,
        layers.head,
        layers.spectral,
        layers.spatial,
        layers.gate,
        layers.spectral_conv,
        layers.spatial_conv,
    ):
        assert all(bool(parameter.grad.any()) for parameter in part.parameters())
    assert task.model.segmentation_head[0].weight.grad is None
    assert not local.scratch["anchors"].requires_grad


@pytest.mark.parametrize(("gate", "alpha"), [("fixed", 0.5), ("spectral", 1.0), ("spatial", 0.0)])
def test_gates_of_the_ablations(gate, alpha):
    method, task, _, server = hooks(gate=gate)
    local, _ = visit(method, task, with_anchors(server, [True] * 3), batch_of([0, 1, 2]))
    prototypes = task.model.feddap(task(batch_of([0, 1, 2])["image"]), local.scratch["anchors"])
    assert prototypes.gate.tolist() == [alpha] * 3
    torch.testing.assert_close(
        prototypes.dap, F.normalize(alpha * prototypes.branches[0] + (1 - alpha) * prototypes.branches[1], dim=1)
    )


def test_detached_descriptors_leave_the_backbone_alone():
    for detach in (True, False):
        _, task, _, _ = hooks(detach_descriptors=detach)
        output = task(batch_of([0, 1])["image"])
        task.model.feddap.descriptors(Output(output.logits, output.embedding, output.shallow, output.deep))[
            0
        ].sum().backward()
        assert (task.model.encoder.conv1.weight.grad is None) == detach


def test_the_global_model_needs_no_modulators():
    method, task, _, _ = hooks()
    assert method.personal_keys(task) == set()
    private = method.private_keys(task)
    assert {key.split(".")[1] for key in private} == {"spectral", "spatial", "gate"}
    assert {key.split(".")[1] for key in hooks(descriptor_convs="local")[0].private_keys(task) - private} == {
        "spectral_conv",
        "spatial_conv",
    }
    assert all(key.startswith("model/feddap.") for key in private)
    assert {key.split(".")[1] for key in method.sent_keys(task) if "feddap" in key} == {
        "head",
        "spectral_conv",
        "spatial_conv",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "temperature: 0 is not a positive number"),
        ({"eps": 0.0}, "eps: 0.0 is not a positive number"),
        ({"lambda_drift": -1}, "lambda_drift: -1 is not a number of at least 0; 0 switches the term off"),
        ({"smoothing": 1.0}, r"smoothing: 1.0 is not in \[0, 1\)"),
        ({"sync_every": 0}, "sync_every: 0 is below 1; null never synchronises"),
        ({"hidden_sizes": [8, 0]}, "hidden_sizes: 0 is below 1"),
        ({"clustering": "dbscan"}, "clustering must be kmeans or finch, got 'dbscan'"),
        ({"num_clusters": None}, "kmeans needs a number"),
        ({"clustering": "finch"}, "finch finds the number itself, so set null"),
        ({"gate": "open"}, "gate must be .* or .*, got 'open'"),
        ({"activation": "step"}, "activation must be .* or .*, got 'step'"),
        ({"anchor_warmup_rounds": 0}, "anchor_warmup_rounds: 0 is below 1"),
    ],
)
def test_mistakes_are_explained(options, message):
    with pytest.raises(ConfigError, match=message):
        feddap(**options)


def test_open_values_have_no_default():
    for name in FEDDAP:
        with pytest.raises(TypeError, match=name):
            FedDAP(**{key: value for key, value in FEDDAP.items() if key != name})


def test_a_classification_task_is_refused():
    with pytest.raises(
        ConfigError,
        match="FedDAP needs a segmentation task with shallow and deep features; ClassificationTask has none",
    ):
        feddap().adapt(ClassificationTask("resnet18", 4, 3, width=4, stem="small"))
