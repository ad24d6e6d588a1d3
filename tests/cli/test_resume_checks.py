"""A run continues only with its own configuration and with the logs that it wrote."""

import pytest

from fedrs_lightning.results.store import RunStore


@pytest.fixture
def broken(fit, stop):
    """A run of five rounds that was interrupted after the third."""
    options = ("--schedule.num_rounds", 5, "--run.loggers", "[]")
    stop(3)
    assert fit(*options).code == 130
    store = fit(*options, "--run.keep_checkpoints", 1).store  # refused, and names nothing
    return options, next(iter(store.path.glob("*/*/config.yaml"))).parent if store.path.name == "runs" else store.path


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("rounds.jsonl", lambda lines: [lines[0], lines[2]], "rounds.jsonl: round 2 is lost"),
        ("rounds.jsonl", lambda lines: [*lines[:2], *lines[1:]], "rounds.jsonl: round 2 is there twice"),
        ("clients.jsonl", lambda lines: lines[1:], "clients.jsonl: the lines of rounds 1 to 3 are not those"),
        ("clients.jsonl", lambda lines: [lines[0], *lines], "clients.jsonl: the lines of rounds 1 to 3 are not those"),
        ("clients.jsonl", lambda lines: [lines[1], lines[0], *lines[2:]], "are not those that were written"),
        (
            "rounds.jsonl",
            lambda lines: [lines[0].replace(b'"up": ', b'"up": 1'), *lines[1:]],
            "are not those that were",
        ),
    ],
)
def test_changed_logs_of_kept_rounds_are_refused(fit, broken, name, change, words):
    options, path = broken
    log = path / name
    log.write_bytes(b"".join(change(log.read_bytes().splitlines(keepends=True))))
    ran = fit(*options)
    assert ran.code == 2, ran.err
    assert words in ran.err
    assert f"Delete {path} to start again" in ran.err


def test_a_lost_last_round_is_run_again(fit, broken, tmp_path):
    options, path = broken
    log = path / "rounds.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    ran = fit(*options)
    assert "rounds.jsonl: round 3 is lost. Falling back to the checkpoint of round 2" in ran.err
    assert [record["round"] for record in RunStore(path).rounds()] == [1, 2, 3, 4, 5]
    assert ran.digest == fit(*options, root=tmp_path / "whole").digest


def test_a_run_without_its_configuration_continues_only_with_the_same(fit, broken):
    options, path = broken
    (path / "config.yaml").unlink()
    line = fit(*options, "--run.dir", path, "--optimizer.lr", "0.5").line
    assert line.startswith(f"{path}/checkpoints/round-0000")
    assert "belongs to another configuration than this one; restore config.yaml" in line
    assert not (path / "config.yaml").exists()
    assert fit(*options, "--run.dir", path).code == 0
