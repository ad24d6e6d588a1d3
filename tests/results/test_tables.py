import csv
import io
import json

import numpy as np
import pytest

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.results.plots import plot_clients
from fedrs_lightning.results.render import FORMATS, render
from fedrs_lightning.results.tables import collect, tabulate

SHARES = np.array([120, 40, 300]) / 460


@pytest.fixture
def expected(curve):
    """Mean and sample deviation over seeds, from the formula of the curves."""

    def value(level, seeds, rule):
        per_round = curve(level, seeds) @ SHARES if rule == "weighted" else curve(level, seeds).mean(2)
        values = per_round[:, -4:].mean(1) if rule == "last4" else per_round[:, -1]
        return np.mean(values), np.std(values, ddof=1) if len(seeds) > 1 else None

    return value


def rows_of(stores, metrics=()):
    collection = collect(stores)
    (table,) = json.loads(render(tabulate(collection, metrics), collection, "json"))["tables"]
    return {row["label"]: row for row in table["rows"]}, collection


def test_mean_and_deviation_over_seeds(make_run, expected):
    stores = [make_run(method="FedMAD", seed=seed, level=0.5) for seed in (2, 0, 1)]
    stores += [make_run(method="FedBN", seed=0, level=0.6), make_run(method="FedAvg", seed=0, level=0.4)]
    rows, collection = rows_of(stores)
    assert list(rows) == ["FedMAD", "FedBN", "FedAvg"]
    for label, level, seeds in (("FedMAD", 0.5, [0, 1, 2]), ("FedBN", 0.6, [0])):
        for column, rule in (
            ("last round", "last"),
            ("mean of last rounds", "last4"),
            ("weighted, last round", "weighted"),
        ):
            cell = rows[label]["columns"][column]
            mean, deviation = expected(level, seeds, rule)
            assert cell["mean"] == pytest.approx(mean, abs=1e-12)
            assert cell["deviation"] == (pytest.approx(deviation, abs=1e-12) if deviation is not None else None)
            assert cell["best"] == (label == "FedBN")
        assert rows[label]["seeds"] == seeds
        assert rows[label]["columns"]["global, last round"] is None
    assert rows["FedAvg"]["columns"]["global, last round"]["mean"] == pytest.approx(expected(0.4, [0], "last")[0])
    first = rows["FedMAD"]["columns"]["last round"]["values"]
    assert first == [pytest.approx(expected(0.5, [seed], "last")[0]) for seed in (0, 1, 2)]
    assert (collection.left_out, collection.notes) == ([], [])


def test_a_loss_is_better_when_smaller_and_never_in_percent(make_run):
    stores = [make_run(method="FedMAD", num_rounds=6), make_run(method="FedBN", num_rounds=3)]
    collection = collect(stores)
    (table,) = tabulate(collection, ["train/loss"])
    best = {label: cells[0].best for label, cells in zip(table.labels, table.cells, strict=True)}
    assert (best, table.percent[0]) == ({"FedMAD": True, "FedBN": False}, False)
    text = render([table], collection, "markdown")
    assert "| FedMAD | 6 | **0.3333** |" in text
    assert "| FedBN | 3 | 0.6667 |" in text


def test_metrics_are_read_under_the_headline_protocol_unless_named(make_run, expected, curve):
    stores = [make_run(seed=seed) for seed in (0, 1)]
    rows, _ = rows_of(stores, ["overall_accuracy", "personal_own/overall_accuracy"])
    columns = rows["FedMAD"]["columns"]
    assert columns["overall_accuracy, last round"]["mean"] == pytest.approx(expected(0.6, [0, 1], "last")[0])
    assert columns["personal_own/overall_accuracy, last round"]["mean"] == pytest.approx(
        curve(0.6, [0, 1])[:, -1, 0].mean()
    )
    with pytest.raises(ConfigError, match="did you mean 'overall_accuracy'"):
        rows_of(stores, ["overal_acuracy"])


def test_a_metric_of_a_class_needs_no_protocol(make_run):
    store = make_run()
    result = store.result()
    protocol = result["headline"]["protocol"]
    store.write_result(result | {"final": result["final"] | {f"{protocol}/ap/forest": 0.25}})
    for name in ("ap/forest", f"{protocol}/ap/forest"):
        rows, _ = rows_of([store], [name])
        assert rows["FedMAD"]["columns"][f"{name}, last round"]["mean"] == 0.25
    for name in ("forest", "ap/forrest"):
        with pytest.raises(ConfigError, match="did you mean 'ap/forest'"):
            rows_of([store], [name])
    with pytest.raises(ConfigError, match="did you mean 'train/loss'"):
        rows_of([store], ["train/los"])


def test_incomplete_and_unreadable_runs_are_listed_and_not_averaged(make_run):
    whole, cut, torn = make_run(seed=0), make_run(seed=1, done=4), make_run(seed=2)
    (torn.path / "result.json").write_text('{"seed": 2')
    stopped = make_run(seed=3)
    stopped.write_result(stopped.result() | {"status": "interrupted"})
    rows, collection = rows_of([whole, cut, torn, stopped])
    assert rows["FedMAD"]["seeds"] == [0]
    reasons = {store.path: reason for store, reason in collection.left_out}
    assert reasons[cut.path] == "round 4 of 6"
    assert "not valid JSON" in reasons[torn.path]
    assert reasons[stopped.path] == "interrupted, round 6 of 6"
    for kind in ("terminal", "markdown", "json"):
        assert str(cut.path) in render(tabulate(collection), collection, kind, width=400)


def test_runs_of_other_configurations_are_told_apart_by_their_keys(make_run):
    def config(power, devices=1):
        return {
            "method": {"class_path": "FedMAD", "init_args": {"power": power}},
            "fabric": {"devices": devices},
            "run": {"name": f"anything {power}"},
        }

    stores = [make_run(seed=0, config=config(2.0)), make_run(seed=1, config=config(2.0, devices=2))]
    rows, collection = rows_of(stores)
    assert rows["FedMAD"]["seeds"] == [0, 1]
    assert collection.notes == ["FedMAD: the runs differ in fabric.devices"]

    rows, collection = rows_of([*stores, make_run(seed=2, config=config(0.5))])
    assert {label: row["seeds"] for label, row in rows.items()} == {
        "FedMAD [power=2.0]": [0, 1],
        "FedMAD [power=0.5]": [2],
    }
    assert any("not averaged: method.init_args.power" in note for note in collection.notes)


def test_a_seed_that_appears_twice_counts_once(make_run, expected):
    stores = [make_run(seed=0), make_run(seed=0, name="copy"), make_run(seed=0, name="other", level=0.3)]
    rows, collection = rows_of(stores)
    assert rows["FedMAD"]["columns"]["last round"]["values"] == [pytest.approx(expected(0.6, [0], "last")[0])]
    assert len(collection.notes) == 2
    assert "copy (with the same result) does not" in collection.notes[0]
    assert "other (with another result) does not" in collection.notes[1]


def test_protocols_are_not_mixed_up(make_run):
    stores = [
        make_run(method="Centralised", protocol="global", level=0.9),
        make_run(method="FedMAD"),
        make_run(method="FedBN", level=0.3),
    ]
    collection = collect(stores)
    (table,) = tabulate(collection)
    best = {label: cells[0].best for label, cells in zip(table.labels, table.cells, strict=True)}
    assert best == {"Centralised": False, "FedMAD": True, "FedBN": False}
    text = render([table], collection, "markdown")
    assert "| Centralised | global/overall_accuracy |" in text
    assert "different protocols" in text


def test_a_pooled_headline_has_its_client_mean_and_global_value_beside_it(make_run):
    stores = [make_run(method="FedAvg"), make_run(method="FedMAD")]
    for store in stores:
        result = store.result()
        mean = "personal_common/overall_accuracy"
        for rule in ("final", "last4"):
            result[rule][f"{mean}_pooled"] = result[rule][mean] + 0.1
        store.write_result(result | {"headline": result["headline"] | {"metric": "overall_accuracy_pooled"}})
    rows, collection = rows_of(stores)
    columns, final = rows["FedAvg"]["columns"], stores[0].result()["final"]
    assert list(columns) == ["last round", "mean of last rounds", "client mean, last round", "global, last round"]
    assert columns["last round"]["mean"] == pytest.approx(columns["client mean, last round"]["mean"] + 0.1)
    assert columns["global, last round"]["mean"] == final["global/overall_accuracy"]
    assert rows["FedMAD"]["columns"]["global, last round"] is None
    assert "client mean, last round [%]" in render(tabulate(collection), collection, "markdown")
    assert plot_clients(stores, stores[0].path / "clients.png") is not None


def test_experiments_share_no_table(make_run):
    collection = collect([make_run(experiment="a"), make_run(experiment="b", level=0.7)])
    first, second = tabulate(collection)
    assert (first.experiment, second.experiment) == ("a", "b")
    assert not first.cells[0][0].best


def test_caption_states_protocol_rule_clients_and_synthetic_data(make_run):
    collection = collect([make_run(method="FedMAD", synthetic=True), make_run(method="FedMAD", seed=1, synthetic=True)])
    text = " ".join(render(tabulate(collection), collection, "terminal", width=200).split())
    for words in (
        "eurosat_small: 3 clients, 6 rounds; synthetic data",
        "protocol personal_common",
        "each client's composed model on the common test set",
        "last 4 evaluated rounds",
        "Optimiser steps of a run divided by its clients: "
        f"{collection.groups[0].results[0]['optimizer_steps'] / 3:.6g}",
    ):
        assert words in text
    assert "synthetic" not in render(tabulate(collect([make_run()])), collection, "markdown")


def test_formats_agree(make_run, expected):
    collection = collect([make_run(method=method, seed=seed) for method in ("FedBN", "FedMAD") for seed in (0, 1)])
    tables = tabulate(collection)
    texts = {kind: render(tables, collection, kind, width=160) for kind in FORMATS}
    mean, deviation = expected(0.6, [0, 1], "last")
    rows = list(csv.DictReader(io.StringIO(texts["csv"])))
    assert rows[0]["label"] == "FedBN"
    assert (float(rows[0]["mean"]), float(rows[0]["deviation"])) == (
        pytest.approx(mean, abs=1e-15),
        pytest.approx(deviation, abs=1e-15),
    )
    assert rows[0]["seeds"] == "0 1"
    shown = f"{100 * mean:.2f} ± {100 * deviation:.2f}"
    assert f"| **{shown}** |" in texts["markdown"]
    assert f"{shown}*".replace(" ", "") in texts["terminal"]
    assert json.loads(texts["json"])["tables"][0]["rows"][0]["columns"]["last round"]["mean"] == float(rows[0]["mean"])


def captions(stores):
    collection = collect(stores)
    (table,) = tabulate(collection)
    return [line for line in table.caption if line.startswith("Computed on")]


def test_runs_of_different_devices_are_said_under_the_table(make_run):
    stores = [make_run(method=method, seed=seed) for method, seed in (("FedMAD", 0), ("FedMAD", 1), ("FedBN", 0))]
    assert captions(stores) == []  # nothing is known of them
    for store, devices in zip(stores, (["H200", "H200"], ["H200"], ["H200"]), strict=True):
        store.write_environment({"devices": devices})
    assert captions(stores) == []
    stores[1].write_environment({"devices": ["Xeon"]})
    stores[2].write_environment({"devices": ["Xeon"], "devices_used": ["Xeon"]})
    different = "Computed on different devices, which round differently"
    assert captions(stores) == [f"{different}: H200: FedMAD seed 0; H200 and Xeon: FedMAD seed 1; Xeon: FedBN"]
    assert captions(stores[2:]) == []
    assert captions(stores[1:2]) == [f"{different}: H200 and Xeon: FedMAD"]
