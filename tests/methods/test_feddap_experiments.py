"""Every experiment of FedDAP can be read, and its overlays change what they say and nothing else."""

from itertools import product
from pathlib import Path

import pytest

from fedrs_lightning.cli.parser import deciding, parse, resolved
from fedrs_lightning.methods import FedDAP

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


def read(*names):
    parser, config = parse([argument for name in names for argument in ("--config", str(FOLDER / f"{name}.yaml"))])
    return resolved(parser, config)


def test_all_files_are_here():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == ROWS.keys() | OVERLAYS.keys()


@pytest.mark.parametrize("row", ROWS)
def test_rows_have_the_setting_of_the_paper(row):
    plain = read(row)
    assert plain["data"]["init_args"]["label"].startswith(ROWS[row])
    assert [domain["num_clients"] for domain in plain["data"]["init_args"]["domains"]] == [5, 5]
    assert (plain["schedule"]["num_rounds"], plain["schedule"]["local_epochs"]) == (150, 2)
    assert plain["task"]["init_args"]["encoder"] == ("mit_b0" if row == "cross_dataset" else "resnet50")
    assert plain["method"]["class_path"].endswith(".FedDAP")
    FedDAP(**plain["method"]["init_args"])


@pytest.mark.parametrize(("row", "overlay"), [*product(["compound"], OVERLAYS), ("loveda", "fixed_gate")])
def test_an_overlay_changes_one_value(row, overlay):
    before, after = deciding(read(row)), deciding(read(row, overlay))
    name, value = OVERLAYS[overlay]
    assert {key for key in before.keys() | after.keys() if before.get(key, ...) != after.get(key, ...)} == {f"method.init_args.{name}"}
    assert after[f"method.init_args.{name}"] == value


def test_the_flagship_is_the_compound_row():
    assert deciding(read("../feddap_potsdam")) == deciding(read("compound"))
