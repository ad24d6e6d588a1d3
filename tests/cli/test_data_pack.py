"""`fedrs data pack`: what it says, its exit codes, and the configs it takes."""

import io
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from fedrs_lightning import progress
from fedrs_lightning.cli.main import main
from fedrs_lightning.synth.eurosat.sample import EuroSATSample
from fedrs_lightning.synth.sample import write_sample

EUROSAT = "eurosat.yaml"
DATA = """archive: {class_path: EuroSAT, init_args: {root: sample}}
partition: {class_path: IID, init_args: {num_clients: 2}}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FEDRS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / EUROSAT).write_text(DATA)
    (tmp_path / "experiment.yaml").write_text(f"data: {EUROSAT}\ntask: {{class_path: Any}}\nmethod: FedAvg\n")


@pytest.fixture
def root(tmp_path):
    write_sample(tmp_path / "sample", EuroSATSample(tiles=5))
    return tmp_path / "sample"


def run(capsys, *arguments):
    code = main(["data", "pack", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_packs_once_and_looks_again(root, cache, capsys):
    options = ["--data.archive.root", str(root)]
    code, out, err = run(capsys, "--config", EUROSAT, *options, "--jobs", "2")
    assert (code, err) == (0, "")
    (made,) = cache.iterdir()
    assert out.startswith(f"packed: {made}: 50 samples, 614.4 kB, in ")
    assert " samples/s, " in out
    assert out.endswith(" MB/s\n")
    code, out, _ = run(capsys, "--config", "experiment.yaml", *options)  # the same data in a whole experiment
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


def test_all_packs_of_a_domain(tmp_path, cache, capsys):
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        for kind, shape in (("images", (61, 83, 3)), ("labels", (61, 83))):
            (tmp_path / part / kind).mkdir(parents=True)
            Image.fromarray(rng.integers(0, 2, shape, dtype=np.uint8)).save(tmp_path / part / kind / "a.png")
    options = (
        "{root: ., classes: {field: 0, water: 1}, in_channels: 3, test_images: test/images, test_labels: test/labels}"
    )
    archive = f"{{class_path: OwnRasters, init_args: {options}}}"
    (tmp_path / "v.yaml").write_text(f"crop_size: 16\ndomains: [{{name: v, num_clients: 2, archive: {archive}}}]\n")
    code, out, err = run(capsys, "--config", str(tmp_path / "v.yaml"), "--verify")
    assert code == 2
    assert [text.count("missing: ") for text in (out, err)] == [2, 2]
    assert "damaged" not in out + err
    assert not cache.exists() or list(cache.iterdir()) == []
    code, out, _ = run(capsys, "--config", str(tmp_path / "v.yaml"))
    assert code == 0
    assert [line.split("-")[-2] for line in out.replace(f"{cache}", "").splitlines()] == ["train", "test"]
    assert out.count("packed: ") == 2


def test_data_that_are_read_from_their_files_need_none(root, capsys):
    assert run(capsys, "eurosat", "--root", str(root), "--data.storage", "files") == (
        0,
        "nothing to pack: with storage: files, images are read from their files\n",
        "",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name an archive and its --root, or a --config"),
        (["--config", "absent.yaml"], "no file absent.yaml"),
        (["--config", EUROSAT, "--jobs", "0"], "argument --jobs: 0 is below 1"),
        (["--config", EUROSAT, "--verifi"], "unknown option '--verifi'; did you mean '--verify'?"),
        (["--config", EUROSAT, "--data.archive.rot", "x"], "EuroSAT has no option 'rot'; did you mean 'root'?"),
        (["--config", EUROSAT, "--data.archive.root", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_mistakes_get_one_line_and_code_2(arguments, message, capsys):
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
    with progress.Progress(console) as bars:
        bar = bars.add(progress.Meter("packing x", 4, bytes_each=1e6))
        for _ in range(3):
            time.sleep(0.01)
            bars.advance(bar)
    assert "packing x" in shown.getvalue()
    assert " MB/s" in shown.getvalue()
