"""docs/add-a-dataset.md: the code on the page, as it stands, through every command that takes data."""

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedrs_lightning.cli.main import main
from fedrs_lightning.data import ImageArchive, ImageListing
from fedrs_lightning.results.store import find_runs

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "add-a-dataset.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder as the page has it: the module, the config, and sixteen images of two ports."""
    (tmp_path / "ports.py").write_text(blocks("python")[0])
    (tmp_path / "ports.yaml").write_text(blocks("yaml")[0])
    rng = np.random.default_rng(0)
    for label, name in enumerate(("empty", "ship")):
        place = tmp_path / "data" / "ports" / name
        place.mkdir(parents=True)
        for port in ("antwerp", "rotterdam"):
            for number in range(10):
                pixels = rng.integers(0, 120, (32, 32, 3)) + 100 * label
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{port}_{number}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FEDRS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delitem(sys.modules, "ports", raising=False)
    return tmp_path


def commands():
    lines = [line.strip() for line in PAGE.splitlines() if line.startswith("    fedrs ")]
    return [shlex.split(line)[1:] for line in lines]


def test_it_is_short():
    code = [line for line in blocks("python")[0].splitlines() if line.strip()]
    assert len(code) <= 40


def test_every_command_on_the_page_works(folder, capsys):
    kinds = []
    for words in commands():
        kinds.append(words[:2] if words[0] == "data" else words[:1])
        if words[0] == "fit":
            words = [*words, "--fabric.devices", "1", "--fabric.accelerator", "cpu"]
        assert main(words) == 0, capsys.readouterr().err
    assert kinds == [["data", "check"], ["data", "inspect"], ["data", "pack"], ["fit"]]
    (store,) = find_runs([folder / "runs"])
    assert [record["round"] for record in store.rounds()] == [1, 2]
    assert [client["name"] for client in store.manifest()["clients"]] == ["antwerp", "rotterdam"]
    assert (folder / "inspected" / "classes.png").is_file()


def test_faults_are_found_by_the_check(folder, capsys):
    first, second = sorted((folder / "data" / "ports" / "ship").glob("antwerp_*.png"))[:2]
    second.write_bytes(first.read_bytes())
    (folder / "data" / "ports" / "empty" / "rotterdam_0.png").write_bytes(b"no image")
    assert main(["data", "check", "ports.Ports", "--root", "data/ports", "--deep", "--json", "report.json"]) == 2
    said = capsys.readouterr().err
    assert "rotterdam_0.png: not an image" in said
    assert f"{second}: the same content as {first}" in said or "the same content as" in said
    assert json.loads((folder / "report.json").read_text())["failed"]


def test_a_wrong_folder_is_one_line(folder, capsys):
    assert main(["fit", "--config", "ports.yaml", "--data.root", "data"]) == 2
    said = capsys.readouterr().err.strip()
    assert "no image empty/*.png or ship/*.png" in said
    assert "\n" not in said


def test_members_on_the_page_exist():
    named = re.findall(r"^\| `(\w+)", PAGE.partition("## What else an archive may say")[2], re.MULTILINE)
    known = {*dir(ImageArchive), ImageListing.__name__}
    assert len(named) > 8
    assert set(named) <= known
