"""`fedrs data pack`: what it says, its exit codes, and the configs it takes."""

import io
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedrs_lightning.cli.main import main
from fedrs_lightning.data import progress
from fedrs_lightning.synth.eurosat.sample import EuroSATSample
from fedrs_lightning.synth.sample import write_sample

EUROSAT = "configs/data/eurosat_synthetic.yaml"
ROOT = Path(__file__).resolve().parents[2]
PLAIN = """
from fedrs_lightning.data import EuroSAT, IID

class Plain(EuroSAT):
    def __init__(self):
        super().__init__(".", IID(1))

    def prepare(self):
        pass
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    write_sample(tmp_path / "sample", EuroSATSample(tiles=5))
    return tmp_path / "sample"


def run(capsys, *arguments):
    code = main(["data", "pack", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_packs_once_and_looks_again(root, cache, capsys):
    options = ["--data.init_args.root", str(root)]
    code, out, err = run(capsys, "--config", EUROSAT, *options, "--jobs", "2")
    (made,) = cache.iterdir()
    assert (code, err) == (0, "")
    assert out.startswith(f"packed: {made}: 50 samples, 614.4 kB, in ")
    assert " samples/s, " in out
    assert out.endswith(" MB/s\n")
    code, out, _ = run(
        capsys, "--config", "experiments/quickstart.yaml", *options
    )  # the same data in a whole experiment
    assert (code, out) == (0, f"there already: {made}: 50 samples, 614.4 kB\n")
    code, out, _ = run(capsys, "--config", EUROSAT, *options, "--verify")
    assert (code, out) == (0, f"whole: {made}: 50 samples, 614.4 kB\n")
    with (made / "image.npy").open("r+b") as file:
        file.seek(200)
        file.write(b"damage")
    code, out, err = run(capsys, "--config", EUROSAT, *options, "--verify")
    assert (code, out) == (2, f"damaged: {made}: 50 samples, 614.4 kB\n")
    damaged, advice = err.splitlines()
    assert damaged == f"damaged: {made}: shard 0 (samples 0 to 49): image.npy"
    assert advice == "delete the damaged folders; fedrs data pack makes them again"


def test_all_packs_of_several_domains(layouts, tmp_path, cache, capsys):
    layouts.vaihingen(tmp_path / "V", ("1", "11", "2"), ((61, 83), (20, 37), (45, 52)))
    dataset = "{class_path: Vaihingen, init_args: {root: V, gsd: native, labels_train: full}}"
    config = f"class_path: Domains\ninit_args:\n  root: {tmp_path}\n  crop_size: 16\n  domains:\n"
    (tmp_path / "v.yaml").write_text(f"{config}    - {{name: v, num_clients: 2, dataset: {dataset}}}\n")
    code, out, err = run(capsys, "--config", str(tmp_path / "v.yaml"), "--verify")
    assert code == 2
    assert [text.count("missing: ") for text in (out, err)] == [2, 2]
    assert "damaged" not in out + err
    assert list(cache.iterdir()) == []
    code, out, _ = run(capsys, "--config", str(tmp_path / "v.yaml"))
    assert code == 0
    assert [line.split("-")[-2] for line in out.replace(f"{cache}", "").splitlines()] == ["train", "test"]
    assert out.count("packed: ") == 2


def test_data_that_are_read_from_their_files_need_none(capsys, tmp_path, monkeypatch):
    (tmp_path / "plain_data.py").write_text(PLAIN)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "plain.yaml").write_text("class_path: plain_data.Plain\n")
    assert run(capsys, "--config", str(tmp_path / "plain.yaml")) == (
        0,
        "nothing to pack: this data set is read from its files\n",
        "",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--config is missing; name an experiment file or a data-set file"),
        (["--config", "absent.yaml"], "no file absent.yaml"),
        (["--config", EUROSAT, "--jobs", "0"], "argument --jobs: 0 is below 1"),
        (["--config", EUROSAT, "--verifi"], "unknown option '--verifi'; did you mean '--verify'?"),
        (["--config", EUROSAT, "--data.init_args.rot", "x"], "EuroSAT has no option 'rot'; did you mean 'root'?"),
        (["--config", EUROSAT, "--data.init_args.root", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_mistakes_get_one_line_and_code_2(arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_log_gets_a_line_a_minute(monkeypatch, capsys):
    seconds = count(0, 25)  # the clock is asked once at the start and once a step
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    progress.in_threads(lambda item: 1000, range(6), 1, progress.Meter("packing x", 10_000, 4_000, 500))
    assert capsys.readouterr().err.splitlines() == [
        "packing x: 7,000 of 10,000 samples (70 %), 40 samples/s, 0.0 MB/s, 1 min 15 s left",
        "packing x: 10,000 of 10,000 samples (100 %), 40 samples/s, 0.0 MB/s, 0 s left",
    ]


def test_a_terminal_gets_rate_and_remaining_time():
    meter = progress.Meter("packing x", 4000, 1000, 1e6)
    assert meter.line(10.0) == "packing x: 1,000 of 4,000 samples (25 %), 0.0 samples/s, 0.0 MB/s"
    meter.done = 3000
    assert meter.line(10.0) == "packing x: 3,000 of 4,000 samples (75 %), 200 samples/s, 200.0 MB/s, 5 s left"
    assert meter.line(2000.0).endswith("1.0 samples/s, 1.0 MB/s, 16 min 40 s left")
    assert meter.line(20000.0).endswith("0.1 samples/s, 0.1 MB/s, 2 h 46 min left")
    shown = io.StringIO()
    console = progress.Console(file=shown, force_terminal=True, width=120)
    with progress.bars(console, 1e6, "samples") as bars:
        bar = bars.add_task("packing x", total=4)
        for _ in range(3):
            time.sleep(0.01)
            bars.advance(bar)
    assert "packing x" in shown.getvalue()
    assert " MB/s" in shown.getvalue()
