"""Text stays text: from YAML or the command line to config.yaml of the run, and back."""

import shutil

import pytest
import yaml

from fedrs_lightning.cli.config.command_line import configure


@pytest.mark.parametrize("text", ["1e3", "007", "1_000", "0x10", "2026-12-01", "on", "1:30", "-", "a: b", "[x", ".inf"])
def test_text_that_looks_like_something_else(config, tmp_path, text):
    run = configure(["--config", config.write(), f"--run.label={text}", f"--data.root={text}"])
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(run.config, sort_keys=False))
    for one in (run, configure(["--config", str(again)])):
        assert (one.config["run"]["label"], one.config["data"]["root"]) == (text, text)


@pytest.mark.parametrize("text", ["1e3", "007", "2026", "2026-12-01", "3.10", "on"])
def test_text_in_a_file_is_as_it_stands_there(config, tmp_path, text):
    later = tmp_path / "later.yaml"
    later.write_text(f"run: {{label: {text}}}\n")
    assert configure(["--config", config.write(), "--config", str(later)]).config["run"]["label"] == text


def test_a_folder_that_looks_like_a_number_is_run_twice(config, fit, tiles, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiles, "1e3")
    first = fit("--data.root", "1e3", "--schedule.num_rounds", 1, "--run.name", "1e5")
    assert first.code == 0, first.err
    assert "root: 1e3\n" in (first.store.path / "config.yaml").read_text().replace("'", "")
    second = fit(config_file=first.store.path / "config.yaml", root=tmp_path / "again")
    assert second.digest == first.digest


@pytest.mark.parametrize("key", ["run.name", "run.label", "data.cache_dir", "run.dir"])
def test_none_is_written_null(fit, tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    line = fit(f"--{key}=None").line
    assert line.startswith(f"--{key}: expected ")
    assert line.endswith("got 'None'; write null")
    assert not (tmp_path / "None").exists()
