"""Every experiment of the comparison on EuroSAT can be read, and differs from the others in what its method needs alone."""

from pathlib import Path

import pytest

from fedrs_lightning import methods
from fedrs_lightning.cli.parser import deciding, parse, resolved

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "eurosat"
CLASSES = {
    "fedavg": "FedAvg",
    "fedawa": "FedAWA",
    "fedbn": "FedBN",
    "feddc": "FedDC",
    "feddc_no_state": "FedDC",
    "feddc_sgd": "FedDC",
    "fedgps": "FedGPS",
    "fedmad": "FedMAD",
    "fedprox": "FedProx",
    "fedproto": "FedProto",
    "fpl": "FPL",
    "moon": "MOON",
}


def read(name):
    parser, config = parse(["--config", str(FOLDER / f"{name}.yaml")])
    return resolved(parser, config)


def test_all_files_are_here():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == CLASSES.keys()


@pytest.mark.parametrize("name", CLASSES)
def test_only_the_method_differs(name):
    plain = read(name)
    assert plain["method"]["class_path"].rpartition(".")[2] == CLASSES[name]
    getattr(methods, CLASSES[name])(**plain["method"]["init_args"])
    reference = deciding(read("fedavg"))
    other = {key for key, value in deciding(plain).items() if not key.startswith("method.") and reference.get(key) != value}
    assert {key.partition(".")[0] for key in other} == ({"optimizer"} if name == "feddc_sgd" else set())


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - {"fedavg", "fedbn", "fedmad"}))
def test_values_in_sight_are_the_defaults(name):
    """The files repeat the released values; a default that moved away from them would show here."""
    plain = read(name)["method"]["init_args"]
    changed = {"feddc_no_state": {"state_scale"}, "fedproto": {"weight"}, "fedawa": {"lr", "weight_decay"}}.get(name, set())
    default = vars(getattr(methods, CLASSES[name])())
    for key, value in plain.items():
        if key not in changed and key in default:
            assert default[key] == (tuple(value) if isinstance(default[key], tuple) else value), key


def test_the_flagship_is_the_row_of_the_comparison():
    assert deciding(read("../fedmad_eurosat")) == deciding(read("fedmad"))
