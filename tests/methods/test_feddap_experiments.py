"""Every experiment of FedDAP can be read, and its overlays change what they say and nothing else."""

from functools import cache
from itertools import product
from pathlib import Path

import pytest
import yaml

from fedrs_lightning.cli.config.command_line import configure
from fedrs_lightning.methods import FPL, FedDAP, FedProto, FedSeg
from fedrs_lightning.results.run import Run

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "feddap"
ROWS = {
    "loveda": "LoveDA(Urban) / LoveDA(Rural)",
    "region": "Potsdam(IRRG) / Vaihingen(IRRG)",
    "compound": "Potsdam(RGB) / Vaihingen(IRRG)",
    "spectrum": "Potsdam(RGB) / Potsdam(IRRG)",
    "cross_dataset": "LoveDA(RGB) / Potsdam(IRRG)",
}
OVERLAYS = {
    "without_anchor_supervision": ("lambda_inv", 0.0),
    "without_dap_supervision": ("lambda_dap", 0.0),
    "spectral_only": ("gate", "spectral"),
    "spatial_only": ("gate", "spatial"),
    "fixed_gate": ("gate", "fixed"),
    "without_drift_penalty": ("lambda_drift", 0.0),
    "without_synchronisation": ("sync_every", None),
}
BASELINES = {"fedproto": FedProto, "fpl": FPL, "fedseg": FedSeg}


@cache
def read(*names):
    return configure([word for name in names for word in ("--config", str(FOLDER / f"{name}.yaml"))]).config


def deciding(config):
    return Run(config).deciding


def test_all_files_are_here():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == ROWS.keys() | OVERLAYS.keys() | BASELINES.keys()


@pytest.mark.parametrize("row", ROWS)
def test_rows_have_the_setting_of_the_paper(row):
    plain = read(row)
    assert plain["data"]["label"].startswith(ROWS[row])
    domains = plain["data"]["domains"]
    assert [one["num_clients"] or one["partition"]["init_args"]["num_clients"] for one in domains] == [5, 5]
    assert plain["data"]["client_size"] == "equal"
    assert (plain["schedule"]["num_rounds"], plain["schedule"]["local_epochs"]) == (150, 2)
    assert plain["task"]["init_args"]["encoder"] == ("mit_b0" if row == "cross_dataset" else "resnet50")
    assert plain["method"]["class_path"].endswith(".FedDAP")
    FedDAP(**plain["method"]["init_args"])


@pytest.mark.parametrize(("row", "overlay"), [*product(["compound"], OVERLAYS), ("loveda", "fixed_gate")])
def test_an_overlay_changes_one_value(row, overlay):
    before, after = deciding(read(row)), deciding(read(row, overlay))
    name, value = OVERLAYS[overlay]
    assert {key for key in before.keys() | after.keys() if before.get(key, ...) != after.get(key, ...)} == {
        f"method.init_args.{name}"
    }
    assert after[f"method.init_args.{name}"] == value


@pytest.mark.parametrize(("row", "baseline"), [*product(["compound"], BASELINES), ("cross_dataset", "fedseg")])
def test_a_baseline_changes_the_method_and_names_each_value(row, baseline):
    before, after = deciding(read(row)), read(row, baseline)
    changed = {
        key for key in before.keys() | deciding(after).keys() if before.get(key, ...) != deciding(after).get(key, ...)
    }
    assert {key.split(".")[0] for key in changed} == {"method"}
    method, arguments = BASELINES[baseline], after["method"]["init_args"]
    assert after["method"]["class_path"] == f"fedrs_lightning.methods.{method.__name__}"
    method(**arguments)
    written = yaml.safe_load((FOLDER / f"{baseline}.yaml").read_text())["method"]["init_args"]
    assert arguments.keys() - written.keys() == {"weighting", "buffers"}


def test_the_flagship_is_the_compound_row():
    assert deciding(read("../feddap_potsdam")) == deciding(read("compound"))
