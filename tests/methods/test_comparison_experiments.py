"""FedMAD's comparisons on EuroSAT and BigEarthNet: every file can be read, and differs from the others in what its row
needs alone.
"""

import re
from functools import cache
from pathlib import Path

import pytest

from fedrs_lightning import methods
from fedrs_lightning.cli import sweep
from fedrs_lightning.cli.config.command_line import configure
from fedrs_lightning.data.archives.bigearthnet.files import BANDS
from fedrs_lightning.results.run import Run

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
CLASSES = {
    "fedavg": "FedAvg",
    "fedawa": "FedAWA",
    "fedbn": "FedBN",
    "feddc": "FedDC",
    "feddc_no_state": "FedDC",
    "feddc_sgd": "FedDC",
    "fedgps": "FedGPS",
    "fedmad": "FedMAD",
    "fedmad_aggregation_only": "FedMAD",
    "fedmad_modulation_only": "FedMAD",
    "fedprox": "FedProx",
    "moon": "MOON",
}
ROWS = {
    "eurosat": CLASSES | {"fedproto": "FedProto", "fpl": "FPL"},  # which need one class an image
    "bigearthnet": CLASSES | {"centralised": "Centralised", "local_only": "LocalOnly"},
}
FILES = [(folder, name) for folder, names in ROWS.items() for name in names]
EIGHT = ["Finland", "Ireland", "Serbia", "Austria", "Belgium", "Lithuania", "Portugal", "Switzerland"]


@cache
def read(folder, name):
    return configure(["--config", str(EXPERIMENTS / folder / f"{name}.yaml")]).config


def deciding(config):
    return Run(config).deciding


@pytest.mark.parametrize("folder", ROWS)
def test_all_files_are_here(folder):
    assert {path.stem for path in (EXPERIMENTS / folder).glob("*.yaml")} == ROWS[folder].keys()


@pytest.mark.parametrize(("folder", "name"), FILES)
def test_only_the_method_differs(folder, name):
    plain = read(folder, name)
    assert plain["method"]["class_path"].rpartition(".")[2] == ROWS[folder][name]
    getattr(methods, ROWS[folder][name])(**plain["method"]["init_args"])
    reference = deciding(read(folder, "fedavg"))
    other = {
        key for key, value in deciding(plain).items() if not key.startswith("method.") and reference.get(key) != value
    }
    assert {key.partition(".")[0] for key in other} == ({"optimizer"} if name == "feddc_sgd" else set())
    assert plain["run"]["name"] == folder  # one table
    labels = [read(folder, row)["run"]["label"] or ROWS[folder][row] for row in ROWS[folder]]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("folder", "name"), [row for row in FILES if not row[1].startswith(("fedavg", "fedbn", "fedmad"))]
)
def test_values_in_sight_are_the_defaults(folder, name):
    """The files repeat the released values; a default that moved away from them would show here."""
    plain = read(folder, name)["method"]["init_args"]
    changed = {"feddc_no_state": {"state_scale"}, "fedproto": {"weight"}, "fedawa": {"lr", "weight_decay"}}.get(
        name, set()
    )
    default = vars(getattr(methods, ROWS[folder][name])())
    for key, value in plain.items():
        if key not in changed and key in default:
            assert default[key] == (tuple(value) if isinstance(default[key], tuple) else value), key


@pytest.mark.parametrize("folder", ROWS)
def test_the_flagship_is_the_row_of_the_comparison(folder):
    assert deciding(read(".", f"fedmad_{folder}")) == deciding(read(folder, "fedmad"))


@pytest.mark.parametrize("folder", ROWS)
def test_the_ablation_turns_one_switch_a_row(folder):
    whole = deciding(read(folder, "fedmad"))
    switches = {"fedmad_aggregation_only": {"modulation": "shared"}, "fedmad_modulation_only": {"power": 0.0}}
    for name, switch in switches.items():
        row = deciding(read(folder, name))
        assert row == whole | {f"method.init_args.{key}": value for key, value in switch.items()}
        assert row != whole
    assert whole["method.init_args.modulation"] == "private"
    # the row with neither part is FedBN, whose private layers are those of FedMAD
    assert (
        read(folder, "fedbn")["method"]["init_args"]["norms"] == read(folder, "fedmad")["method"]["init_args"]["norms"]
    )


def test_bigearthnet_has_the_values_of_the_paper():
    plain = read(".", "fedmad_bigearthnet")
    archive, method = plain["data"]["archive"]["init_args"], plain["method"]["init_args"]
    assert (archive["countries"], archive["season"], archive["flagged"]) == (EIGHT, "summer", False)
    assert (tuple(archive["bands"]), plain["data"]["image_size"]) == (BANDS, None)
    assert (plain["task"]["class_path"].rpartition(".")[2], plain["task"]["init_args"]["backbone"]) == (
        "MultilabelTask",
        "resnet50",
    )
    assert (method["num_layers"], method["power"]) == (4, 2.0)
    paper = {"num_rounds": 40, "local_epochs": 2, "batch_size": 512}
    assert plain["schedule"] == plain["schedule"] | paper
    assert plain["optimizer"] == {
        "class_path": "torch.optim.Adam",
        "init_args": plain["optimizer"]["init_args"] | {"lr": 0.001},
    }
    assert plain["optimizer"]["init_args"]["weight_decay"] == 0


def test_the_sensitivity_grids_are_swept_as_the_experiment_says(tmp_path, monkeypatch, capsys):
    path = EXPERIMENTS / "fedmad_bigearthnet.yaml"
    commands = re.findall(r"^#   fedrs (sweep .*)$", path.read_text(), re.MULTILINE)
    assert len(commands) == 2
    seen = {}
    for command in commands:
        words = command.replace("experiments/fedmad_bigearthnet.yaml", str(path)).split()
        assert sweep.main([*words[1:], "--dry-run", "--run.root", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        for key, value in re.findall(r"--(method\.init_args\.\w+)[= ](\S+)", out):
            seen.setdefault(key.rpartition(".")[2], []).append(float(value))
    assert {name: (min(values), max(values)) for name, values in seen.items()} == {
        "num_layers": (1, 16),
        "power": (0.5, 3.0),
    }
    assert not list(tmp_path.iterdir())
