"""Cohorts and spooled uploads on real gloo processes; tests/methods shows for every method that the number of ranks
does not matter.
"""

import time
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from fedrs_lightning.engine.checkpoint import CheckpointStore
from fedrs_lightning.engine.cohort import CohortSampler
from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods import FedAvg, FedBN, FedGPS, FedMAD
from fedrs_lightning.methods.base import normalise
from fedrs_lightning.tasks import ClassificationTask
from fedrs_lightning.types import Client

from .conftest import CLASSES, on_ranks, play, run


def test_a_cohort_smaller_than_the_ranks_works(tiny_run):
    assert (
        tiny_run(FedBN, world_size=3, clients_per_round=2, num_rounds=2).digest
        == tiny_run(FedBN, clients_per_round=2, num_rounds=2).digest
    )


@pytest.mark.parametrize("make", [FedAvg, FedMAD, FedGPS], ids=lambda make: make.__name__)
def test_uploads_in_files_and_between_machines_give_the_same_bits(make, tiny_run):
    """FedAvg is summed while clients train, FedMAD needs all uploads, FedGPS sends entries of its own."""
    reference = tiny_run(make, num_rounds=2)
    for world_size, options in (
        (1, {"upload_memory": 0.0}),
        (2, {"upload_memory": 150_000.0}),
        (2, {"share_memory": False}),
        (3, {"share_memory": False, "upload_memory": 0.0}),
    ):
        other = tiny_run(make, num_rounds=2, options=options, world_size=world_size)
        assert other.digest == reference.digest, (world_size, options)
        assert other.history[-1]["bytes"] == reference.history[-1]["bytes"]
        assert other.clients == reference.clients


class Slow(FedAvg):
    """Rank 0 takes long over the first client that it trains in a round."""

    def on_local_start(self, local):
        seen = self.__dict__.setdefault("rounds", set())
        if local.fabric.global_rank == 0 and local.round not in seen:
            seen.add(local.round)
            time.sleep(0.5)


def test_a_slow_rank_holds_nobody_up(tmp_path):
    """Others train what it would have trained, and no bit changes."""
    ranks = {}

    def note(engine):
        finish = engine.collector.finish

        def noted(out):
            gathered = finish(out)
            ranks[engine.round] = gathered.ranks
            return gathered

        engine.collector.finish = noted

    def body(fabric):
        return replace(play(fabric, Slow, tmp_path / "two", note, clients_per_round=None), server={}), ranks

    outcome, trained = on_ranks(2, body)
    assert outcome.digest == run(FedAvg, tmp_path / "one", clients_per_round=None).digest
    assert len(trained) == 3
    for of_round in trained.values():
        assert sorted(of_round) == list(range(6))
        assert list(of_round.values()).count(0) < 3  # so many it would be dealt


def test_a_run_leaves_no_uploads_behind(tmp_path):
    run(FedMAD, tmp_path, num_rounds=1, world_size=2, options={"upload_memory": 0.0})
    assert not [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]


class LooksAtUploads(FedAvg):
    streams = True

    def aggregate(self, server, uploads):
        return super().aggregate(server, uploads) | {"first": uploads[0].state["model/fc.weight"]}


class WeightsByLoss(FedAvg):
    streams = True

    def weights(self, server, uploads):
        losses = [1 + upload.log.get("loss/task", 0.0) for upload in uploads]
        return normalise(torch.tensor(losses))


@pytest.mark.parametrize(
    ("make", "reason"),
    [(LooksAtUploads, "no entry model/fc.weight any more"), (WeightsByLoss, "are others than before it")],
)
def test_a_method_that_needs_all_uploads_must_say_so(make, reason, tmp_path):
    with pytest.raises(ConfigError, match=f"{reason}.* `streams = False`"):
        run(make, tmp_path, num_rounds=1)


def test_methods_that_override_the_server_get_all_uploads_unless_they_say_otherwise():
    assert FedAvg.streams
    assert FedBN.streams
    assert FedGPS.streams
    assert not FedMAD.streams
    assert not Noting.streams


class Noting(FedAvg):
    """Notes which entries of each upload are trainable parameters, and keeps an entry on the server."""

    def init_server(self, task, clients):
        return {"noting/parameters": torch.zeros(0, dtype=torch.int64), "noting/secret": torch.ones(3)}

    def on_local_start(self, local):
        assert not any(key.startswith("noting/") for key in local.received)

    def aggregate(self, server, uploads):
        buffers = [key for key in uploads[0].state if key not in uploads[0].parameters]
        assert all(key.endswith(("running_mean", "running_var", "num_batches_tracked")) for key in buffers)
        counts = torch.tensor([len(upload.parameters) for upload in uploads])
        return super().aggregate(server, uploads) | {"noting/parameters": counts}


@pytest.mark.parametrize("world_size", [1, 2])
def test_parameters_are_named_and_server_entries_stay_on_the_server(world_size, tmp_path):
    run(Noting, tmp_path, world_size=world_size, num_rounds=1, options={"upload_memory": 150_000.0})
    counts = CheckpointStore(tmp_path / "checkpoints").newest().server["noting/parameters"]
    assert counts.tolist() == [len(list(make_parameters()))] * 4


class CountsThreads(FedAvg):
    """Notes with how many threads the server computes."""

    seen: ClassVar[list[int]] = []

    def aggregate(self, server, uploads):
        self.seen.append(torch.get_num_threads())
        return super().aggregate(server, uploads)


def test_the_server_computes_with_one_thread_whatever_a_rank_has(tmp_path):
    """Sums of inner products, as FedAWA takes them, have other bits with another number of threads."""
    try:
        run(CountsThreads, tmp_path, num_rounds=1, before=lambda engine: torch.set_num_threads(3))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert CountsThreads.seen == [1]


def make_parameters():
    return ClassificationTask("resnet18", CLASSES, 3, width=4, stem="small").parameters()


def test_another_seed_gives_another_run_and_the_same_seed_the_same(tiny_run):
    first, again, other = (tiny_run(FedAvg, seed=seed, num_rounds=2) for seed in (4, 4, 3))
    assert first.digest == again.digest != other.digest


def test_cohorts_are_partial_and_vary(tiny_run):
    sampler = CohortSampler([Client(number, 5) for number in range(6)], 4, seed=3)
    cohorts = [[client.id for client in sampler.sample(round)] for round in range(1, 7)]
    assert all(len(cohort) == 4 and cohort == sorted(set(cohort)) for cohort in cohorts)
    assert len({tuple(cohort) for cohort in cohorts}) > 1
    assert [record["cohort"] for record in tiny_run(FedAvg, num_rounds=2).history] == cohorts[:2]
