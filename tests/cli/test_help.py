"""Help: answers at once where nothing is trained, and says something about every option."""

import inspect
import subprocess
import sys

import pytest
from jsonargparse import ArgumentParser

from fedrs_lightning import __version__, data, methods, tasks
from fedrs_lightning.cli.config.command_line import build_parser
from fedrs_lightning.cli.main import COMMANDS, main
from fedrs_lightning.data import Archive
from fedrs_lightning.methods import FedAvg
from fedrs_lightning.tasks import Task

LIGHT = [
    ["--help"],
    ["--version"],
    [],
    ["tabel"],
    ["table", "--help"],
    ["plot", "--help"],
    ["sweep", "--help"],
    ["data", "--help"],
]


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_no_torch_where_nothing_is_trained(arguments):
    script = (
        "import sys\n"
        "from fedrs_lightning.cli.main import main\n"
        "try:\n    code = main(sys.argv[1:])\n"
        "except SystemExit as end:\n    code = end.code\n"
        "heavy = {'torch', 'lightning', 'torchvision', 'torchmetrics', 'jsonargparse'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert "loaded" not in done.stderr
    assert done.returncode == (2 if arguments in ([], ["tabel"]) else 0), done.stderr


def test_the_program_introduces_itself(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fedrs {__version__}\n"
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
    assert "fedrs fit --config experiments/quickstart.yaml" in text
    assert main(["fitt"]) == 2
    assert capsys.readouterr().err == "fedrs: unknown command 'fitt'; did you mean 'fit'?\n"


def test_fit_explains_every_option(capsys):
    parser = build_parser()
    silent = [action.dest for action in parser._actions if not (action.help or "").strip()]
    assert silent == []
    with pytest.raises(SystemExit) as end:
        main(["fit", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for option in (
        "--schedule.num_rounds",
        "--schedule.local_epochs",
        "--schedule.clients_per_round",
        "--fabric.devices",
        "--run.root",
        "--seed",
    ):
        assert f"  {option} " in text


CLASSES = [
    (key, name, cls)
    for key, base, package in (("data.archive", Archive, data), ("task", Task, tasks), ("method", FedAvg, methods))
    for name, cls in ((name, getattr(package, name)) for name in package.__all__)
    if inspect.isclass(cls) and issubclass(cls, base) and not inspect.isabstract(cls)
]


@pytest.mark.parametrize(("key", "name", "cls"), CLASSES, ids=[name for _, name, _ in CLASSES])
def test_every_class_explains_its_arguments(capsys, key, name, cls):
    parser = ArgumentParser()
    parser.add_class_arguments(cls, "x")
    silent = [
        action.dest for action in parser._actions if action.dest.startswith("x.") and not (action.help or "").strip()
    ]
    assert silent == []
    with pytest.raises(SystemExit) as end:
        main(["fit", f"--{key}.help", name])
    assert end.value.code == 0
    assert f"Help for --{key}.help=" in capsys.readouterr().out
