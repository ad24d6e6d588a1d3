"""FedDAP in the engine: bits, memory between synchronisations, clusters, and clients without anything to learn from."""

from functools import partial

import pytest
import torch

from fedrs_lightning.methods import FedAvg, FedDAP
from fedrs_lightning.methods.feddap import ADAPTERS, _keys
from fedrs_lightning.tasks import SegmentationTask

from .checks import federated_averaging
from .conftest import CLASSES, FEDDAP, feddap, make_segmentation_federation, small_segmentation_task

OFF = {"lambda_dap": 0.0, "lambda_inv": 0.0, "lambda_drift": 0.0}


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
def test_without_its_terms_it_is_federated_averaging(options, segmentation_run):
    plain = federated_averaging(segmentation=True)
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
        plain, neutral = (
            segmentation_run(m, num_rounds=2, make_task=task, options=options) for m in (FedAvg, partial(feddap, **OFF))
        )
        assert all(torch.equal(neutral.server[key], value) for key, value in plain.server.items()), name


class Watched(FedDAP):
    """Notes the modulators and the gate with which a visit begins and ends."""

    visits: list

    def _own(self, task):
        own = _keys(task, *ADAPTERS)
        return {key: value.clone() for key, value in task.model_state().items() if key in own}

    def on_local_start(self, local):
        super().on_local_start(local)
        self.visits.append((local.round, local.client, self._own(local.task), {}))

    def on_local_end(self, local):
        super().on_local_end(local)
        self.visits[-1][3].update(self._own(local.task))


def test_modulators_stay_local_until_a_synchronisation_replaces_them(segmentation_run):
    """Also for the client that was absent: it begins with its cluster's average, and from then on with its own."""
    method = Watched(**FEDDAP)
    method.visits = []
    outcome = segmentation_run(lambda: method, num_rounds=8, clients_per_round=3, seed=5)
    averages, last, kinds = {}, {}, set()
    clusters = {
        (row["round"], row["client"]): row.get("feddap/cluster") for row in outcome.clients if row["phase"] == "train"
    }
    for round in range(1, 9):
        now = [visit for visit in method.visits if visit[0] == round]
        for _, client, start, _ in now:
            seen, sync = last.get(client.id, (0, None))[0], round - 1 - (round - 1) % 2
            if sync > 0 and seen <= sync:
                means, gate = averages[sync]
                assert all(torch.equal(start[key], value) for key, value in gate.items())
                if seen:
                    found = [
                        number
                        for number, mean in means.items()
                        if all(torch.equal(start[key], mean[key]) for key in mean)
                    ]
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
        return {
            key: sum(end[key].double() * (c.num_samples / total) for _, c, _, end in chosen).float()
            for key in chosen[0][3]
        }

    gate = {key: value for key, value in mean(visits).items() if ".gate." in key}
    means = {
        number: {
            key: value
            for key, value in mean([visit for visit in visits if clusters[visit[1].id] == number]).items()
            if ".gate." not in key
        }
        for number in set(clusters.values())
    }
    return means, gate


def test_never_synchronising_sends_no_modulators(segmentation_run):
    outcome = segmentation_run(partial(feddap, sync_every=None), num_rounds=3)
    assert not any(key.startswith(("feddap/modulators", "feddap/gate")) for key in outcome.server)
    assert not outcome.server["feddap/pending"].any()


@pytest.mark.parametrize("num_domains", [2, 4])
def test_clusters_are_the_domains(num_domains, segmentation_run):
    """Where descriptors come from a pass over the data. Measured over seeds 3 to 12: two clients of different domains
    lie at least 2.5 times as far apart as two of the same. In training batches, where batch norm levels the domains,
    they lie 0.8 to 1.2 times as far apart, so that no such outcome can be expected there.
    """
    domains = [client % num_domains for client in range(2 * num_domains)]
    federation = make_segmentation_federation((16,) * len(domains), domains, shift=2.0)
    options = {"descriptor_source": "statistics_pass", "spectral_dim": 16, "spatial_dim": 8}
    method = partial(feddap, num_clusters=num_domains, **options)
    gently = partial(torch.optim.SGD, lr=0.01)
    schedule = {"num_rounds": 2, "local_epochs": 2, "clients_per_round": None, "evaluate_every": 9, "optimizer": gently}
    outcome = segmentation_run(method, federation=federation, **schedule)
    cluster, truth = outcome.server["feddap/cluster"], torch.tensor(domains)
    assert torch.equal(cluster[:, None] == cluster, truth[:, None] == truth)


def test_one_participant_and_a_class_nobody_has(segmentation_run):
    outcome = segmentation_run(
        feddap, make_task=partial(small_segmentation_task, CLASSES + 1), num_rounds=4, clients_per_round=1
    )
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
    outcome = segmentation_run(
        feddap, make_task=partial(small_segmentation_task, class_names=names), num_rounds=3, clients_per_round=None
    )
    train = {
        number: [row for row in outcome.clients if row["phase"] == "train" and row["round"] == number]
        for number in (1, 2, 3)
    }
    kinds = ("gate", "drift_spec", "drift_spa", "drift_dap")
    assert not any(key.startswith("feddap/") for row in train[1] for key in row)
    for row in train[2] + train[3]:
        assert {f"feddap/{kind}/{name}" for kind in kinds for name in names} | {"feddap/cluster"} <= row.keys()
        assert all(0 < row[f"feddap/gate/{name}"] < 1 for name in names)
        assert {"loss/task", "loss/dap", "loss/anchor", "loss/drift"} <= row.keys()
    assert any(row["feddap/drift_spec/road"] > 1e-6 for row in train[3])
