"""What `fedrs fit` does: configs merge, runs are named, finished, repeated, interrupted and continued."""

import json
import logging
import os
import shutil
import signal
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
import yaml

from fedrs_lightning.cli.config.command_line import configure
from fedrs_lightning.cli.main import main
from fedrs_lightning.results import environment
from fedrs_lightning.results.run import Run
from fedrs_lightning.results.store import RunStore
from fedrs_lightning.synth.aerial.sample import AerialSample
from fedrs_lightning.synth.bigearthnet.sample import BigEarthNetSample
from fedrs_lightning.synth.sample import write_sample

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))


def plain(*arguments):
    return configure([str(argument) for argument in arguments]).config


def config_hash(config):
    return Run(config).hash


def overlay(tmp_path, text):
    path = tmp_path / "overlay.yaml"
    path.write_text(text)
    return path


# Configurations.


def test_several_configs_merge_and_the_later_wins(config, tmp_path):
    later = overlay(
        tmp_path,
        "seed: 3\nschedule: {local_epochs: 2}\ntask: {init_args: {width: 8}}\noptimizer: {init_args: {lr: 0.1}}\n",
    )
    merged = plain("--config", config.path, "--config", later, "--schedule.batch_size", 4)
    assert merged["seed"] == 3
    assert merged["schedule"] | {"num_rounds": 3, "local_epochs": 2, "batch_size": 4} == merged["schedule"]
    assert (merged["task"]["init_args"]["width"], merged["task"]["init_args"]["stem"]) == (8, "small")
    assert merged["optimizer"]["init_args"]["lr"] == 0.1
    assert merged["optimizer"]["class_path"] == "torch.optim.Adam"
    assert merged["run"]["name"] == "tiny"


def test_another_method_drops_arguments_that_it_does_not_have(config, tmp_path):
    config["method"] = {"class_path": "FedMAD", "init_args": {"power": 1.0, "weighting": "uniform"}}
    config.write()
    assert plain("--config", config.path)["method"]["init_args"]["power"] == 1.0
    swapped = plain("--config", config.path, "--method", "FedAvg")["method"]
    assert swapped == {
        "class_path": "fedrs_lightning.methods.FedAvg",
        "init_args": {"weighting": "uniform", "buffers": "mean"},
    }
    again = plain("--config", config.path, "--method", "FedAvg", "--method", "FedMAD", "--method.power", "3")["method"]
    assert again["init_args"]["power"] == 3.0
    sgd = plain("--config", config.path, "--optimizer", "torch.optim.SGD", "--optimizer.lr", "0.1")["optimizer"]
    assert (sgd["class_path"], sgd["init_args"]["lr"]) == ("torch.optim.SGD", 0.1)
    assert "betas" not in sgd["init_args"]


def test_part_files_lie_relative_to_the_file_that_names_them(config, tmp_path, monkeypatch):
    parts = tmp_path / "configs" / "data"
    parts.mkdir(parents=True)
    (parts / "tiles.yaml").write_text(yaml.safe_dump(config["data"]))
    (parts / "budget.yaml").write_text(yaml.safe_dump(config["schedule"]))
    (tmp_path / "experiments").mkdir()
    config |= {"data": "../configs/data/tiles.yaml", "schedule": "../configs/data/budget.yaml"}
    main_file = tmp_path / "experiments" / "tiny.yaml"
    main_file.write_text(yaml.safe_dump(dict(config)))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    found = plain("--config", main_file, "--data.root", "other/tiles", "--schedule.num_rounds", 7)
    assert found["data"]["root"] == "other/tiles"
    assert found["data"]["partition"]["init_args"] == {"num_clients": 3}
    assert found["schedule"]["num_rounds"] == 7
    assert found["schedule"]["batch_size"] == 16
    assert config_hash(found) == config_hash(plain("--config", config.path, "--schedule.num_rounds", 7))


def test_print_config_prints_a_config_that_means_the_same(config, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["fit", "--config", str(config.path), "--method", "FedMAD", "--print_config"])
    assert end.value.code == 0
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out)
    assert config_hash(plain("--config", printed)) == config_hash(plain("--config", config.path, "--method", "FedMAD"))


def test_the_hash_knows_what_decides_a_number(config):
    base = config_hash(plain("--config", config.path))
    for neutral in (
        "--run.root=x",
        "--run.name=x",
        "--run.loggers=[]",
        "--resume=never",
        "--fabric.devices=4",
        "--fabric.accelerator=auto",
    ):
        assert config_hash(plain("--config", config.path, neutral)) == base
    assert config_hash(plain("--config", config.path, "--data.root=elsewhere", "--data.cache_dir=elsewhere")) == base
    deciding = (
        "--seed=1",
        "--schedule.num_rounds=4",
        "--fabric.precision=bf16-mixed",
        "--fabric.threads_per_rank=1",
        "--method=FedBN",
    )
    hashes = {config_hash(plain("--config", config.path, option)) for option in deciding}
    assert len(hashes | {base}) == len(deciding) + 1


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_experiments_parse_and_keep_their_paths_apart(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = plain("--config", path)
    assert found["run"]["name"] == path.stem
    assert config_hash(found) == config_hash(plain("--config", path, "--run.root", "elsewhere"))


# Smaller versions of any experiment, by the class of its data and of its task. Eight channels at least: oneDNN for AVX2
# has crashed in the backward pass of narrower networks in channels_last.
SMALLER = {
    "EuroSAT": [
        "--data.image_size=16",
        "--data.min_samples=1",
        "--data.partition={class_path: IID, init_args: {num_clients: 3}}",
    ],
    "domains": ["--data.crop_size=32"],
    "BigEarthNet": ["--data.image_size=16"],
    "ClassificationTask": [
        "--task.init_args.backbone=resnet18",
        "--task.init_args.width=8",
        "--task.init_args.stem=small",
    ],
    "MultilabelTask": ["--task.init_args.backbone=resnet18", "--task.init_args.width=8", "--task.init_args.stem=small"],
    "SegmentationTask": [
        "--task.init_args.encoder=resnet18",
        "--task.init_args.encoder_width=8",
        "--task.init_args.decoder_channels=16",
    ],
}


@pytest.fixture(scope="session")
def aerial(tmp_path_factory):
    """One small synthetic tile pair of each aerial data set, under both spellings of its folder."""
    folder = tmp_path_factory.mktemp("aerial")
    for name in ("potsdam", "vaihingen"):
        write_sample(folder / name, AerialSample(dataset=name, size="tiny", side=128, gsd_factor=4.0))
        (folder / name.capitalize()).symlink_to(folder / name)
    return folder


@pytest.fixture(scope="session")
def patches(tmp_path_factory):
    """Synthetic patches of eight countries."""
    folder = tmp_path_factory.mktemp("patches") / "bigearthnet"
    write_sample(folder, BigEarthNetSample(patches=10), processes=1)
    return folder


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_experiments_run_two_rounds_at_a_smaller_size(fit, tiles, aerial, patches, path):
    found = plain("--config", path)
    archive = found["data"]["archive"]
    named = [archive["class_path"] if archive else "domains", found["task"]["class_path"]]
    names = [name.rpartition(".")[2] for name in named]
    root = {"EuroSAT": tiles, "BigEarthNet": patches}.get(names[0], aerial)
    ran = fit(
        *(option for name in names for option in SMALLER[name]),
        *(
            "--data.root",
            root,
            "--schedule.num_rounds=2",
            "--schedule.local_epochs=1",
            "--schedule.batch_size=8",
        ),
        *("--schedule.evaluate_every=1", "--fabric.devices=1", "--fabric.accelerator=cpu", "--run.plot=false"),
        config_file=path,
    )
    assert ran.code == 0, ran.err
    assert [record["round"] for record in ran.store.rounds()] == [1, 2]
    assert ran.store.result()["status"] == "complete"
    assert ran.store.path.parent.name == path.stem


# Runs.


def test_a_run_leaves_what_it_promises_and_repeats_from_its_own_config(fit, config, tmp_path):
    ran = fit("--method", "FedBN", "--run.plot", "true", "--seed", "4")
    assert ran.code == 0, ran.err
    assert ran.store.path.name == f"fedbn-s4-{ran.store.result()['config_hash'][:8]}"
    assert ran.store.path.parent == tmp_path / "runs" / "tiny"
    wanted = {
        "config.yaml",
        "environment.json",
        "data.json",
        "split.json",
        "rounds.jsonl",
        "clients.jsonl",
        "metrics.csv",
        "result.json",
    }
    assert wanted | {"checkpoints", "clients", "curves.png"} <= {path.name for path in ran.store.path.iterdir()}
    assert not list(ran.store.path.rglob("*.tmp"))
    assert "FedBN" in ran.out
    assert ran.out.rstrip().endswith(f"run directory: {ran.store.path}")
    assert ran.err.splitlines()[0] == "tiny/FedBN starts: 3 clients, 3 rounds, 1 rank(s)"
    assert [line.split(":")[0] for line in ran.err.splitlines()[1:]] == ["round 1/3", "round 2/3", "round 3/3"]
    split = ran.store.split()
    everyone = [name for client in split["clients"] for name in client["train"]] + split["test"]
    assert len(everyone) == len(set(everyone)) == 80

    repeated = fit(config_file=ran.store.path / "config.yaml", root=tmp_path / "other")
    assert repeated.digest == ran.digest
    assert repeated.store.path == tmp_path / "other" / "tiny" / ran.store.path.name
    assert repeated.store.history() == ran.store.history()


def test_a_complete_run_shows_its_table_again_and_trains_nothing(fit, monkeypatch):
    first = fit()
    assert first.code == 0
    before = {path: path.stat().st_mtime_ns for path in first.store.path.rglob("*")}
    monkeypatch.setattr("fedrs_lightning.data.EuroSAT.prepare", lambda self: pytest.fail("touched the data"))
    again = fit()
    assert again.code == 0
    assert again.err == ""
    table = first.out.partition("run directory")[0]
    assert (
        again.out
        == f"{table}this run was complete already; another --seed or --run.root starts a new one\nrun directory: "
        f"{first.store.path}\n"
    )
    assert {path: path.stat().st_mtime_ns for path in first.store.path.rglob("*")} == before


def test_a_complete_run_can_be_looked_at_where_nobody_may_write(fit, monkeypatch):
    first = fit()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK and access(path, mode))
    assert fit().code == 0
    assert fit("--seed", 1).line.startswith(f"{first.store.path.parent}: no permission to write there")


def test_names_of_runs(fit, tmp_path):
    assert fit("--run.name", "mine").store.path.parent == tmp_path / "runs" / "mine"
    there = fit("--run.dir", tmp_path / "there", "--run.label", "with a name of its own")
    assert there.store.path == tmp_path / "there"
    assert "with a name of its own" in there.out
    assert there.store.result()["label"] == "with a name of its own"


@pytest.mark.parametrize("round", [1, 2])
def test_an_interrupted_run_continues_to_the_same_result(fit, stop, tmp_path, round):
    options = ("--method", "FedBN", "--schedule.clients_per_round", 2, "--run.loggers", "[csv,tensorboard]")
    reference = fit(*options, root=tmp_path / "reference")
    stop(round)
    ran = fit(*options)
    assert ran.code == 130
    assert (
        ran.err.splitlines()[-1]
        == "fedrs fit: interrupted; finished rounds are on disk, the same command continues from them"
    )
    assert ran.out == ""
    assert ran.store.status == "incomplete"
    resumed = fit(*options)
    assert resumed.digest == reference.digest
    assert resumed.store.history() == reference.store.history()
    assert resumed.store.clients() == reference.store.clients()
    assert resumed.err.splitlines()[0] == f"tiny/FedBN continues after round {round}: 3 clients, 3 rounds, 1 rank(s)"
    assert len(resumed.store.environment()["earlier"]) in (0, 1)


def test_continuing_on_another_device_is_said_and_recorded(fit, stop, monkeypatch):
    def on(name, until):
        monkeypatch.setattr(environment, "cpu_model", lambda: name)
        if until < 3:
            stop(until)
        return fit()

    first, second, last = on("A", 1), on("B", 2), on("A", 3)
    assert (first.code, second.code, last.code) == (130, 130, 0)
    change = "began on A, continues on B: its result is neither device's, since they round differently"
    warned = [[line for line in ran.err.splitlines() if line.startswith("warning: ")] for ran in (first, second, last)]
    assert warned == [[], [f"warning: {last.store.path}: {change}"], []]
    assert last.store.environment()["devices_used"] == ["A", "B"]
    assert "Computed on different devices" in last.out


def test_a_warning_of_the_scheduler_ends_the_run_at_the_end_of_its_round(fit, stop):
    reference = fit("--seed", 1, "--run.name", "reference")

    class Warned(Exception):
        pass

    def warn(self, engine, record):
        if record["round"] == 2:
            os.kill(os.getpid(), signal.SIGUSR1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedrs_lightning.engine.callbacks.ProgressBars.on_round_end", warn)
        patch.delenv("SLURM_JOB_ID", raising=False)
        ran = fit("--seed", 1)
    assert ran.code == 0
    assert ran.out == "fedrs fit: warned by the scheduler; round 2 is saved, run the same command to continue\n"
    assert ran.store.status == "incomplete"
    assert fit("--seed", 1).digest == reference.digest


def test_main_leaves_the_process_as_it_was(fit, stop, config):
    fit("--seed", 9)  # what libraries set once when they are loaded is set by now

    def state():
        loggers = {
            name: logging.getLogger(name).level for name in ("lightning", "lightning.fabric", "lightning.pytorch")
        }
        return {
            "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
            "environment": dict(os.environ),
            "warnings": (list(warnings.filters), warnings.showwarning),
            "loggers": loggers,
            "torch": (
                torch.get_num_threads(),
                torch.are_deterministic_algorithms_enabled(),
                torch.get_rng_state().tolist(),
            ),
            "threads": {thread.name for thread in threading.enumerate()},
            "folder": Path.cwd(),
            "streams": (sys.stdout, sys.stderr, sys.excepthook),
        }

    before = state()
    options = ("--fabric.threads_per_rank", 2, "--schedule.num_rounds", 1, "--run.loggers", "[csv,tensorboard]")
    assert fit(*options).code == 0
    assert fit(*options).code == 0  # complete
    assert fit("--schedule.num_rounds", 0).code == 2
    assert fit("--optimizer", "torch.optim.SGD", "--optimizer.lr", "1e30", "--schedule.batch_size", 8).code == 2
    stop(1)
    assert fit("--seed", 1).code == 130
    assert state() == before


# Options of the machine.

BASE = ("--method", "FedMAD", "--run.loggers", "[]")
MACHINE = {
    "bf16": ("--fabric.precision", "bf16-mixed"),
    # eight channels: see tests/engine/test_options.py
    "channels_last": ("--fabric.channels_last", "true", "--task.init_args.width", "8"),
    "deterministic": ("--fabric.deterministic", "true"),
    "threads": ("--fabric.threads_per_rank", "2"),
}


@pytest.mark.parametrize("name", MACHINE)
def test_machine_options_give_a_finite_result_and_are_recorded(fit, name):
    ran = fit(*BASE, *MACHINE[name], "--schedule.num_rounds", 1)
    assert ran.code == 0, ran.err
    values = [value for record in ran.store.rounds() for value in record["metrics"].values()]
    assert values
    assert torch.tensor(values).isfinite().all()
    facts = ran.store.environment()
    assert facts["precision"] == ("bf16-mixed" if name == "bf16" else "32-true")
    assert facts["threads"] == (2 if name == "threads" else 1)
    assert facts["world_size"] == 1
    assert len(facts["devices"]) == 1
    assert facts["determinism"]["deterministic_algorithms"] is False  # asked for on GPUs only


def test_compile_through_the_command(fit, monkeypatch):
    # One graph for all clients, through a back end that needs no minutes of a C++ compiler.
    graphs = []

    def back_end(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compile_ = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compile_(self, backend=back_end))
    monkeypatch.setattr("fedrs_lightning.cli.fit._require_compiler", lambda: None)
    torch.compiler.reset()
    ran = fit("--schedule.num_rounds", 1, "--run.loggers", "[]", "--fabric.compile", "true")
    torch.compiler.reset()
    assert ran.code == 0, ran.err
    assert graphs
    plain_run = fit("--schedule.num_rounds", 1, "--run.loggers", "[]")
    losses = [run.store.rounds()[0]["metrics"]["train/loss"] for run in (ran, plain_run)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_more_ranks_than_clients_is_one_warning(fit, monkeypatch):
    # One rank and no client a round cannot be; the warning is about numbers, so that a stand-in for the number will do.
    monkeypatch.setattr("fedrs_lightning.engine.engine.Engine.world_size", property(lambda self: 3))
    monkeypatch.setattr("fedrs_lightning.cli.fit._train", lambda *arguments: False)
    monkeypatch.setattr("fedrs_lightning.engine.ranks.exchange.Exchange.barrier", lambda self: None)
    ran = fit("--schedule.clients_per_round", 2)
    assert ran.err == "warning: 3 ranks for 2 client(s) a round: 1 rank(s) stand idle; lower --fabric.devices\n"


def test_the_table_is_that_of_the_run(fit):
    ran = fit()
    result = json.loads((ran.store.path / "result.json").read_text())
    assert f"{100 * result['headline']['last']:.2f}" in ran.out
    assert RunStore(ran.store.path).status == "complete"


def test_a_complete_run_answers_for_its_own_data_only(fit, own_tiles, tmp_path):
    """The folder of the data is not in the run's name: the same tiles elsewhere are the same run, others are not."""
    assert fit("--schedule.num_rounds", 1).code == 0
    moved = fit("--schedule.num_rounds", 1, "--data.root", own_tiles)
    assert "complete already, on the same data under another path" in moved.out
    next(own_tiles.rglob("*.jpg")).unlink()
    assert (
        "the data are not those that the run began with"
        in fit("--schedule.num_rounds", 1, "--data.root", own_tiles).line
    )
    assert "no such folder" in fit("--schedule.num_rounds", 1, "--data.root", tmp_path / "nowhere").line


def test_folders_of_several_data_sets_may_move_too(config, fit, aerial, tmp_path):
    """Also where each has its own: another folder is the same run, if the same tiles are in it."""

    def federation(folder, num_clients=1):
        names = {"Potsdam": {}, "Vaihingen": {"gsd": "5cm"}}
        sets = [
            {"class_path": name, "init_args": {"root": str(folder / name.lower())} | more}
            for name, more in names.items()
        ]
        domains = [{"name": one["class_path"], "num_clients": num_clients, "archive": one} for one in sets]
        return {"domains": domains, "crop_size": 32, "client_size": "equal", "normalise": "federated"}

    def written(*given):
        config["data"] = federation(*given)
        return plain("--config", config.write())

    network = {
        "architecture": "deeplabv3plus",
        "encoder": "resnet18",
        "encoder_width": 8,
        "decoder_channels": 16,
        "loss": "ce",
    }
    config["task"] = {"class_path": "SegmentationTask", "init_args": network}
    config["schedule"] = {"num_rounds": 1, "batch_size": 8}
    moved = Path(shutil.copytree(aerial, tmp_path / "moved", symlinks=True))
    assert config_hash(written(aerial)) == config_hash(written(moved)) != config_hash(written(moved, 2))
    written(aerial)
    ran = fit()
    assert ran.code == 0, ran.err
    again = fit()
    assert "complete already; another" in again.out, again.err
    written(moved)
    again = fit()
    assert "complete already, on the same data under another path" in again.out
    assert again.store.path == ran.store.path
    written(tmp_path / "nowhere")
    assert "no such folder" in fit().line
    written(moved)
    tile = next((moved / "potsdam").rglob("*RGB*.tif"))
    tile.unlink()
    assert fit().code == 2


def test_the_upper_bound_stands_beside_partial_participation(fit):
    """All clients' data are in one place: there is no cohort to draw."""
    ran = fit("--method", "Centralised", "--schedule.clients_per_round", 2, "--schedule.num_rounds", 1)
    assert ran.code == 0
    assert ran.store.history()[0]["cohort"] == [0]
