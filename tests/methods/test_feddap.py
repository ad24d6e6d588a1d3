"""FedDAP in the engine: bits, memory between synchronisations, clusters, and the cases without anything to learn from."""

import os
import signal
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods import FedAvg, FedDAP
from fedrs_lightning.methods.base import FedAvg as Base
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks import ClassificationTask, SegmentationTask
from fedrs_lightning.types import Client, Local, Output, Upload

from .conftest import CLASSES, SIZES, make_segmentation_federation, small_segmentation_task

REQUIRED = {
    "temperature": 0.1,
    "lambda_dap": 0.5,
    "lambda_inv": 0.5,
    "lambda_drift": 0.1,
    "sync_every": 2,
    "smoothing": 0.9,
    "clustering": "kmeans",
    "num_clusters": 2,
    "embedding_dim": 6,
    "spectral_dim": 4,
    "spatial_dim": 3,
    "class_dim": 4,
    "hidden_sizes": [8],
    "activation": "relu",
    "eps": 1e-5,
}
OFF = {"lambda_dap": 0.0, "lambda_inv": 0.0, "lambda_drift": 0.0}


def feddap(**options):
    return FedDAP(**REQUIRED | options)


VARIANTS = {
    "default": {},
    "finch, local convolutions, pass": {
        "clustering": "finch",
        "num_clusters": None,
        "descriptor_convs": "local",
        "descriptor_source": "statistics_pass",
    },
    "last epoch, attached, uniform": {
        "anchor_source": "last_epoch",
        "detach_descriptors": False,
        "cluster_weights": "uniform",
        "descriptor_scaling": "none",
        "drift_reduction": "mean",
    },
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_rank_count_does_not_matter(options, segmentation_run):
    one = segmentation_run(partial(feddap, **options), num_rounds=5)
    for world_size in (2, 3) if not options else (2,):
        several = segmentation_run(partial(feddap, **options), num_rounds=5, world_size=world_size)
        assert several.digest == one.digest
        assert several.history == one.history
        assert several.clients == one.clients
    assert {len(record["cohort"]) for record in one.history} == {4}
    assert bool(one.server["feddap/valid"].all())


class Deadly(FedDAP):
    """Dies in the middle of a round, after the client's training."""

    def on_local_end(self, local):
        super().on_local_end(local)
        if local.round == 4 and local.client.id > 2:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_run_continues_to_the_same_bits(segmentation_run, tmp_path):
    reference = segmentation_run(feddap, num_rounds=5)
    child = os.fork()
    if child == 0:
        segmentation_run(partial(Deadly, **REQUIRED), num_rounds=5, path=tmp_path / "killed")
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    resumed = segmentation_run(feddap, num_rounds=5, path=tmp_path / "killed", world_size=2)
    assert (resumed.digest, resumed.history, resumed.clients) == (reference.digest, reference.history, reference.clients)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_without_its_terms_it_is_federated_averaging(options, segmentation_run):
    plain = segmentation_run(FedAvg, num_rounds=3)
    neutral = segmentation_run(partial(feddap, **options | OFF), num_rounds=3)
    for key, value in plain.server.items():
        assert torch.equal(neutral.server[key], value), key
    full = segmentation_run(partial(feddap, **options), num_rounds=3)
    assert any(not torch.equal(full.server[key], value) for key, value in plain.server.items())
    assert [record["cohort"] for record in neutral.history] == [record["cohort"] for record in plain.history]


def test_neutral_also_with_random_layers_and_another_memory_format(segmentation_run):
    """Segformer draws random paths in training; channels_last changes which kernels add up the gradients."""
    tasks = {
        "segformer": partial(SegmentationTask, "segformer", "mit_b0", CLASSES, 3, "ce_dice", decoder_channels=8),
        "channels_last": small_segmentation_task,
    }
    for name, task in tasks.items():
        options = {"channels_last": name == "channels_last"}
        plain, neutral = (segmentation_run(m, num_rounds=2, make_task=task, options=options) for m in (FedAvg, partial(feddap, **OFF)))
        assert all(torch.equal(neutral.server[key], value) for key, value in plain.server.items()), name


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_one_forward_pass_a_batch(options, segmentation_run):
    calls = {True: 0, False: 0}

    def count(engine):
        engine.task.model.register_forward_hook(lambda module, *_: calls.__setitem__(module.training, calls[module.training] + 1))

    outcome = segmentation_run(partial(feddap, **options), num_rounds=2, before=count, evaluate_every=1)
    assert calls[True] == sum(row["num_steps"] for row in outcome.clients if row["phase"] == "train")


class Watched(FedDAP):
    """Notes the modulators and the gate with which a visit begins and ends."""

    visits: list

    def _own(self, task):
        own = self._modulator_keys(task) | self._gate_keys(task)
        return {key: value.clone() for key, value in task.model_state().items() if key in own}

    def on_local_start(self, local):
        super().on_local_start(local)
        self.visits.append((local.round, local.client, self._own(local.task), {}))

    def on_local_end(self, local):
        super().on_local_end(local)
        self.visits[-1][3].update(self._own(local.task))


def test_modulators_stay_local_until_a_synchronisation_replaces_them(segmentation_run):
    """Also for the client that was absent: it begins with its cluster's average, and from then on with its own."""
    method = Watched(**REQUIRED)
    method.visits = []
    outcome = segmentation_run(lambda: method, num_rounds=8, clients_per_round=3, seed=5)
    averages, last, kinds = {}, {}, set()
    clusters = {(row["round"], row["client"]): row.get("feddap/cluster") for row in outcome.clients if row["phase"] == "train"}
    for round in range(1, 9):
        now = [visit for visit in method.visits if visit[0] == round]
        for _, client, start, _ in now:
            seen, sync = last.get(client.id, (0, None))[0], round - 1 - (round - 1) % 2
            if sync > 0 and seen <= sync:
                means, gate = averages[sync]
                assert all(torch.equal(start[key], value) for key, value in gate.items())
                if seen:
                    found = [number for number, mean in means.items() if all(torch.equal(start[key], mean[key]) for key in mean)]
                    assert len(found) == 1
                    kinds.add("absent" if seen < sync else "present")
                    if seen == sync:
                        assert found == [clusters[sync, client.id]]
            elif seen:
                kinds.add("own")
                assert all(torch.equal(start[key], value) for key, value in last[client.id][1].items())
        for _, client, _, end in now:
            last[client.id] = (round, end)
        if round % 2 == 0:
            averages[round] = averages_of(now, {client.id: clusters[round, client.id] for _, client, _, _ in now})
    assert kinds == {"absent", "present", "own"}


def averages_of(visits, clusters):
    """Sample-weighted means by cluster, and of the gate over all, in plain float64 loops."""

    def mean(chosen):
        total = sum(client.num_samples for _, client, _, _ in chosen)
        return {key: sum(end[key].double() * (c.num_samples / total) for _, c, _, end in chosen).float() for key in chosen[0][3]}

    gate = {key: value for key, value in mean(visits).items() if ".gate." in key}
    means = {
        number: {
            key: value for key, value in mean([visit for visit in visits if clusters[visit[1].id] == number]).items() if ".gate." not in key
        }
        for number in set(clusters.values())
    }
    return means, gate


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
    keys = method._modulator_keys(task) | method._gate_keys(task)
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
    server = method.aggregate(server, uploads_of(method, task, clients[4:5], [8.0], sync=False))  # client 4 is known, then absent
    server = method.aggregate(server, uploads_of(method, task, clients[:4], [0.0, 9.0, 1.0, 10.0], sync=True))
    spectral, gate = "model/feddap.spectral.mlp.0.bias", "model/feddap.gate.0.bias"
    weight = np.array(SIZES[:4], dtype=float)
    low, high = ((1 * weight[0] + 3 * weight[2]) / (weight[0] + weight[2]), (2 * weight[1] + 4 * weight[3]) / (weight[1] + weight[3]))
    for client, expected in ((0, low), (1, high), (2, low), (3, high), (4, high)):
        torch.testing.assert_close(method.download(server, client)[spectral], torch.full((8,), expected, dtype=torch.float32))
    unknown = method.download(server, 5)
    assert spectral not in unknown
    torch.testing.assert_close(unknown[gate], torch.full((8,), float(weight @ [1, 2, 3, 4] / weight.sum())))
    server = method.aggregate(server, uploads_of(method, task, clients[:1] + clients[5:], [0.0, 1.0], sync=False))
    for client, pending in ((0, False), (5, False), (1, True), (4, True)):
        received = method.download(server, client)
        assert (gate in received) == pending
        assert not any(key.startswith("feddap/") and key not in ("feddap/anchors", "feddap/valid") for key in received)
    assert server["feddap/cluster"].tolist() == [0, 1, 0, 1, 1, -1]


def test_never_synchronising_sends_no_modulators(segmentation_run):
    outcome = segmentation_run(partial(feddap, sync_every=None), num_rounds=3)
    assert not any(key.startswith(("feddap/modulators", "feddap/gate")) for key in outcome.server)
    assert not outcome.server["feddap/pending"].any()


@pytest.mark.parametrize("source", ["training_batches", "statistics_pass"])
@pytest.mark.parametrize("num_domains", [2, 3, 4])
def test_clusters_are_the_domains(num_domains, source, segmentation_run):
    domains = [client % num_domains for client in range(2 * num_domains)]
    federation = make_segmentation_federation((16,) * len(domains), domains)
    method = partial(feddap, num_clusters=num_domains, descriptor_source=source, spectral_dim=16, spatial_dim=8)
    gently = partial(torch.optim.SGD, lr=0.01)
    schedule = {"num_rounds": 2, "local_epochs": 2, "clients_per_round": None, "evaluate_every": 9, "optimizer": gently}
    outcome = segmentation_run(method, federation=federation, **schedule)
    cluster, truth = outcome.server["feddap/cluster"], torch.tensor(domains)
    assert torch.equal(cluster[:, None] == cluster, truth[:, None] == truth)


@pytest.mark.parametrize(("scaling", "same"), [("zscore", [[0, 2], [1, 3]]), ("balanced", [[0, 1], [2, 3]]), ("none", [[0, 3], [1, 2]])])
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
    anchors = F.normalize(torch.randn(server["feddap/anchors"].shape, generator=torch.Generator().manual_seed(1)), dim=1)
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
    assert bool(gradients["model.feddap.spectral.mlp.2.bias"].abs().max() > 1e-6) == supervised  # drift is flat at the anchors
    small = batch_of(labels)["mask"][:, ::4, ::4]
    assert local.scratch["counts"].tolist() == [int((small == number).sum()) for number in range(CLASSES)]


def test_half_precision_stops_in_front_of_sums_and_losses():
    method, task, _, server = hooks(anchor_source="last_epoch")
    server, batch = with_anchors(server, [True] * 3), batch_of([0, 1, 2])
    task.eval()
    local, terms = visit(method, task, server, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low, rough = visit(method, task, server, batch)
        exact = low.scratch["sums"].norm(dim=1)
    assert {term.dtype for term in rough.values()} == {torch.float32}
    assert low.memory["feddap/descriptor"].dtype == torch.float32
    torch.testing.assert_close(rough, terms, rtol=0.03, atol=0.01)
    assert bool((exact <= low.scratch["counts"]).all())  # sums of unit vectors
    pixels = F.normalize(task.model.feddap.head(task(batch["image"]).embedding), dim=1).permute(0, 2, 3, 1)
    inside = batch["mask"][:, ::4, ::4] == 1
    torch.testing.assert_close(local.scratch["sums"][1].float(), pixels[inside].sum(0), rtol=1e-4, atol=1e-4)


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
    torch.testing.assert_close(prototypes.dap, F.normalize(alpha * prototypes.branches[0] + (1 - alpha) * prototypes.branches[1], dim=1))


def test_detached_descriptors_leave_the_backbone_alone():
    for detach in (True, False):
        _, task, _, _ = hooks(detach_descriptors=detach)
        output = task(batch_of([0, 1])["image"])
        task.model.feddap.descriptors(Output(output.logits, output.embedding, output.shallow, output.deep))[0].sum().backward()
        assert (task.model.encoder.conv1.weight.grad is None) == detach


def test_one_participant_and_a_class_nobody_has(segmentation_run):
    outcome = segmentation_run(feddap, make_task=partial(small_segmentation_task, CLASSES + 1), num_rounds=4, clients_per_round=1)
    assert outcome.server["feddap/valid"].tolist() == [True] * CLASSES + [False]
    assert not outcome.server["feddap/anchors"][CLASSES].any()
    assert all(bool(torch.isfinite(value.double()).all()) for value in outcome.server.values())


def test_a_client_without_a_labelled_pixel(segmentation_run):
    federation = make_segmentation_federation()
    federation.source.masks[federation.clients[0].train] = 255
    outcome = segmentation_run(feddap, federation=federation, num_rounds=3, clients_per_round=None)
    rows = [row for row in outcome.clients if row["phase"] == "train" and row["client"] == 0]
    assert [row["loss/task"] + row["loss/dap"] + row["loss/anchor"] for row in rows] == [0, 0, 0]
    assert all(bool(torch.isfinite(value.double()).all()) for value in outcome.server.values())


def test_the_client_log_tells_gates_drifts_and_clusters(segmentation_run):
    names = ["road", "roof", "tree"]
    outcome = segmentation_run(feddap, make_task=partial(small_segmentation_task, class_names=names), num_rounds=3, clients_per_round=None)
    train = {number: [row for row in outcome.clients if row["phase"] == "train" and row["round"] == number] for number in (1, 2, 3)}
    kinds = ("gate", "drift_spec", "drift_spa", "drift_dap")
    assert not any(key.startswith("feddap/") for row in train[1] for key in row)
    for row in train[2] + train[3]:
        assert {f"feddap/{kind}/{name}" for kind in kinds for name in names} | {"feddap/cluster"} <= row.keys()
        assert all(0 < row[f"feddap/gate/{name}"] < 1 for name in names)
        assert {"loss/task", "loss/dap", "loss/anchor", "loss/drift"} <= row.keys()
    assert any(row["feddap/drift_spec/road"] > 1e-6 for row in train[3])


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
    assert {key.split(".")[1] for key in method.sent_keys(task) if "feddap" in key} == {"head", "spectral_conv", "spatial_conv"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "temperature: 0 is not a positive number"),
        ({"eps": 0.0}, "eps: 0.0 is not a positive number"),
        ({"lambda_drift": -1}, "lambda_drift: -1 is not a number of at least 0; 0 switches the term off"),
        ({"smoothing": 1.0}, r"smoothing: 1.0 is not in \[0, 1\)"),
        ({"sync_every": 0}, "sync_every: 0 is below 1; null never synchronises"),
        ({"hidden_sizes": [8, 0]}, "hidden_sizes: 0 is below 1"),
        ({"clustering": "dbscan"}, "clustering: 'dbscan' is not one of kmeans, finch"),
        ({"num_clusters": None}, "kmeans needs a number"),
        ({"clustering": "finch"}, "finch finds the number itself, so set null"),
        ({"gate": "open"}, "gate: 'open' is not one of"),
        ({"activation": "step"}, "activation: 'step' is not one of"),
        ({"anchor_warmup_rounds": 0}, "anchor_warmup_rounds: 0 is below 1"),
    ],
)
def test_mistakes_are_explained(options, message):
    with pytest.raises(ConfigError, match=message):
        feddap(**options)


def test_open_values_have_no_default():
    for name in REQUIRED:
        with pytest.raises(TypeError, match=name):
            FedDAP(**{key: value for key, value in REQUIRED.items() if key != name})


def test_a_classification_task_is_refused():
    with pytest.raises(ConfigError, match="FedDAP needs a segmentation task with shallow and deep features; ClassificationTask has none"):
        feddap().adapt(ClassificationTask("resnet18", 4, 3, width=4, stem="small"))
    assert issubclass(FedDAP, Base)
