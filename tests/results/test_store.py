import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrs_lightning.errors import RunError
from fedrs_lightning.results.store import RunStore, find_runs


def record(number: int, **more):
    return {"round": number, "metrics": {"train/loss": 1.0 / number}, "timing": {"seconds": 0.1 * number}} | more


def filled(path, count=3) -> RunStore:
    store = RunStore(path)
    for number in range(1, count + 1):
        store.append_round(record(number))
        store.append_clients([{"round": number, "client": client, "phase": "train"} for client in (0, 7)])
    return store


def test_records_come_back_in_order_and_without_timing_in_the_history(tmp_path):
    store = filled(tmp_path / "run")
    store.sync()
    again = RunStore(tmp_path / "run")
    assert again.rounds() == [record(1), record(2), record(3)]
    assert [(row["round"], row["client"]) for row in again.clients()] == [
        (1, 0),
        (1, 7),
        (2, 0),
        (2, 7),
        (3, 0),
        (3, 7),
    ]
    assert again.history() == [{"round": n, "metrics": {"train/loss": 1.0 / n}} for n in (1, 2, 3)]


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 10_000), last=st.integers(0, 4))
def test_a_crash_at_any_byte_costs_at_most_the_line_it_hit(tmp_path_factory, cut, last):
    store = filled(tmp_path_factory.mktemp("run"))
    path = store.path / "rounds.jsonl"
    whole = path.read_bytes()
    cut %= len(whole) + 1
    path.write_bytes(whole[:cut])
    # A line counts from its closing brace on, with or without its newline.
    complete = [n for n in (1, 2, 3) if cut >= len(b"\n".join(whole.split(b"\n")[:n]))]
    assert [row["round"] for row in RunStore(store.path).rounds()] == complete

    store = RunStore(store.path)
    store.truncate(last)
    kept = [n for n in complete if n <= last]
    assert path.read_bytes() == b"".join(line + b"\n" for line in whole.split(b"\n")[: len(kept)])
    assert [row["client"] for row in store.clients()] == [0, 7] * min(last, 3)

    path.write_bytes(whole[:cut])
    RunStore(store.path).append_round(record(9))
    assert [row["round"] for row in store.rounds()] == [*complete, 9]


def test_truncate_leaves_an_intact_log_alone(tmp_path):
    store = filled(tmp_path)
    before = (tmp_path / "rounds.jsonl").stat().st_ino
    store.truncate(3)
    assert (tmp_path / "rounds.jsonl").stat().st_ino == before
    RunStore(tmp_path / "nothing").truncate(3)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("damage", [b'{"round": 2, "metr', b"", b"[]", b'{"metrics": {}}', b"\x00\x00"])
def test_damage_before_the_end_names_file_and_line(tmp_path, damage):
    store = filled(tmp_path)
    lines = (tmp_path / "rounds.jsonl").read_bytes().split(b"\n")
    lines[1] = damage
    (tmp_path / "rounds.jsonl").write_bytes(b"\n".join(lines))
    for call in (store.rounds, store.history, lambda: store.truncate(1)):
        with pytest.raises(RunError, match=r"rounds\.jsonl: line 2 is damaged"):
            call()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"metrics": {"loss": float("nan")}}, r"round 4: metrics\.loss is nan"),
        ({"loss": [1.0, float("inf")]}, r"loss\[1\] is inf"),
        ({"loss": b"1"}, "loss is a bytes"),
        ({"metrics": {1: 2}}, "key 1 is not text"),
        ({"round": 0}, "whole number from 1, not 0"),
        ({"round": True}, "not True"),
    ],
)
def test_values_that_json_cannot_hold_are_refused_and_nothing_is_written(tmp_path, value, message):
    store = filled(tmp_path)
    before = (tmp_path / "clients.jsonl").read_bytes()
    with pytest.raises(RunError, match=message):
        store.append_clients([{"round": 4}, {"round": 4} | value])
    assert (tmp_path / "clients.jsonl").read_bytes() == before


def test_status_follows_the_files(tmp_path):
    store = RunStore(tmp_path / "run")
    assert (store.status, store.result(), store.rounds()) == ("empty", None, [])
    store.append_round(record(1))
    assert store.status == "incomplete"
    store.write_result({"status": "complete"})
    assert store.status == "complete"
    (store.path / "result.json").write_text("[1]")
    with pytest.raises(RunError, match="not a JSON object"):
        store.result()


def test_config_is_read_back_and_its_faults_are_named(tmp_path):
    store = RunStore(tmp_path)
    with pytest.raises(RunError, match=r"config\.yaml: no such file"):
        store.config()
    store.write_config({"seed": 1, "schedule": {"num_rounds": 3}})
    assert store.config() == {"seed": 1, "schedule": {"num_rounds": 3}}
    store.write_config("a: [1\n")
    with pytest.raises(RunError, match=r"config\.yaml:2: not valid YAML"):
        store.config()
    store.write_config("- 1\n")
    with pytest.raises(RunError, match="holds list, not a mapping"):
        store.config()


def test_a_resumed_run_keeps_the_facts_of_its_earlier_machines(tmp_path):
    store = RunStore(tmp_path)
    for host in ("a", "a", "b", "b", "c"):
        store.write_environment({"host": host})
    assert store.environment() == {"host": "c", "earlier": [{"host": "a"}, {"host": "b"}]}


def test_find_runs_at_any_depth_once_and_in_natural_order(tmp_path):
    for name in ("x/m-s10-a", "x/m-s2-a", "deep/er/m-s1-a"):
        filled(tmp_path / name, count=1)
    filled(tmp_path / "x/m-s2-a/clients/not-a-run-of-its-own", count=1)
    (tmp_path / "x/configs").mkdir()
    (tmp_path / "x/configs/config.yaml").write_text("seed: 0\n")
    found = find_runs([tmp_path, tmp_path / "x", tmp_path / "x/m-s10-a"])
    assert [run.path.relative_to(tmp_path).as_posix() for run in found] == ["deep/er/m-s1-a", "x/m-s2-a", "x/m-s10-a"]
    with pytest.raises(RunError, match="no such folder"):
        find_runs([tmp_path / "nowhere"])


def test_manifest_and_split_are_plain_json(tmp_path):
    store = RunStore(tmp_path)
    store.write_manifest({"dataset": "EuroSAT"})
    store.write_split({"test": ["a.jpg"]})
    assert json.loads((tmp_path / "data.json").read_text()) == store.manifest() == {"dataset": "EuroSAT"}
    assert store.split() == {"test": ["a.jpg"]}


def test_devices_of_all_lives_of_a_run_are_known(tmp_path):
    store = RunStore(tmp_path)
    assert store.devices() == []
    store.write_environment({"devices": ["B", "B"]})
    store.write_environment({"devices": ["A"]})
    assert store.devices() == ["B", "A"]
    store.write_environment({"devices": ["A"], "devices_used": ["A"]})  # what came before had computed nothing
    assert store.devices() == ["A"]
