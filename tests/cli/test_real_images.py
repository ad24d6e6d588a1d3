"""One round of the real methods on real images, through the command."""

from pathlib import Path

import pytest

from fedrs_lightning.cli.main import main
from fedrs_lightning.results.store import find_runs

ROOT = Path(__file__).resolve().parents[2]
SMALL = f"""
task: {ROOT}/experiments/feddap/parts/deeplabv3plus_small.yaml
method: {ROOT}/experiments/feddap/parts/feddap_small.yaml
schedule: {{num_rounds: 1, local_epochs: 1, batch_size: 8}}
"""


def run(config, tmp_path, *options):
    path = tmp_path / "real.yaml"
    path.write_text(config)
    common = [
        "--run.root",
        tmp_path / "runs",
        "--data.init_args.cache_dir",
        tmp_path / "cache",
        "--fabric.devices",
        1,
        "--fabric.accelerator",
        "cpu",
    ]
    assert main(["fit", "--config", str(path), *map(str, [*common, *options])]) == 0
    (store,) = find_runs([tmp_path / "runs"])
    return store


@pytest.mark.parametrize("method", ["FedAvg", "FedBN", "FedDAP"])
def test_potsdam_and_vaihingen(method, data_root, tmp_path):
    config = f"data: {ROOT}/configs/data/potsdam_vaihingen_real_crops.yaml" + SMALL
    store = run(config, tmp_path, "--data.init_args.root", data_root, "--method", method)
    metrics = store.history()[-1]["metrics"]
    assert {"personal_own/miou_pooled", "personal_own/miou@potsdam_rgb", "personal_own/miou@vaihingen_irrg"} <= metrics.keys()
    pictures = {picture.name for picture in (store.path / "pictures").iterdir()}
    assert {"confusion.png", "predictions.png"} <= pictures
    assert ("descriptors.png" in pictures) == (method == "FedDAP")
    counts = store.history()[-1]["counts"]["personal_own"]["confmat"]
    assert not store.manifest()["synthetic"]
    assert sum(map(sum, counts)) > 0


def test_loveda(data_root, tmp_path):
    config = (
        f"""
data:
  class_path: Domains
  init_args:
    root: {data_root}
    domains:
      - {{name: rural, num_clients: 2, dataset: {{class_path: LoveDA, init_args: {{root: loveda, area: rural, split: by_position}}}}}}
    by: crop
    crop_size: 128
    equal: true
    normalise: train
"""
        + SMALL
    )
    store = run(config, tmp_path, "--method.descriptor_source", "statistics_pass", "--method.sync_every", 1)
    assert store.result()["classes"]
    assert "feddap/cluster" in store.clients()[0]


def test_eurosat(data_root, tmp_path):
    options = [
        "--data.init_args.root",
        data_root / "eurosat",
        "--task.init_args.width",
        4,
        "--schedule.num_rounds",
        1,
        "--schedule.local_epochs",
        1,
    ]
    store = run((ROOT / "experiments/eurosat_small.yaml").read_text(), tmp_path, *options)
    scores = [row["fedmad/score"] for row in store.clients() if row["phase"] == "train"]
    assert len(scores) == 6
    assert all(-1 <= score <= 1 for score in scores)
    assert sum(len(client["train"]) for client in store.split()["clients"]) + len(store.split()["test"]) == 852
