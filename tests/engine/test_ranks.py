"""Cohorts and spooled uploads on real gloo processes; tests/methods shows for every method that the number of ranks
does not matter.
"""

from fedrs_lightning.engine.cohort import CohortSampler
from fedrs_lightning.methods import FedAvg, FedBN, FedMAD
from fedrs_lightning.types import Client


def test_a_cohort_smaller_than_the_ranks_works(tiny_run):
    assert (
        tiny_run(FedBN, world_size=3, clients_per_round=2, num_rounds=2).digest
        == tiny_run(FedBN, clients_per_round=2, num_rounds=2).digest
    )


def test_spooled_uploads_give_the_same_bits(tiny_run):
    reference = tiny_run(FedMAD, num_rounds=2)
    for world_size, budget in ((1, 0.0), (2, 150_000.0)):
        spooled = tiny_run(FedMAD, num_rounds=2, options={"upload_memory": budget}, world_size=world_size)
        assert spooled.digest == reference.digest


def test_another_seed_gives_another_run_and_the_same_seed_the_same(tiny_run):
    first, again, other = (tiny_run(FedAvg, seed=seed, num_rounds=2) for seed in (4, 4, 3))
    assert first.digest == again.digest != other.digest


def test_cohorts_are_partial_and_vary(tiny_run):
    sampler = CohortSampler([Client(number, 5) for number in range(6)], 4, seed=3)
    cohorts = [[client.id for client in sampler.sample(round)] for round in range(1, 7)]
    assert all(len(cohort) == 4 and cohort == sorted(set(cohort)) for cohort in cohorts)
    assert len({tuple(cohort) for cohort in cohorts}) > 1
    assert [record["cohort"] for record in tiny_run(FedAvg, num_rounds=2).history] == cohorts[:2]
