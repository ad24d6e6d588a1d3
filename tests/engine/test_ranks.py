"""The number of ranks does not matter: real gloo processes, unequal clients, partial participation."""

from functools import partial

import pytest

from fedrs_lightning.methods import Centralised, FedAvg, FedBN, FedMAD, LocalOnly

METHODS = [FedAvg, FedBN, partial(FedMAD, num_layers=4), LocalOnly, Centralised, partial(FedAvg, buffers="keep_client")]
NAMES = ["FedAvg", "FedBN", "FedMAD", "LocalOnly", "Centralised", "keep_client"]


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_rank_count_does_not_matter(method, tiny_run):
    options = {"clients_per_round": None} if method is Centralised else {}
    one = tiny_run(method, world_size=1, **options)
    for world_size in (2, 3):
        several = tiny_run(method, world_size=world_size, **options)
        assert several.digest == one.digest
        assert several.history == one.history
        assert several.clients == one.clients
    assert one.round == 3
    assert any(key.startswith("model/") for key in one.server) == (method is not LocalOnly)


def test_a_cohort_smaller_than_the_ranks_works(tiny_run):
    assert tiny_run(FedBN, world_size=3, clients_per_round=2).digest == tiny_run(FedBN, clients_per_round=2).digest


def test_spooled_uploads_give_the_same_bits(tiny_run):
    reference = tiny_run(FedMAD)
    assert tiny_run(FedMAD, options={"upload_memory": 0.0}).digest == reference.digest
    assert tiny_run(FedMAD, options={"upload_memory": 150_000.0}, world_size=2).digest == reference.digest


def test_another_seed_gives_another_run_and_the_same_seed_the_same(tiny_run):
    assert tiny_run(FedAvg, seed=4).digest != tiny_run(FedAvg, seed=3).digest
    assert tiny_run(FedAvg, seed=4).digest == tiny_run(FedAvg, seed=4).digest


def test_cohorts_are_partial_and_vary(tiny_run):
    cohorts = [record["cohort"] for record in tiny_run(FedAvg, num_rounds=6).history]
    assert all(len(cohort) == 4 and cohort == sorted(set(cohort)) for cohort in cohorts)
    assert len({tuple(cohort) for cohort in cohorts}) > 1
