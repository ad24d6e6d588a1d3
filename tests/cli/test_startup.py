"""A mistake is found before torch is loaded, and a run loads what it uses alone: asserted on real runs."""

import subprocess
import sys

import pytest
import yaml

from fedrs_lightning.synth.aerial.sample import AerialSample
from fedrs_lightning.synth.sample import write_sample

CALL = """
import sys
from fedrs_lightning.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print("\\nMODULES", *sys.modules)
sys.exit(code)
"""
# What lightning loads by itself, and torch's optimisers with their first step.
LIBRARIES = """
import sys, torch, lightning, lightning.fabric.loggers, lightning.pytorch.loggers
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.Adam([weight])
weight.square().backward()
optimizer.step()
print("\\nMODULES", *sys.modules)
"""
OPTIONAL = {"segmentation_models_pytorch", "timm", "wandb", "tensorboard", "rasterio", "pyarrow", "lmdb", "pandas"}


def modules(script, *arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return set(done.stdout.rpartition("MODULES ")[2].split()), done.stderr


@pytest.fixture(scope="module")
def libraries():
    return modules(LIBRARIES)[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--schedule.num_round", 3), "did you mean 'num_rounds'?"),
        (("--schedul.num_rounds", 3), "did you mean 'schedule'?"),
        (("--schedule.num_rounds", 0), "must be at least 1"),
        (("--method", "FedMAD", "--method.powr", 3), "did you mean 'power'?"),
        (("--data.partition.num_client", 3), "did you mean 'num_clients'?"),
        (("--optimizer.ler", 0.1), "did you mean 'lr'?"),
        (("--method=mine.Mine", "--method.pul", 2), "Mine has no option 'pul'; did you mean 'pull'?"),
    ],
)
def test_a_mistake_is_found_without_torch(config, tmp_path, monkeypatch, options, words):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom fedrs_lightning.methods import FedAvg\n\n\nclass Mine(FedAvg):\n"
        "    def __init__(self, pull: float = 1.0, **rest) -> None:\n        super().__init__(**rest)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    loaded, err = modules(CALL, "fit", "--config", config.path, *options, code=2)
    assert words in err
    assert loaded.isdisjoint({"torch", "lightning", "numpy", "mine"})


def test_a_configuration_is_printed_without_torch(config):
    loaded, _ = modules(CALL, "fit", "--config", config.path, "--print_config")
    assert loaded.isdisjoint({"torch", "lightning"})


def test_a_sweep_says_what_it_would_run_without_torch(config, tmp_path):
    options = ("--grid", "method=FedAvg,FedMAD", "--seeds", "0,1", "--run.root", tmp_path / "runs", "--dry-run")
    loaded, _ = modules(CALL, "sweep", "--config", config.path, *options)
    assert loaded.isdisjoint({"torch", "lightning"})
    assert not (tmp_path / "runs").exists()


def test_a_classification_run_loads_what_it_uses(config, libraries, tmp_path):
    options = ("fit", "--config", config.path, "--run.root", tmp_path / "runs", "--schedule.num_rounds", 1)
    loaded, err = modules(CALL, *options)
    assert "round 1/1" in err
    assert loaded.isdisjoint(OPTIONAL)
    mine = {name for name in loaded if name.startswith("fedrs_lightning.")}
    for part, used in (("methods", {"base"}), ("tasks", {"base", "classification", "metrics"})):
        assert {name.split(".")[2] for name in mine if name.startswith(f"fedrs_lightning.{part}.")} == used
    assert not [name for name in mine if "segmentation" in name or name.endswith((".plots", ".pictures"))]
    # torch's compiler, torchvision, matplotlib and scipy come with lightning and torch's optimisers; no more of them
    grown = ("torch._dynamo", "torch._inductor", "torchvision", "matplotlib", "scipy")
    assert {name for name in loaded - libraries if name.startswith(grown)} == set()

    again, _ = modules(CALL, *options)  # complete: its table needs no torch
    assert again.isdisjoint({"torch", "lightning"})


def test_segmentation_and_loggers_load_their_libraries(config, tmp_path):
    """The other side: the names above are those under which the libraries are known."""
    write_sample(tmp_path / "potsdam", AerialSample(dataset="potsdam", size="tiny", side=128, gsd_factor=4.0))
    dataset = {"class_path": "Potsdam", "init_args": {"root": str(tmp_path / "potsdam")}}
    domains = [{"name": "potsdam", "num_clients": 2, "dataset": dataset}]
    config["data"] = {"class_path": "Domains", "init_args": {"domains": domains, "crop_size": 32}}
    network = {"architecture": "unet", "encoder": "resnet18", "loss": "ce", "encoder_width": 8, "decoder_channels": 4}
    config["task"] = {"class_path": "SegmentationTask", "init_args": network}
    config["schedule"] = {"num_rounds": 1, "batch_size": 8}
    loggers = ("--run.loggers", "[tensorboard,wandb]", "--run.root", tmp_path / "runs")
    loaded, _ = modules(CALL, "fit", "--config", config.write(), *loggers)
    assert {"segmentation_models_pytorch", "rasterio", "tensorboard", "wandb"} <= loaded
    assert "pyarrow" not in loaded


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--schedule.clients_per_round", 9), "there are 3 clients"),
        (("--data.init_args.train_fraction", "1.0"), "no test data"),
        (("--run.loggers", "[csv,tensorboard,wandb]", "--run.wandb_offline", "false"), "Weights & Biases"),
        (("--task.init_args.weights", "none.pt"), "no file none.pt"),
    ],
)
def test_a_refused_run_leaves_no_folder(fit, tmp_path, monkeypatch, options, words):
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("NETRC", "/dev/null")
    assert words in fit(*options, root=tmp_path / "new" / "runs").line
    assert not (tmp_path / "new").exists()


def test_a_refusal_takes_nothing_of_others_away(fit, tmp_path):
    first = fit("--schedule.num_rounds", 1)
    assert first.code == 0
    assert "there are 3 clients" in fit("--schedule.clients_per_round", 9).line
    assert list((tmp_path / "runs" / "tiny").iterdir()) == [first.store.path]
    (tmp_path / "mine").mkdir()
    assert "there are 3 clients" in fit("--schedule.clients_per_round", 9, "--run.dir", tmp_path / "mine").line
    assert (tmp_path / "mine").is_dir()


def test_a_configuration_that_is_printed_incomplete_says_null(capsys):
    from fedrs_lightning.cli.main import main

    with pytest.raises(SystemExit, match="0"):
        main(["fit", "--print_config", "--schedule.batch_size", "8"])
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["data"], printed["schedule"]["num_rounds"], printed["schedule"]["batch_size"]) == (None, None, 8)
