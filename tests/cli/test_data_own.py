"""An archive of a user, by its import path, through every command: no further line is needed than its class."""

import json
import re

import numpy as np
import pytest

from fedrs_lightning.cli.main import main
from fedrs_lightning.results.store import find_runs

MODULE = '''"""Images as arrays of NumPy, named after their class."""

from pathlib import Path

import numpy as np

from fedrs_lightning.data import ImageArchive, ImageListing
from fedrs_lightning.errors import DataError


class Arrays(ImageArchive):
    """Four bands of 16 bits in files such as `water-3.npy`.

    Args:
        root: folder of the files.
    """

    class_names = ("field", "water")
    band_names = ("blue", "green", "red", "near infrared")
    dtype = "uint16"

    def __init__(self, root: str) -> None:
        self.root = root

    def listing(self) -> ImageListing:
        folder = Path(self.root)
        paths = sorted(folder.glob("*.npy"))
        if not paths:
            raise DataError(f"{folder}: holds no .npy file; set root to the folder of the arrays")
        labels = [self.class_names.index(path.stem.partition("-")[0]) for path in paths]
        return ImageListing(folder, [path.name for path in paths], labels, paths)

    def decode(self, path: Path) -> np.ndarray:
        try:
            return np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: is no array ({error}); write it again") from None
'''


@pytest.fixture
def arrays(tmp_path, monkeypatch):
    """The class `arrays_of_mine.Arrays`, and a folder of 16 images of each class."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "arrays_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.setenv("FEDRS_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for label, name in enumerate(("field", "water")):
        for number in range(16):
            image = rng.integers(1000 * label, 1000 * label + 2000, (4, 16, 16)).astype(np.uint16)
            np.save(tmp_path / "data" / f"{name}-{number}.npy", image)
    return tmp_path / "data"


def run(capsys, command, *argv):
    code = main(["data", command, *map(str, argv)])
    return code, *capsys.readouterr()


def test_the_class_is_short():
    assert MODULE.count("\n") <= 40


def test_check(arrays, tmp_path, capsys):
    code, out, err = run(capsys, "check", "arrays_of_mine.Arrays", "--root", arrays, "--json", tmp_path / "report.json")
    assert (code, err) == (0, "")
    (report,) = json.loads((tmp_path / "report.json").read_text())["reports"]
    assert report["counts"] == {"field": 16, "water": 16}
    assert "32 files checked" in out
    content = np.load(arrays / "water-3.npy")
    np.save(arrays / "field-2.npy", content)  # equal, and of another class
    np.save(arrays / "water-4.npy", content[:3])
    (arrays / "field-5.npy").write_bytes(b"nothing")
    code, _, err = run(capsys, "check", "arrays_of_mine.Arrays", "--root", arrays)
    assert code == 2
    broken, shape, same = err.splitlines()
    assert re.search(r"field-5\.npy: is no array \(.*\); write it again", broken)
    assert re.search(r"water-4\.npy: is uint16 \[3, 16, 16\], but the first sample is uint16 \[4, 16, 16\]", shape)
    assert re.search(r"water-3\.npy: the same content as .*field-2\.npy; remove all but one", same)
    for path in arrays.iterdir():
        path.unlink()
    code, _, err = run(capsys, "check", "arrays_of_mine.Arrays", "--root", arrays)
    assert code == 2
    assert "holds no .npy file; set root to the folder of the arrays" in err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"near infrared")', ")", "decoding gives uint16 [4, 16, 16] as 'image', but its names say 3 bands"),
        ('dtype = "uint16"', 'dtype = "uint8"', "decoding gives uint16 [4, 16, 16] as 'image', but its names say 4"),
        ("labels, paths)", "labels[1:], paths)", "the listing has 32 ids, but 31 labels"),
        ("labels, paths)", "labels, paths[1:])", "the listing has 32 ids, but 31 paths"),
        ("[path.name for path", '["x" for path', "x: is listed 32 times; an id may be there once only"),
        ('[self.class_names.index(path.stem.partition("-")[0])', "[2", "labels must be 0 to 1, found 2 to 2"),
        ("labels, paths)", "[[1.0, 0.0, 1.0]] * 32, paths)", "labels must be int [N] or 0 and 1 [N, 2], got float64"),
        (
            "labels, paths)",
            'labels, paths, np.full(32, "val"))',
            "splits must be train, validation, test or empty, got",
        ),
    ],
)
def test_mistakes_in_the_class_are_found(arrays, tmp_path, monkeypatch, capsys, old, new, message):
    assert old in MODULE
    name = f"of_{tmp_path.name}"
    (tmp_path / "code" / f"{name}.py").write_text(MODULE.replace(old, new))
    code, _, err = run(capsys, "check", f"{name}.Arrays", "--root", arrays)
    assert code == 2
    assert message in err


def test_pack_and_inspect(arrays, tmp_path, capsys):
    code, out, err = run(capsys, "pack", "arrays_of_mine.Arrays", "--root", arrays)
    assert (code, err) == (0, "")
    assert "32 samples" in out
    pictures, facts = tmp_path / "pictures", tmp_path / "facts.json"
    partition = ["--data.partition", "IID", "--data.partition.num_clients", "2"]
    options = ["--root", arrays, "--out", pictures, "--json", facts, "--sample", "all", *partition]
    code, out, err = run(capsys, "inspect", "arrays_of_mine.Arrays", *options)
    assert (code, err) == (0, "")
    assert "Arrays: 2 clients, single-label" in out
    found = json.loads(facts.read_text())
    assert [band["band"] for band in found["train"]["bands"]] == ["blue", "green", "red", "near infrared"]
    assert found["train"]["num_samples"] + found["test"]["num_samples"] == 32
    assert len(list(pictures.glob("samples-*.png"))) == 2


def test_two_rounds(arrays, tmp_path):
    config = tmp_path / "experiment.yaml"
    config.write_text(
        f"""data:
  archive: {{class_path: arrays_of_mine.Arrays, init_args: {{root: {arrays}}}}}
  partition: {{class_path: IID, init_args: {{num_clients: 2}}}}
task: {{class_path: ClassificationTask, init_args: {{backbone: resnet18, width: 4, stem: small}}}}
method: FedAvg
schedule: {{num_rounds: 2, local_epochs: 1, batch_size: 8}}
fabric: {{accelerator: cpu, devices: 1}}
run: {{root: {tmp_path / "runs"}, plot: false}}
"""
    )
    assert main(["fit", "--config", str(config)]) == 0
    (store,) = find_runs([tmp_path / "runs"])
    assert len(store.rounds()) >= 2
    manifest = store.manifest()
    assert (manifest["dataset"], manifest["num_samples"]) == ("Arrays", 32)
