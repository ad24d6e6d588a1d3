"""CSV, TensorBoard and Weights & Biases tell the same as the round log, also of a run that was interrupted."""

import csv
import os
import struct
import subprocess
import sys
import time

import lightning as L
import pytest
from safetensors import safe_open
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto import wandb_internal_pb2

from fedrs_lightning.engine.engine import logged
from fedrs_lightning.errors import RunError
from fedrs_lightning.results.store import RunStore

ALL = ("--run.loggers", "[csv,tensorboard,wandb]")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_RUN_ID", "WANDB_RESUME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setenv("NETRC", "/dev/null")


def round_log(store):
    """What every logger should hold: round to values."""
    return {record["round"]: logged(record) for record in store.rounds()}


def table(store):
    with (store.path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["step"] for row in rows}) == len(rows)
    return {int(row.pop("step")): {key: float(value) for key, value in row.items() if value} for row in rows}


def board(store):
    """TensorBoard's own reader over all event files of the run; values are float32."""
    events = EventAccumulator(str(store.path / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    rounds = {}
    for tag in events.Tags()["scalars"]:
        steps = [event.step for event in events.Scalars(tag)]
        assert steps == sorted(set(steps)), tag
        for event in events.Scalars(tag):
            rounds.setdefault(event.step, {})[tag] = event.value
    return rounds


def lives(store):
    """Every offline file of Weights & Biases, oldest first: run id and the (step, values) it logged."""
    files = sorted((store.path / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    return [life(path) for path in files]


def life(path):
    run_id, history, metrics = None, [], {}
    for record in wandb_records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run_id = record.run.run_id
        elif kind == "metric":
            metrics[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        elif kind == "history":
            values = {item.key or "/".join(item.nested_key): float(item.value_json) for item in record.history.item}
            history.append((record.history.step.num, values))
    assert metrics == {"round": "", "*": "round"}
    return run_id, history


def wandb_records(path):
    """Records of a Weights & Biases file: blocks of 32 KiB, chunks behind a header of checksum, length and kind."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    place, record = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last chunk of several
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def equal(found, log):
    assert sorted(found) == sorted(log)
    for number, values in log.items():
        assert found[number] == pytest.approx(values, rel=1e-6, abs=1e-12)


def saved_id(store):
    newest = sorted((store.path / "checkpoints").iterdir())[-1]
    with safe_open(newest, framework="pt") as file:
        return file.metadata()["fedrs"].partition('"wandb": "')[2][:8]


def test_all_loggers_agree_with_the_round_log(fit):
    hook = sys.excepthook
    ran = fit(*ALL)
    assert ran.code == 0, ran.err
    assert not any("wandb" in line for line in (ran.out + ran.err).splitlines() if "run directory" not in line)
    assert sys.excepthook is hook
    log = round_log(ran.store)
    assert list(log) == [1, 2, 3]
    equal(table(ran.store), log)
    equal(board(ran.store), log)
    ((run_id, history),) = lives(ran.store)
    assert run_id == saved_id(ran.store)
    assert [step for step, _ in history] == [1, 2, 3]
    for step, values in history:
        assert values.pop("round") == values.pop("_step") == step
        assert values.pop("_timestamp") > 0
        assert values.pop("_runtime") >= 0
        assert values == pytest.approx(log[step])


@pytest.mark.parametrize("stopped", [1, 2])
def test_loggers_of_a_run_that_was_stopped(fit, monkeypatch, stopped):
    # It ends between the checkpoint and the loggers: the round counts, and they have not seen it.
    log_dict = L.Fabric.log_dict

    def stop(self, values, step):
        if step == stopped:
            raise RunError("stopped before the loggers")
        log_dict(self, values, step)

    with monkeypatch.context() as patch:
        patch.setattr(L.Fabric, "log_dict", stop)
        assert fit(*ALL).line == "stopped before the loggers"
    ran = fit(*ALL)
    assert ran.code == 0, ran.err
    log = round_log(ran.store)
    assert list(log) == [1, 2, 3]
    equal(table(ran.store), log)
    equal(board(ran.store), log)
    (first_id, before), (second_id, after) = lives(ran.store)
    assert first_id == second_id == saved_id(ran.store)
    assert [step for step, _ in before] == list(range(1, stopped))
    assert [step for step, _ in after] == [1, 2, 3]  # an offline folder that is synced replaces those before
    for step, values in before + after:
        assert values["round"] == step
        assert values["train/loss"] == log[step]["train/loss"]


def test_a_round_that_is_run_again_stands_once(fit, stop):
    # A damaged checkpoint takes the run back by one round, which the loggers have seen already.
    stop(3)
    assert fit(*ALL, "--schedule.num_rounds", 4).code == 130
    store = fit("--schedule.num_rounds", 0).store
    newest = store.path / "checkpoints" / "round-00003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-9])
    ran = fit(*ALL, "--schedule.num_rounds", 4)
    assert "Falling back to the checkpoint of round 2" in ran.err
    log = round_log(ran.store)
    equal(table(ran.store), log)
    equal(board(ran.store), log)
    (_, before), (_, after) = lives(ran.store)
    assert [step for step, _ in before] == [1, 2, 3]
    assert [step for step, _ in after] == [1, 2, 3, 4]


def test_the_newest_folder_is_whole_after_kills(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config["schedule"] |= {"num_rounds": 40, "evaluate_every": 40}
    config["run"]["loggers"] = ["wandb"]
    command = [sys.executable, "-m", "fedrs_lightning.cli.main", "fit", "--config", config.write()]
    own = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}  # of no earlier test
    for wanted in (3, 6):
        with (tmp_path / "err.txt").open("wb") as err:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err, env=own)
        while sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("runs/*/*/rounds.jsonl")) < wanted:
            assert process.poll() is None, (tmp_path / "err.txt").read_text()
            time.sleep(0.02)
        process.kill()
        process.wait()
    assert subprocess.run(command, capture_output=True, check=False, env=own).returncode == 0
    (path,) = tmp_path.glob("runs/*/*")
    files = sorted(path.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    assert len(files) > 1
    run_id, history = life(files[-1])
    assert run_id == saved_id(RunStore(path))
    assert [(step, values["round"]) for step, values in history] == [(number, number) for number in range(1, 41)]


def test_loggers_that_are_asked_for_late_know_the_first_rounds(fit, stop):
    stop(2)
    assert fit("--run.loggers", "[]").code == 130
    ran = fit(*ALL)
    assert ran.code == 0, ran.err
    log = round_log(ran.store)
    equal(table(ran.store), log)
    equal(board(ran.store), log)
    ((_, history),) = lives(ran.store)
    assert [step for step, _ in history] == [1, 2, 3]


def test_a_failed_run_closes_its_loggers(fit):
    ran = fit(*ALL, "--optimizer", "torch.optim.SGD", "--optimizer.lr", "1e30", "--schedule.batch_size", 8)
    assert "is nan" in ran.line or "is inf" in ran.line
    assert fit(*ALL, "--seed", 1).code == 0  # a run left open would be logged to instead
    assert len(lives(fit(*ALL, "--seed", 1).store)) == 1


def test_weights_and_biases_without_a_login(fit):
    line = fit("--run.loggers", "[wandb]", "--run.wandb_offline", "false").line
    assert line.startswith("Weights & Biases: No API key configured.")
    assert line.endswith("; log in, or keep it on this machine with --run.wandb_offline true")
