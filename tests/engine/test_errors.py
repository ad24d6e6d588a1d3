"""Every way in which a run refuses or fails: named client, round, term and remedy, on all ranks alike."""

from functools import partial

import pytest
import torch

from fedrs_lightning.errors import ConfigError, RunError, TrainingError
from fedrs_lightning.methods import FedAvg, FedBN, LocalOnly

from .conftest import make_engine, make_federation, on_ranks, run


class Spoilt(FedAvg):
    """Uploads that are not finite, from one client in one round."""

    def on_local_end(self, local):
        if local.client.id == 2 and local.round == 2:
            next(local.task.model.parameters()).data.view(-1)[0] = float("nan")


def test_loss_that_is_not_finite(tmp_path):
    with pytest.raises(
        TrainingError,
        match=r"client \d, round \d: loss term 'task' is (nan|inf) \(first at local step \d+ of \d+\); lower",
    ):
        run(FedAvg, tmp_path, optimizer=partial(torch.optim.SGD, lr=1e20))


def test_upload_that_is_not_finite_and_nothing_is_lost(tmp_path):
    with pytest.raises(TrainingError, match=r"client 2, round 2: its upload model/conv1.weight is not finite"):
        run(Spoilt, tmp_path, clients_per_round=None)
    assert (tmp_path / "checkpoints" / "round-00001.safetensors").exists()
    assert run(FedAvg, tmp_path, clients_per_round=None).round == 3


def test_private_parameter_that_is_not_finite(tmp_path):
    class Diverged(LocalOnly):
        on_local_end = Spoilt.on_local_end

    with pytest.raises(
        TrainingError, match=r"client 2, round 2: model/conv1.weight is not finite after local training"
    ):
        run(Diverged, tmp_path, clients_per_round=None)


def test_a_failure_on_one_rank_is_raised_on_all(tmp_path):
    """Client 2 trains on rank 1 or 0; either way rank 0 reports it, in the same words."""

    def body(fabric):
        engine = make_engine(fabric, FedAvg(), tmp_path, optimizer=partial(torch.optim.SGD, lr=1e20))
        try:
            engine.fit()
        except TrainingError as error:
            return engine.exchange.collect(str(error))
        return None

    messages = on_ranks(2, body)
    assert len(messages) == 2
    assert messages[0] == messages[1]
    assert "round 1: loss term" in messages[0]


def test_an_evaluation_that_fails_on_one_rank_fails_on_all(tmp_path):
    def body(fabric):
        engine = make_engine(fabric, FedBN(), tmp_path, num_rounds=1)
        load = engine.memory.load

        def lost(client_id):
            if client_id == 2 and engine.task.training is False:
                raise RunError(f"the memory of client {client_id} is lost")
            return load(client_id)

        engine.memory.load = lost
        try:
            engine.fit()
        except RunError as error:
            return engine.exchange.collect(str(error))
        return None

    assert on_ranks(2, body) == ["the memory of client 2 is lost"] * 2


@pytest.mark.parametrize(
    ("sizes", "schedule", "message"),
    [
        ((5, 0, 7), {}, r"client 1 \(site 1\) has no training samples"),
        (
            (5, 9, 7),
            {"min_last_batch": 0},
            r"client 1 \(site 1\) has 9 samples, so a batch of 1 .* set schedule.min_last_batch to null",
        ),
        ((5, 1, 7), {}, r"client 1 \(site 1\) has 1 training sample, and .* leave the client out"),
        ((5, 9, 7), {"clients_per_round": 4}, r"clients_per_round=4, but there are 3 clients; choose 1 to 3"),
        ((5, 9, 7), {"clients_per_round": 0}, r"clients_per_round=0"),
        ((5, 9, 7), {"num_rounds": 0}, r"schedule.num_rounds=0 must be at least 1"),
        ((5, 9, 7), {"batch_size": 0}, r"schedule.batch_size=0"),
        ((5, 9, 7), {"local_epochs": 0}, r"schedule.local_epochs=0"),
    ],
)
def test_settings_that_cannot_work(sizes, schedule, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        run(FedBN, tmp_path, federation=make_federation(sizes), **{"clients_per_round": None} | schedule)


def test_a_missing_client_memory_is_named(tmp_path):
    def lose(engine):
        for file in engine.memory.folder.iterdir():
            file.unlink()

    run(FedBN, tmp_path, before=lambda engine: setattr(engine.schedule, "num_rounds", 2))
    with pytest.raises(RunError, match=r"clients/00000\d\.r0000\d\.safetensors: cannot read the memory of client \d"):
        run(FedBN, tmp_path, before=lose)
