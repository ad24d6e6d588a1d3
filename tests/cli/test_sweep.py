import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrs_lightning.cli import sweep
from fedrs_lightning.cli.combinations import (
    Combination,
    combinations,
    fingerprint,
    parse_grids,
    parse_seeds,
    run_root,
    split_values,
)
from fedrs_lightning.errors import ConfigError

RUNS = Path(__file__).parents[1] / "results" / "conftest.py"
# Speaks like `fedrs fit`: same options, run directory in the last line, one error line and exit code 2.
STAND_IN = """
import argparse, importlib.util, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("runs", {runs!r})
runs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runs)
options = argparse.ArgumentParser(allow_abbrev=False)
options.add_argument("--config", action="append")
options.add_argument("--seed", type=int)
options.add_argument("--resume", choices=["auto"])
options.add_argument("--run.root", dest="root", default="runs")
options.add_argument("--run.label", dest="label")
options.add_argument("--method", default="FedAvg")
options.add_argument("--method.init_args.power", dest="power", type=float, default=1.0)
options.add_argument("--behaviour", default="")
found = options.parse_args()
root = Path(found.root)
root.mkdir(parents=True, exist_ok=True)
with (root / "calls.txt").open("a") as calls:
    print(found.method, found.power, found.seed, file=calls)
label = f"{{found.method}} {{found.label}}" if found.label else None
done = 2 if found.behaviour == "requeue" else None
facts = {{"method": found.method, "seed": found.seed, "label": label, "level": found.power / 4, "done": done}}
write = lambda: runs.write_run(root, **facts)
if found.behaviour == "fail" and found.method == "FedBN" and found.seed == 1:
    print("some earlier line")
    print("fedrs fit: client 3 has no samples; raise min_samples", file=sys.stderr)
    print("a late line of another rank", file=sys.stderr)
    sys.exit(2)
if found.behaviour == "sleep" and found.seed == 1:
    print("ready", flush=True)
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        (root / "child-was-interrupted").touch()
        sys.exit(130)
if found.behaviour == "kill":
    import os
    os.kill(os.getpid(), 9)
store = write()
if found.behaviour != "silent":
    print("run directory:", store.path)
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fit.py").write_text(STAND_IN.format(runs=str(RUNS)))
    (tmp_path / "x.yaml").write_text("method: FedAvg\n")
    return [sys.executable, str(tmp_path / "fit.py")]


def calls(root="runs"):
    return Path(root, "calls.txt").read_text().split("\n")[:-1]


def arguments(*more):
    return ["--config", "x.yaml", "--grid", "method=FedBN,FedMAD", "--seeds", "0..1", *more]


def test_the_product_runs_once_and_ends_with_a_table(command, capsys):
    assert sweep.main(arguments(), command) == 0
    out = capsys.readouterr().out
    assert calls() == ["FedBN 1.0 0", "FedMAD 1.0 0", "FedBN 1.0 1", "FedMAD 1.0 1"]
    lines = [line for line in out.splitlines() if line.startswith("[")]
    assert [line.partition(": complete")[0] for line in lines] == [
        "[1/4] FedBN seed 0",
        "[2/4] FedMAD seed 0",
        "[3/4] FedBN seed 1",
        "[4/4] FedMAD seed 1",
    ]
    rows = [line.split() for line in out.splitlines() if line.strip().startswith(("FedBN ", "FedMAD "))]
    assert [(row[0], row[-1]) for row in rows] == [("FedBN", "2"), ("FedMAD", "2")]

    assert sweep.main(arguments(), command) == 0
    assert len(calls()) == 4
    assert capsys.readouterr().out.count("already complete") == 4


def test_what_no_longer_fits_its_record_is_given_to_fit_again(command, capsys):
    assert sweep.main(arguments(), command) == 0
    (index,) = Path("runs").glob("*/sweep.json")
    entries = json.loads(index.read_text())["runs"]
    first = next(entry for entry in entries.values() if entry["options"] == {"method": "FedBN"} and entry["seed"] == 0)
    result = index.parent / first["run"] / "result.json"
    whole = result.read_text()
    for damage in (whole.replace('"complete"', '"interrupted"'), whole.replace("c0ffee", "other"), whole[:40], None):
        result.write_text(damage) if damage else result.unlink()
        before = len(calls())
        assert sweep.main(arguments(), command) == 0
        assert calls()[before:] == ["FedBN 1.0 0"]

    # A changed config file, or a file that it names, is another run.
    Path("part.yaml").write_text("a: 1\n")
    for text in ("method: FedBN\n", "method: FedBN\ndata: part.yaml\n"):
        Path("x.yaml").write_text(text)
        before = len(calls())
        assert sweep.main(arguments("--seeds", "0"), command) == 0
        assert len(calls()) == before + 2
    Path("part.yaml").write_text("a: 2\n")
    capsys.readouterr()
    assert (
        sweep.main([*arguments(), "--dry-run"], command) == 2
    )  # none of them is taken for complete, and each is parsed
    assert capsys.readouterr().out.count("would fail: part.yaml:1: data has no key 'a'") == 4


def test_a_dry_run_names_what_would_fail(capsys):
    experiment = str(Path(__file__).resolve().parents[2] / "experiments" / "eurosat_small.yaml")
    assert sweep.main(["--config", experiment, "--grid", "method=FedAvg,FedMADD", "--seeds", "0,1", "--dry-run"]) == 2
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("FedAvg seed 0: to run: fedrs fit --config ")
    assert second == "FedMADD seed 0: would fail: --method: there is no class 'FedMADD'; did you mean 'FedMAD'?"
    assert sweep.main(["--config", experiment, "--grid", "method.init_args.power=0,1", "--dry-run"]) == 0


def test_a_failed_run_stops_no_other_and_is_tried_again(command, capsys):
    assert sweep.main(arguments("--behaviour", "fail"), command) == 2
    out, err = capsys.readouterr()
    assert len(calls()) == 4
    assert "1 of 4 runs failed" in err
    assert "FedBN seed 1: client 3 has no samples; raise min_samples (log: runs/sweep-logs/FedBN-seed-1-" in err
    rows = [line.split() for line in out.splitlines() if line.strip().startswith(("FedBN ", "FedMAD "))]
    assert [(row[0], row[-1]) for row in rows] == [("FedBN", "1"), ("FedMAD", "2")]
    assert sweep.main(arguments("--behaviour", "fail"), command) == 2
    assert calls()[4:] == ["FedBN 1.0 1"]


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("requeue", "ended without a complete result (incomplete: runs/eurosat_small/FedAvg-s0-"),
        ("silent", "ended without naming its run directory"),
        ("kill", "ended by SIGKILL"),
    ],
)
def test_an_end_without_a_result_is_a_failure(command, capsys, behaviour, words):
    assert sweep.main(["--config", "x.yaml", "--behaviour", behaviour], command) == 2
    assert words in capsys.readouterr().err


def test_a_program_that_is_not_there_is_a_failure(command, capsys):
    assert sweep.main(["--config", "x.yaml"], ["./no-such-program"]) == 2
    assert "./no-such-program: No such file" in capsys.readouterr().err


def test_settings_become_labels_and_rows(command, capsys):
    grid = [
        "--grid",
        "method=FedMAD",
        "--grid",
        "method.init_args.power=0.5,2",
        "--seeds",
        "3,5",
        "--run.root",
        "elsewhere",
        "--jobs",
        "2",
    ]
    assert sweep.main(["--config", "x.yaml", *grid], command) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip().startswith("FedMAD power=")]
    assert [(row[1], row[-1]) for row in rows] == [("power=0.5", "2"), ("power=2", "2")]
    assert sorted(calls("elsewhere")) == ["FedMAD 0.5 3", "FedMAD 0.5 5", "FedMAD 2.0 3", "FedMAD 2.0 5"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_stops_the_child_first_and_the_next_sweep_continues(command, tmp_path, number):
    script = textwrap.dedent(f"""
        import sys
        from fedrs_lightning.cli import sweep
        sys.exit(sweep.main({arguments("--behaviour", "sleep")!r}, {command!r}))
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 60
    while not any("ready" in path.read_text() for path in Path("runs/sweep-logs").glob("FedBN-seed-1-*")):
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped with 2 of 4 runs complete; the same command continues" in err
    assert Path("runs/child-was-interrupted").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--grid", "method=FedAvg"], "the key is given twice"),
        (["--grid", "power"], "write KEY=V1,V2"),
        (["--grid", "a=1,,2"], "a value is empty"),
        (["--grid", "a=1,1"], "a value is given twice"),
        (["--grid", "a=[1,2"], "'[' is not closed"),
        (["--grid", "a=1],2"], "']' closes nothing"),
        (["--grid", "seed=1,2"], "use --seeds"),
        (["--seeds", "2..0"], "write 0..2"),
        (["--seeds", "0,0"], "given twice"),
        (["--seeds", "a"], "whole numbers from 0"),
        (["--seed", "1"], "use --seeds"),
        (["--run.dir", "d"], "use --run.root"),
        (["--resume", "never"], "always continues"),
        (["--method", "FedBN"], "both as an option and as a grid"),
        (["--grid", "a=1", "--run.label", "b"], "set by the sweep"),
        (["--job", "2"], "did you mean '--jobs'?"),
        (["--jobs", "0"], "0 is below 1"),
        (["stray"], "'stray' belongs to no option"),
        (["--config", "nowhere.yaml"], "--config: no file nowhere.yaml"),
    ],
)
def test_mistakes_name_the_way_out_before_anything_runs(command, more, words):
    with pytest.raises(ConfigError) as error:
        sweep.main(arguments(*more), command)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not Path("runs").exists()


def test_a_config_is_required_and_must_be_yaml(command):
    with pytest.raises(ConfigError, match="required: --config"):
        sweep.main([], command)
    Path("x.yaml").write_text("a: [1\n")
    with pytest.raises(ConfigError, match=r"x\.yaml:\d: not valid YAML"):
        sweep.main(arguments(), command)


def test_keys_come_before_the_keys_below_them_and_last_the_seed():
    grids = parse_grids(["method.init_args.bands=[red, green],[red],{a: 1, b: '],'}", "method=A,B"])
    assert grids[0][1] == ("[red, green]", "[red]", "{a: 1, b: '],'}")
    first = combinations(grids, [4])[0]
    extra = [("schedule.num_rounds", ("--schedule.num_rounds", "5")), ("x", ("--x=1",))]
    assert first.arguments(["a.yaml", "b.yaml"], extra) == [
        *("--config", "a.yaml", "--config", "b.yaml", "--x=1", "--method=A", "--schedule.num_rounds", "5"),
        *("--method.init_args.bands=[red, green]", "--seed", "4", "--resume", "auto", "--run.label=bands=[red, green]"),
    ]


def test_labels_keep_apart_keys_of_the_same_last_name():
    combination = Combination((("method", "A"), ("task.lr", "1"), ("server.lr", "2"), ("power", "3")), 0)
    assert (combination.label, combination.title) == (
        "task.lr=1 server.lr=2 power=3",
        "A task.lr=1 server.lr=2 power=3 seed 0",
    )


@given(
    st.lists(
        st.lists(st.sampled_from(["1", "[1,2]", "{a: [1, 2], b: 3}", "'x,]'", "-0.5", "null"]), min_size=1),
        min_size=1,
        max_size=5,
    )
)
def test_splitting_undoes_joining(values):
    texts = [" ".join(parts) for parts in values]
    assert split_values(",".join(texts), "") == texts


@given(st.integers(0, 50), st.integers(0, 8))
def test_a_range_of_seeds_has_both_ends(low, more):
    assert parse_seeds(f"{low}..{low + more},1000") == [*range(low, low + more + 1), 1000]


def test_root_is_taken_from_options_then_from_the_last_config(tmp_path):
    for name, root in (("a", "one"), ("b", "two"), ("c", None)):
        (tmp_path / f"{name}.yaml").write_text(f"run: {{root: {root}}}\n" if root else "seed: 0\n")
    configs = [str(tmp_path / f"{name}.yaml") for name in "abc"]
    assert run_root(configs, []) == Path("two")
    assert run_root(configs[2:], []) == Path("runs")
    assert (
        run_root(configs, [("run.root", ("--run.root", "x"))])
        == run_root(configs, [("run.root", ("--run.root=x",))])
        == Path("x")
    )


def test_fingerprints_differ_in_everything_that_fit_is_told(tmp_path):
    (tmp_path / "a.yaml").write_text("seed: 0\n")
    config = [str(tmp_path / "a.yaml")]
    one = Combination((("method", "A"),), 0)
    prints = [
        fingerprint(one, config, []),
        fingerprint(Combination((("method", "B"),), 0), config, []),
        fingerprint(Combination((("method", "A"),), 1), config, []),
        fingerprint(one, config, [("x", ("--x", "1"))]),
        fingerprint(one, config * 2 + [], [("x", ("--x", "2"))]),
    ]
    assert len(set(prints)) == 5
    assert fingerprint(one, config, []) == prints[0]
