import importlib.util
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


def test_pictures_lie_beside_the_runs(runs, capsys):
    assert main(["plot", str(runs)]) == 0
    folder = runs / "eurosat_small"
    names = ["curves.png", "curves-clients.png", "curves-weights-FedMAD.png"]
    assert [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()] == [
        str(folder / name) for name in names
    ]
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_one_run_keeps_its_picture_in_its_folder(runs, capsys):
    (folder,) = runs.glob("*/FedBN-s0-*")
    assert main(["plot", str(folder)]) == 0
    assert (folder / "curves.png").is_file()


def test_out_and_metric_choose(runs, tmp_path, capsys):
    assert main(["plot", str(runs), "--metric", "train/loss", "--out", str(tmp_path / "loss.pdf")]) == 0
    assert (tmp_path / "loss.pdf").read_bytes().startswith(b"%PDF")
    assert not (tmp_path / "loss-clients.pdf").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--metrc", "x"], "did you mean '--metric'?"),
        (["--metric", "overall_acuracy"], "did you mean 'overall_accuracy'?"),
        (["--out", "a.doc"], "cannot be written as 'doc'"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(runs, capsys, arguments, words):
    assert main(["plot", str(runs), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_picture_that_cannot_be_written_is_named(runs, tmp_path, capsys):
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "curves.png"
    assert main(["plot", str(runs), "--out", str(place)]) == 2
    assert (
        capsys.readouterr().err
        == f"fedrs plot: {place}: cannot be written (File exists); name another place with --out\n"
    )


def test_a_folder_without_runs_says_so(tmp_path, capsys):
    assert main(["plot", str(tmp_path)]) == 2
    assert "no run below" in capsys.readouterr().err
