import numpy as np
import pytest

from fedrs_lightning.errors import RunError
from fedrs_lightning.results.summary import summarise

FACTS = {
    "experiment": "e",
    "method": "FedBN",
    "seed": 3,
    "config_hash": "h",
    "num_rounds": 6,
    "protocol": "personal_common",
    "metric": "overall_accuracy",
    "protocols": {"personal_common": "each client's model on the common test set"},
    "members": [{"client": 0, "name": "north", "num_samples": 30}, {"client": 4, "name": "south", "num_samples": 10}],
    "classes": ["a", "b"],
    "synthetic_data": False,
    "digest": "d",
    "digest_model": "m",
}
KEY = "personal_common/overall_accuracy"


def rounds(values, **more):
    return [
        {
            "round": number,
            "metrics": {KEY: value} | {name: series[number - 1] for name, series in more.items()},
            "bytes": {"up": 3, "down": 5},
            "timing": {"seconds": 0.5},
        }
        for number, value in enumerate(values, start=1)
    ]


def test_last_and_the_mean_over_the_last_four_evaluated_rounds():
    values = [0.1, 0.2, None, 0.4, 0.7, 0.5]
    loss = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    result = summarise(rounds(values, **{"train/loss": loss, f"{KEY}_weighted": [None] * 5 + [0.55]}), [], **FACTS)
    assert result["headline"] == {
        "protocol": "personal_common",
        "metric": "overall_accuracy",
        "last": 0.5,
        "last4": pytest.approx(np.mean([0.2, 0.4, 0.7, 0.5]), abs=1e-15),
        "weighted": 0.55,
    }
    assert result["last4_rounds"] == [2, 4, 5, 6]
    # A metric that one of the four rounds lacks has no such mean.
    assert result["last4"] == {KEY: result["headline"]["last4"], "train/loss": np.mean([5.0, 3.0, 2.0, 1.0])}
    assert result["final"] == {KEY: 0.5, "train/loss": 1.0, f"{KEY}_weighted": 0.55}
    assert (result["label"], result["num_clients"], result["best"]) == ("FedBN", 2, None)
    assert (result["bytes"], result["wall_seconds"]) == ({"up": 18, "down": 30}, 3.0)


def test_a_short_run_averages_what_it_has():
    result = summarise(rounds([0.2, 0.4]), [], **FACTS)
    assert (result["headline"]["last4"], result["last4_rounds"]) == (pytest.approx(0.3), [1, 2])


def test_best_round_is_chosen_on_validation_and_the_earliest_of_equals():
    result = summarise(
        rounds([0.9, 0.2, 0.3, 0.4], **{"validation/overall_accuracy": [0.1, 0.8, 0.8, None]}), [], **FACTS
    )
    assert (result["best"]["round"], result["best"]["chosen_on"], result["best"]["value"]) == (2, "validation", 0.8)
    assert result["best"]["metrics"][KEY] == 0.2
    assert result["headline"]["last"] == 0.4


def test_per_client_rows_come_from_the_last_round_only():
    log = [
        {
            "round": 1,
            "client": 0,
            "phase": "evaluate",
            "protocol": "personal_common",
            "overall_accuracy": 0.9,
            "num_test": 7,
        },
        {"round": 1, "client": 0, "phase": "train", "num_steps": 4},
        {"round": 2, "client": 4, "phase": "train", "num_steps": 5},
        {
            "round": 2,
            "client": 4,
            "phase": "evaluate",
            "protocol": "personal_common",
            "overall_accuracy": 0.4,
            "num_test": 7,
        },
        {
            "round": 2,
            "client": 4,
            "phase": "evaluate",
            "protocol": "personal_own",
            "overall_accuracy": 0.6,
            "num_test": 2,
        },
    ]
    result = summarise(rounds([0.2, 0.4]), log, **FACTS)
    assert result["per_client"] == [
        {"client": 0, "name": "north", "num_samples": 30},
        {
            "client": 4,
            "name": "south",
            "num_samples": 10,
            "overall_accuracy": 0.4,
            "num_test": 7,
            "personal_own/overall_accuracy": 0.6,
            "personal_own/num_test": 2,
        },
    ]
    assert result["optimizer_steps"] == 9


@pytest.mark.parametrize(
    ("history", "log", "message"),
    [
        ([], [], "no finished round"),
        (rounds([0.1, None]), [], "round 2 has no personal_common/overall_accuracy"),
        (rounds([0.1]), [{"round": 1, "client": 9, "phase": "evaluate", "protocol": "global"}], "evaluates client 9"),
    ],
)
def test_logs_that_cannot_be_summed_up_are_errors(history, log, message):
    with pytest.raises(RunError, match=message):
        summarise(history, log, **FACTS)
