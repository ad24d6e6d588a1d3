"""Every mistake a user can repair ends in one line and exit code 2, and costs nothing that was finished."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
import yaml

from fedrs_lightning.cli.config.command_line import build_parser
from fedrs_lightning.cli.config.values import one_line
from fedrs_lightning.engine.checkpoint import Checkpoint, CheckpointStore
from fedrs_lightning.errors import RunError

# Options on the command line, and what the line says.
OPTIONS = [
    (["--methud", "FedAvg"], "--methud: there is no option 'methud'; did you mean 'method'?"),
    (["--see=3"], "--see: there is no option 'see'; did you mean 'seed'?"),
    (["-seed", "3"], "-seed: there is no option '-seed'; did you mean 'seed'?"),
    (["my.yaml"], "'my.yaml' belongs to no option; a configuration file is given with --config my.yaml"),
    (["--lr_scheduler", "x"], "--lr_scheduler: there is no option 'lr_scheduler'; valid: data, fabric, method, "),
    (["--task.class_weights", "1"], "ClassificationTask has no option 'class_weights'; valid: backbone, "),
    (["--method", "FedMed"], "--method: there is no class 'FedMed'; did you mean 'FedMAD'?"),
    (["--method", "FedDAP"], "method: FedDAP needs masks, and ClassificationTask has one class an image; choose"),
    (["FedAvg"], "'FedAvg' belongs to no option; options begin with --"),
    (["--seed"], "--seed needs a value"),
    (
        ["--schedule.num_round", "3"],
        "--schedule.num_round: schedule has no key 'num_round'; did you mean 'num_rounds'?",
    ),
    (["--fabric.device", "2"], "--fabric.device: fabric has no key 'device'; did you mean 'devices'?"),
    (
        ["--task.init_args.widht", "3"],
        "--task.init_args.widht: ClassificationTask has no option 'widht'; did you mean 'width'?",
    ),
    (["--task.widht", "3"], "--task.widht: ClassificationTask has no option 'widht'; did you mean 'width'?"),
    (["--method", "FedMAD", "--method.powr", "3"], "--method.powr: FedMAD has no option 'powr'; did you mean 'power'?"),
    (
        ["--data.partition.init_args.num_client", "3"],
        "IID has no option 'num_client'; did you mean 'num_clients'?",
    ),
    (["--optimizer.init_args.ler", "0.1"], "--optimizer.init_args.ler: Adam has no option 'ler'; did you mean 'lr'?"),
    (
        ["--method={class_path: FedMAD, init_args: {powr: 3}}"],
        "--method: FedMAD has no option 'powr'; did you mean 'power'?",
    ),
    (["--schedule.num_rounds", "many"], "--schedule.num_rounds: expected a whole number, got 'many'"),
    (["--schedule.num_rounds", "1.5"], "--schedule.num_rounds: expected a whole number, got 1.5"),
    (
        ["--schedule.clients_per_round", "few"],
        "--schedule.clients_per_round: expected a whole number or null, got 'few'",
    ),
    (["--task.width", "wide"], "--task.width: expected a whole number, got 'wide'"),
    (["--data.partition.num_clients", "two"], "--data.partition.num_clients: expected a whole number, got 'two'"),
    (["--fabric.compile", "perhaps"], "--fabric.compile: expected true or false, got 'perhaps'"),
    (["--fabric.devices", "two"], "--fabric.devices: expected a whole number or auto, got 'two'"),
    (["--resume", "always"], "--resume: expected auto or never, got 'always'"),
    (["--fabric.precision", "16-mixed"], "expected 32-true or bf16-mixed, got '16-mixed'; did you mean 'bf16-mixed'?"),
    (
        ["--task.backbone", "resnet19"],
        "expected resnet18, resnet34, resnet50 or resnet101, got 'resnet19'; did you mean 'resnet18'?",
    ),
    (["--run.loggers", "[csv,tensorbord]"], "got ['csv', 'tensorbord']; did you mean 'tensorboard'?"),
    (["--method", "FedMat"], "--method: there is no class 'FedMat'; did you mean 'FedMAD'?"),
    (["--method", "fedavg"], "--method: there is no class 'fedavg'; did you mean 'FedAvg'?"),
    (["--method", "my.own.Method"], "--method: there is no 'my.own.Method' to import"),
    (["--method", "fedrs_lightning.data.EuroSAT"], "--method: 'fedrs_lightning.data.EuroSAT' does not fit here"),
    (["--task", "Task"], "--task: there is no class 'Task'; "),
    (["--data.partition", "Dirichle"], "--data.partition: there is no class 'Dirichle'; did you mean 'Dirichlet'?"),
    (
        ["--optimizer", "torch.optim.Adamm"],
        "--optimizer: there is no 'torch.optim.Adamm' to import; did you mean 'Adam'?",
    ),
    (["--optimizer", "torch.nn.Linear"], "--optimizer: 'torch.nn.Linear' does not fit here; choose from "),
    (["--method.help", "FedNone"], "--method.help: there is no class 'FedNone'; did you mean 'Fed"),
    (["--print_config=nothing"], 'Invalid option "nothing" for --print_config'),
    (["--fabric", "none.yaml"], "--fabric: fabric: no file none.yaml"),
    (["--config", "tinny.yaml"], "--config: no file tinny.yaml"),
    (["--config", "."], "--config: . is a folder; name a YAML file"),
    (["--config"], "--config needs a file"),
    (
        ["--task=MultilabelTask", "--task.backbone=resnet18", "--method=FedProto", "--data.root=nowhere"],
        "FedProto needs one class per sample, and MultilabelTask has several labels each; choose another method",
    ),
    (
        ["--task=MultilabelTask", "--task.backbone=resnet18"],
        "MultilabelTask: the data have one class an image; take task.class_path: ",
    ),
    # Values that the parser takes and a constructor refuses.
    (["--schedule.num_rounds", "0"], "schedule.num_rounds=0 must be at least 1"),
    (["--run.keep_checkpoints", "0"], "run.keep_checkpoints=0 must be at least 2"),
    (["--task.width", "0"], "ClassificationTask: width: 0 is below 1"),
    (["--data.image_size", "0"], "image_size must be 1 to 16384 pixels or null, got 0"),
    (["--optimizer.lr", "-1"], "--optimizer.lr: expected a number above 0, got -1"),
    (["--task.weights", "none.pt"], "weights: no file none.pt"),
    (["--method", "FedMAD", "--method.dict_kwargs.extra", "1"], "unexpected keyword argument 'extra'"),
    # Numbers that no option takes, and those that torch's optimisers accept although nothing can train with them.
    (["--seed", "-1"], "--seed: a seed is 0 to 9223372036854775807, not -1"),
    (["--data.seed", "-1"], "--data.seed: a seed is 0 to "),
    (
        ["--schedule.batch_size", "1000000000000"],
        "--schedule.batch_size: 1000000000000 is out of range (at most 2147483647)",
    ),
    (["--schedule.clients_per_round", "-1"], "--schedule.clients_per_round: expected a number of at least 1, got -1"),
    (["--schedule.min_last_batch", "-1"], "--schedule.min_last_batch: expected a number of at least 0, got -1"),
    (["--fabric.upload_memory", ".nan"], "--fabric.upload_memory: expected a finite number, got nan"),
    (["--fabric.upload_memory", "-1"], "--fabric.upload_memory: expected a number of at least 0, got -1"),
    (["--fabric.devices", "1000000"], "--fabric.devices: expected a number of at most "),
    (["--fabric.threads_per_rank", "1000000000"], "expected a number of at most 1024, got 1000000000"),
    (["--optimizer.lr", "0"], "--optimizer.lr: expected a number above 0, got 0"),
    (["--optimizer.lr", ".inf"], "--optimizer.lr: expected a finite number, got inf"),
    (["--optimizer.betas", "[0.9, .nan]"], "--optimizer.betas: expected a finite number, got nan"),
    (["--optimizer.betas", "[0.9, 1.0]"], "--optimizer.betas: expected a number of at least 0 and below 1, got 1.0"),
    (["--optimizer=torch.optim.SGD", "--optimizer.momentum=5"], "expected a number of at least 0 and below 1, got 5"),
    (["--optimizer=torch.optim.SGD", "--optimizer.dampening=-5"], "of at least 0 and of at most 1, got -5"),
    (["--optimizer=torch.optim.RMSprop", "--optimizer.alpha=2"], "expected a number of at least 0 and below 1, got 2"),
    (["--optimizer", "torch.optim.LBFGS"], "optimizer: LBFGS takes several steps a batch, which local training does"),
    (["--optimizer", "torch.optim.SparseAdam"], "optimizer: SparseAdam needs sparse gradients, which no network here"),
    (["--method=FedMAD", "--method.initial_gamma=-1e308"], "--method.initial_gamma: -1e+308 is more than float32"),
    (["--method=FedMAD", "--method.initial_beta=.nan"], "--method.initial_beta: expected a finite number, got nan"),
    (["--method=FedGPS", "--method.surrogate_seed=-1"], "--method.surrogate_seed: a seed is 0 to "),
    (["--method=FedAWA", "--method.momentum=1"], "FedAWA: momentum: 1.0 is not below 1"),
    (
        ["--method=FedMAD", "--method.power=1e30", "--schedule.num_rounds=1"],
        "training diverges already in the trial on a few images that counts its cost: loss term 'task' is nan",
    ),
    (["--task.num_classes", "7"], "--task.num_classes: follows from the data set; leave it out"),
    # Names that lead elsewhere.
    (["--run.name", "../../.."], "run.name='../../..' must be the name of a folder below run.root"),
    (["--run.name", "/tmp/x"], "run.name='/tmp/x' must be the name of a folder below run.root"),
    (["--method", "antigravity.fly"], "--method: there is no 'antigravity.fly' to import"),
    # Where it runs.
    (["--fabric.devices", "0"], "fabric.devices=0 must be at least 1, or auto"),
    (["--fabric.threads_per_rank", "0"], "fabric.threads_per_rank=0 must be at least 1"),
    # Clients and batches that cannot work.
    (["--data.partition.num_clients", "500"], "500 clients but only 64 training samples; lower num_clients"),
    (
        ["--data.min_samples", "40"],
        "client 0 (client 0) has 22 training samples, fewer than min_samples=40; give it more",
    ),
    (
        ["--data.partition={class_path: Dirichlet, init_args: {num_clients: 9, alpha: 0.01, min_samples: 0}}"],
        "has 0 training samples, fewer than min_samples=1; give it more, leave it out, or change split or partition",
    ),
    (["--schedule.clients_per_round", "9"], "schedule.clients_per_round=9, but there are 3 clients; choose 1 to 3"),
    (
        ["--schedule.min_last_batch", "0", "--schedule.batch_size", "7"],
        "client 0 (client 0) has 22 samples, so a batch of 1 would reach",
    ),
    (
        [
            "--data.partition",
            "Dirichlet",
            "--data.partition.num_clients",
            "5",
            "--data.partition.alpha",
            "0.05",
            "--data.partition.max_draws",
            "2",
        ],
        "gave 5 clients min_samples=10 each (best smallest client:",
    ),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS, ids=[" ".join(options)[:60] for options, _ in OPTIONS])
def test_options(fit, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    assert words in fit(*options).line
    assert not list((tmp_path / "runs").rglob("*.yaml"))


def change(config, path, value=None):
    """Set a key, or remove it where no value is given."""
    *above, last = path.split("/")
    for key in above:
        config = config[key]
    if value is None:
        del config[last]
    else:
        config[last] = value


# Where in the file, the new value (none: removed), and what the line says; ":N" is the line of the file.
KEYS = [
    ("data", None, "data has neither archive nor domains; name an archive, such as archive: {class_path: EuroSAT}"),
    ("task", None, "task is missing; name one of "),
    ("method", None, "method is missing; name one of Centralised, "),
    (
        "schedule/num_rounds",
        None,
        "schedule.num_rounds is missing; set it in the config file or with --schedule.num_rounds",
    ),
    ("schedule", None, "schedule.num_rounds is missing"),
    ("data/root", "nowhere", "nowhere: no such folder; set root to the EuroSAT folder"),
    ("data/partition", None, "nothing says whose the samples are; set partition"),
    (
        "data/partition/init_args",
        None,
        "data.partition.init_args.num_clients is missing (IID needs it)",
    ),
    ("methud", "FedAvg", ":26: there is no key 'methud'; did you mean 'method'?"),
    ("schedule/num_round", 3, ":21: schedule has no key 'num_round'; did you mean 'num_rounds'?"),
    ("schedule/num_rounds", "many", ":18: schedule.num_rounds: expected a whole number, got 'many'"),
    ("schedule", 3, ":17: schedule: expected keys (num_rounds, local_epochs,"),
    ("run/rooot", "x", ":26: run has no key 'rooot'; did you mean 'root'?"),
    (
        "task/init_args/backbon",
        "resnet18",
        ":16: task: ClassificationTask has no option 'backbon'; did you mean 'backbone'?",
    ),
    ("task/init_args/backbone", "resnet19", ":13: task.init_args.backbone: expected resnet18, resnet34,"),
    ("task/init_args/num_classes", 7, ":16: task.init_args.num_classes: follows from the data set; leave it out"),
    ("task/init_arg", {"width": 4}, ":16: task has no key 'init_arg'; did you mean 'init_args'?"),
    ("task/width", 4, ":16: task: 'width' belongs below init_args"),
    ("data/archive/class_path", "EuroSat", ":4: data.archive: there is no class 'EuroSat'; did you mean 'EuroSAT'?"),
    ("data/archiv", "EuroSAT", ":10: data has no key 'archiv'; did you mean 'archive'?"),
    (
        "data/partition/class_path",
        "IDI",
        ":7: data.partition: there is no class 'IDI'; did you mean 'IID'?",
    ),
    (
        "data/partition/init_args/num_client",
        3,
        ":10: data.partition: IID has no option 'num_client'",
    ),
    (
        "optimizer",
        {"class_path": "torch.optim.Adam", "init_args": {"ler": 0.1}},
        ":29: optimizer: Adam has no option 'ler'; did you mean 'lr'?",
    ),
    ("method", 3, ":16: method: expected the name of a class, or class_path and init_args, got 3"),
    ("method", {"init_args": {"power": 2}}, ":18: method: name a class first (class_path)"),
    ("data", "parts/none.yaml", ":1: data: no file "),
    ("schedule", "none.yaml", "schedule: no file "),
]


@pytest.mark.parametrize(("path", "value", "words"), KEYS, ids=[path for path, _, _ in KEYS])
def test_keys_of_a_file(fit, config, path, value, words):
    change(config, path, value)
    config.write()
    line = fit().line
    assert words in line
    assert not words.startswith(":") or line.startswith(f"{config.path}:")


# Content of a file, and what the line says of it.
TEXTS = [
    ("data: {class_path: EuroSAT\ntask: [\n", ":2: not valid YAML: expected ',' or '}', but got ':'"),
    (
        "seed: 0\ndata:\n\tarchive: EuroSAT\n",
        ":3: not valid YAML: found character '\\t' that cannot start any token",
    ),
    ("seed: 1\nschedule:\n  num_rounds: 3\nseed: 2\n", ":4: key 'seed' stands there twice, also in line 1; remove one"),
    ("hello\n", ": holds a single value; write keys with values"),
    ("- a\n- b\n", ": holds a list; write keys with values"),
    ("", ": is empty; write keys with values"),
    (b"\xff\xfe\x00\x01", " is not a text file (UTF-8)"),
]


@pytest.mark.parametrize("part", [False, True], ids=["config", "part"])
@pytest.mark.parametrize(("text", "words"), TEXTS, ids=["flow", "tab", "twice", "scalar", "list", "empty", "binary"])
def test_broken_files(fit, config, tmp_path, text, words, part):
    broken = tmp_path / "broken.yaml"
    broken.write_bytes(text if isinstance(text, bytes) else text.encode())
    if part:
        config["schedule"] = "broken.yaml"
        config.write()
    assert f"{broken}{words}" in fit(config_file=config.path if part else broken).line


def test_a_mistake_in_a_part_file_names_that_file(fit, config, tmp_path):
    (tmp_path / "parts").mkdir()
    part = tmp_path / "parts" / "data.yaml"
    config["data"]["archive"]["init_args"] = {"bnds": "rgb"}
    part.write_text(yaml.safe_dump(config["data"], sort_keys=False))
    config["data"] = "parts/data.yaml"
    config.write()
    assert fit().line == f"{part}:5: data.archive: EuroSAT has no option 'bnds'; did you mean 'bands'?"


def test_a_near_file_name_is_named(fit, config):
    assert fit(config_file=config.path.with_name("tinny.yaml")).line.endswith("tinny.yaml; did you mean 'tiny.yaml'?")


def test_a_message_of_unknown_form_is_still_one_line():
    parser = build_parser()
    with pytest.raises(Exception, match="Union") as caught:
        parser.parse_object(
            {"data": {"archive": {"class_path": "EuroSAT", "init_args": {"root": [1]}}, "partition": 3}}
        )
    for error in (caught.value, ValueError("one\n  two:\n- three\n"), RuntimeError(), KeyError("key")):
        line = one_line(error)
        assert line
        assert "\n" not in line
    assert one_line(ValueError("one\n  two:\n- three\n")) == "one two:; three"


# The data folder.


def test_missing_data_root(fit, tmp_path):
    line = fit("--data.root", tmp_path / "nowhere").line
    assert (
        line
        == f"{tmp_path / 'nowhere'}: no such folder; set root to the EuroSAT folder that you downloaded and unpacked"
    )
    assert not (tmp_path / "runs").exists()


def test_missing_class_folder(fit, own_tiles):
    shutil.rmtree(own_tiles / "2750" / "River")
    assert (
        fit("--data.root", own_tiles).line
        == f"{own_tiles / '2750'}: class folders missing: River; all ten EuroSAT classes are needed"
    )


def test_truncated_jpeg(fit, own_tiles):
    file = own_tiles / "2750" / "River" / "River_3.jpg"
    file.write_bytes(file.read_bytes()[:700])
    line = fit("--data.root", own_tiles).line
    assert line.startswith(f"{file}: cannot be decoded (image file is truncated")


# Devices.


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_an_accelerator_that_is_not_there(fit):
    assert fit("--fabric.accelerator", "gpu").line.startswith(
        "fabric.accelerator=gpu, but torch sees no CUDA device; use --fabric.accelerator cpu"
    )


def test_too_many_gpus(fit, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    line = fit("--fabric.accelerator", "gpu", "--fabric.devices", "2").line
    assert line == "fabric.devices=2, but torch sees 1 CUDA device(s); lower it or use auto"


def test_compile_without_a_compiler(fit, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert (
        "fabric.compile needs a C++ compiler, and no-such-compiler is not there; install g++"
        in fit("--fabric.compile", "true").line
    )


# Training.


def test_a_loss_that_is_not_finite(fit):
    line = fit("--optimizer", "torch.optim.SGD", "--optimizer.lr", "1e30", "--schedule.batch_size", "8").line
    assert line.startswith("client 0, round 1: loss term 'task' is ")
    assert "lower the learning rate (optimizer.init_args.lr)" in line


def test_memory_that_runs_out(fit, monkeypatch):
    from fedrs_lightning.engine.engine import Engine

    def fails(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore words.")

    monkeypatch.setattr(Engine, "fit", fails)
    assert fit().line == (
        "CUDA out of memory. Tried to allocate 2 GiB. Lower schedule.batch_size, schedule.eval_batch_size or the "
        "ranks on a GPU"
    )


# The run directory.


@pytest.fixture
def finished(fit):
    ran = fit("--run.loggers", "[]")
    assert ran.code == 0, ran.err
    return ran


def test_another_configuration_names_keys_and_both_values(fit, finished):
    into = ("--run.dir", finished.store.path)
    assert fit(*into, "--optimizer.lr", "0.5", "--schedule.num_rounds", "4").line == (
        f"{finished.store.path}: holds a run of another configuration: optimizer.init_args.lr (0.001 there, 0.5 now), "
        "schedule.num_rounds (3 there, 4 now); choose another --run.dir"
    )
    assert "configuration: method.class_path (FedAvg there, FedBN now); choose" in fit(*into, "--method", "FedBN").line
    assert "task.init_args.weights (null there, none.pt now)" in fit(*into, "--task.weights", "none.pt").line


def test_an_existing_run_is_not_continued_under_resume_never(fit, finished):
    assert (
        "already holds this run; use --resume auto to continue it, or another --run.root"
        in fit("--resume", "never").line
    )
    assert fit("--resume", "never", "--seed", "1").code == 0


def test_a_folder_of_something_else_is_left_alone(fit, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("all of it")
    assert (
        "holds thesis.tex but no run; choose an empty folder with --run.dir"
        in fit("--run.dir", tmp_path / "thesis").line
    )
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["thesis.tex"]


def test_other_data_under_an_existing_run(fit, stop, own_tiles):
    stop(1)
    assert fit("--data.root", own_tiles).code == 130
    (own_tiles / "2750" / "River" / "River_3.jpg").write_bytes(
        (own_tiles / "2750" / "River" / "River_4.jpg").read_bytes()
    )
    line = fit("--data.root", own_tiles).line
    assert "the data are not those that the run began with (data.json differs in archives); restore them" in line


def test_moved_data_are_the_same_data(fit, stop, own_tiles, tmp_path):
    reference = fit("--seed", 5)
    stop(1)
    assert fit("--data.root", own_tiles, "--seed", 5, root=tmp_path / "other").code == 130
    own_tiles.rename(tmp_path / "moved")
    assert fit("--data.root", tmp_path / "moved", "--seed", 5, root=tmp_path / "other").digest == reference.digest


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder and reference of `stopped`, trained once for all tests that damage a copy."""
    return {"folder": tmp_path_factory.mktemp("stopped")}


@pytest.fixture
def stopped(fit, stop, tmp_path, trained):
    """A run stopped after round 3 of 4, with the checkpoints of rounds 2 and 3, and the digest it must end with."""
    options = ("--method", "FedBN", "--schedule.num_rounds", 4)
    if "reference" not in trained:
        trained["reference"] = fit(*options, root=trained["folder"] / "reference")
        stop(3)
        ran = fit(*options, root=trained["folder"] / "runs")
        assert ran.code == 130
        assert len(list((ran.store.path / "checkpoints").iterdir())) == 2
        trained["path"] = ran.store.path.relative_to(trained["folder"])
    shutil.copytree(trained["folder"] / "runs", tmp_path / "runs")
    return tmp_path / trained["path"], options, trained["reference"]


DAMAGE = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "header": lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
    "tensor": lambda data: data[:-50] + bytes([data[-50] ^ 1]) + data[-49:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(fit, stopped, damage):
    path, options, reference = stopped
    newest = path / "checkpoints" / "round-00003.safetensors"
    newest.write_bytes(DAMAGE[damage](newest.read_bytes()))
    ran = fit(*options)
    assert ran.digest == reference.digest
    assert ran.store.history() == reference.store.history()
    warned = [line for line in ran.err.splitlines() if line.startswith("warning: ")]
    assert len(warned) == 1
    assert f"{newest}: " in warned[0]
    assert warned[0].endswith("Falling back to the checkpoint of round 2")


def test_no_flipped_byte_of_a_checkpoint_is_taken_for_whole(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(
        Checkpoint(7, {"model/w": torch.arange(3.0)}, {1: 6, 10: 7}, {"wandb": "c0ffee"}, {"round": 5, "value": 0.5})
    )
    whole = store.path(7).read_bytes()
    assert store.load(7).index == {1: 6, 10: 7}
    for place in range(len(whole)):
        store.path(7).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RunError, match=r"round-00007\.safetensors"):
            store.load(7)


def test_no_checkpoint_is_left(fit, stopped):
    path, options, _ = stopped
    for file in (path / "checkpoints").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    line = fit(*options).line
    assert line.startswith("no usable checkpoint: ")
    assert "round-00002.safetensors" in line
    assert "round-00003.safetensors" in line
    assert line.endswith(f"Delete {path} to start again")


def test_a_missing_client_memory_is_named_and_the_round_before_used(fit, stopped):
    path, options, reference = stopped
    next((path / "clients").glob("000001.r00003.*")).unlink()
    ran = fit(*options)
    assert ran.digest == reference.digest
    assert "client memory of round 3 is missing or damaged. Falling back to the checkpoint of round 2" in ran.err


# The disk.


def test_a_file_in_the_way(fit, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert fit(root=tmp_path / "file").line.startswith(
        f"{tmp_path / 'file'}: is a file, where the folder of the run should be"
    )
    assert fit("--run.dir", tmp_path / "file").line.startswith(f"{tmp_path / 'file'}: is a file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.fixture
def small_disk(tmp_path):
    """`small_disk(size)` mounts a file system of that size in place of the one before."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size):
        subprocess.run(["umount", folder], capture_output=True, check=False)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip("this user may not mount a file system")
        return folder

    if sys.platform != "linux" or not shutil.which("mount"):
        pytest.skip("needs Linux's mount")
    yield mount
    subprocess.run(["umount", folder], capture_output=True, check=False)


@pytest.mark.parametrize("size", ["4k", "64k", "300k"], ids=["before round 1", "in round 1", "in a later round"])
def test_a_full_disk(fit, small_disk, size):
    folder = small_disk(size)
    options = ("--method", "FedBN", "--schedule.num_rounds", 2)
    line = fit(*options, root=folder).line
    assert line.startswith(f"{folder}/tiny/fedbn-s0-")
    assert line.endswith(
        ": No space left on device; free some, then run the same command again: finished rounds are kept"
    )
    subprocess.run(["mount", "-o", "remount,size=4M", folder], check=True)
    assert fit(*options, root=folder).digest == fit(*options).digest


def test_a_root_that_cannot_be_written(fit, tmp_path, request):
    if os.geteuid() == 0:  # who may write everywhere, but on a disk that is read only
        folder = request.getfixturevalue("small_disk")("100k,ro")
    else:
        folder = tmp_path / "locked"
        folder.mkdir(mode=0o555)
    assert (
        fit(root=folder).line
        == f"{folder}: no permission to write there; choose another --run.root, or mend the permissions"
    )


def test_a_module_whose_class_does_not_fit_is_not_imported(fit, tmp_path, monkeypatch):
    (tmp_path / "mine_unfit.py").write_text(
        "from pathlib import Path\nPath('ran').touch()\n\n\nclass Unfit:\n    pass\n\n\nmade = type('Made', (), {})\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert "'mine_unfit.Unfit' does not fit here" in fit("--method", "mine_unfit.Unfit").line
    assert "there is no 'mine_unfit.made' to import" in fit("--method", "mine_unfit.made").line
    assert not (tmp_path / "ran").exists()
