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
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "real.yaml"
    path.write_text(config)
    common = [
        "--run.root",
        tmp_path / "runs",
        "--data.cache_dir",
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
    store = run(config, tmp_path, "--data.root", data_root, "--method", method)
    metrics = store.history()[-1]["metrics"]
    assert {
        "personal_own/miou_pooled",
        "personal_own/miou@potsdam_rgb",
        "personal_own/miou@vaihingen_irrg",
    } <= metrics.keys()
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
  root: {data_root}
  domains:
    - name: rural
      num_clients: 2
      archive: {{class_path: LoveDA, init_args: {{root: loveda, area: rural, split: by_position}}}}
  crop_size: 128
  client_size: equal
  normalise: federated
"""
        + SMALL
    )
    store = run(config, tmp_path, "--method.descriptor_source", "statistics_pass", "--method.sync_every", 1)
    assert store.result()["classes"]
    assert "feddap/cluster" in store.clients()[0]


def test_eurosat(data_root, tmp_path):
    options = [
        "--data.archive.root",
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


@pytest.mark.parametrize("method", ["FedAvg", "FedMAD"])
def test_bigearthnet_of_several_countries(method, data_root, tmp_path):
    """Federated statistics are paid for, and a run from the files has the digest of one from the pack."""
    config = f"""
data: {ROOT}/configs/data/bigearthnet.yaml
task: {{class_path: MultilabelTask, init_args: {{backbone: resnet18, width: 4, stem: small}}}}
schedule: {{num_rounds: 1, local_epochs: 1, batch_size: 4}}
"""
    options = ["--data.archive.root", data_root / "bigearthnet_v2_v1pixels", "--method", method]
    options += ["--data.archive.season", "all", "--data.archive.countries", "[Finland, Ireland, Serbia, Austria]"]
    options += ["--data.normalise", "federated", "--data.image_size", 24]
    packed = run(config, tmp_path / "pack", *options).result()
    assert packed["headline"]["metric"] == "micro_map_pooled"
    assert packed["setup_bytes"] == {"up": 4 * 8 * 21, "down": 4 * 8 * 20}
    assert {row["name"]: row["num_samples"] for row in packed["per_client"]} == {
        "Finland": 4,
        "Ireland": 2,
        "Serbia": 2,
        "Austria": 2,
    }
    assert run(config, tmp_path / "files", *options, "--data.storage", "files").result()["digest"] == packed["digest"]


def test_bigearthnet_summer(data_root, tmp_path):
    config = f"""
data: {ROOT}/configs/data/bigearthnet.yaml
task: {{class_path: MultilabelTask, init_args: {{backbone: resnet18, width: 4}}}}
schedule: {{num_rounds: 1, local_epochs: 1, batch_size: 4}}
"""
    options = [
        "--data.archive.root",
        data_root / "bigearthnet_v2",
        "--data.archive.countries",
        "[Austria]",
        "--method",
        "FedMAD",
    ]
    store = run(config, tmp_path, *options)
    assert store.manifest()["num_samples"] == 16
    assert 0 < store.history()[-1]["metrics"]["personal_own/micro_map_pooled"] <= 1
