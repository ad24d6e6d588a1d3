"""Cohorts and spooled uploads on real gloo processes; tests/methods shows for every method that the number of ranks
does not matter.
"""

from fedrs_lightning.methods import FedAvg, FedBN, FedMAD


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
