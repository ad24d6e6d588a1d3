import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedrs_lightning.cli.main import main

SPEC = importlib.util.spec_from_file_location("synthetic_runs", Path(__file__).parents[1] / "results" / "conftest.py")
synthetic_runs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(synthetic_runs)


@pytest.fixture
def runs(tmp_path):
    for method in ("FedBN", "FedMAD"):
        for seed in (0, 1):
            synthetic_runs.write_run(tmp_path / "runs", method=method, seed=seed)
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("kind", "words"), [("terminal", "FedMAD"), ("markdown", "| FedMAD | **"), ("csv", "eurosat_small,FedMAD,")]
)
def test_table_is_printed(runs, capsys, kind, words):
    assert main(["table", str(runs), "--format", kind]) == 0
    assert words in capsys.readouterr().out


def test_table_is_written_to_a_file(runs, tmp_path, capsys):
    out = tmp_path / "new" / "table.json"
    assert main(["table", str(runs), "--format", "json", "--out", str(out), "--metric", "train/loss"]) == 0
    assert str(out) in capsys.readouterr().out
    (table,) = json.loads(out.read_text())["tables"]
    assert [row["seeds"] for row in table["rows"]] == [[0, 1], [0, 1]]
    assert list(table["rows"][0]["columns"]) == ["train/loss, last round", "train/loss, mean of last rounds"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--formt", "csv"], "unknown option '--formt'; did you mean '--format'?"),
        (["--format", "cvs"], "invalid choice: 'cvs'"),
        (["--metric", "overal_accuracy"], "did you mean 'overall_accuracy'?"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(runs, capsys, arguments, words):
    assert main(["table", str(runs), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_file_that_cannot_be_written_is_named(runs, tmp_path, capsys):
    (tmp_path / "file").touch()
    for place, reason in ((tmp_path, "Is a directory"), (tmp_path / "file" / "t.md", "File exists")):
        assert main(["table", str(runs), "--out", str(place)]) == 2
        assert (
            capsys.readouterr().err
            == f"fedrs table: {place}: cannot be written ({reason}); name another place with --out\n"
        )


def test_folders_without_runs_say_so(tmp_path, capsys):
    assert main(["table", str(tmp_path)]) == 2
    assert f"no run below {tmp_path}" in capsys.readouterr().err
    assert main(["table", str(tmp_path / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert main(["table"]) == 2
    assert "required: RUNS" in capsys.readouterr().err


def test_a_folder_with_only_incomplete_runs_lists_them(tmp_path, capsys):
    store = synthetic_runs.write_run(tmp_path, done=2)
    assert main(["table", str(tmp_path)]) == 0
    assert "round 2 of 6" in capsys.readouterr().out
    assert store.status == "incomplete"


@pytest.mark.parametrize("command", ["table", "plot", "sweep"])
def test_commands_that_only_read_do_not_load_torch(command, runs, tmp_path):
    """They must start at once; torch alone takes seconds."""
    arguments = {
        "table": ["table", str(runs)],
        "plot": ["plot", str(runs), "--out", str(tmp_path / "a.png")],
        "sweep": ["sweep", "--help"],
    }[command]
    code = (
        "import sys\n"
        "from fedrs_lightning.cli.main import main\n"
        "try:\n    code = main(sys.argv[1:])\n"
        "except SystemExit as left:\n    code = left.code\n"
        "loaded = [name for name in ('torch', 'lightning', 'jsonargparse') if name in sys.modules]\n"
        "sys.exit(f'loaded {loaded}' if loaded else code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
