"""The documentation says what is there: commands parse, options and defaults are those of the code, paths and links
exist.
"""

from __future__ import annotations

import argparse
import inspect
import re
import runpy
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.optim import Adam

import fedrs_lightning
from fedrs_lightning import data, methods, tasks
from fedrs_lightning.cli import data as cli_data
from fedrs_lightning.cli import flops, options, plot, sweep, table
from fedrs_lightning.cli.combinations import combinations, parse_extra, parse_grids, parse_seeds
from fedrs_lightning.cli.config.command_line import configure as parse
from fedrs_lightning.cli.config.experiment import RunSettings
from fedrs_lightning.cli.main import COMMANDS as SUBCOMMANDS
from fedrs_lightning.engine.settings import FabricSettings, Schedule
from fedrs_lightning.errors import ConfigError
from fedrs_lightning.results.store import find_runs
from fedrs_lightning.synth.eurosat.sample import EuroSATSample
from fedrs_lightning.synth.sample import write_sample

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = ("", "bash", "console")
FOLDERS = ("experiments", "configs", "docs", "benchmarks", "slurm", "src", "tests")
METHODS = {name: getattr(methods, name) for name in methods.__all__}
OPTION_TABLES = runpy.run_path(str(ROOT / "docs" / "option_tables.py"))
CONFIGURED = (data.Archive, data.Partition, data.FederatedDataset, data.Domain)


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(text) if language in languages]


def commands(text: str) -> list[str]:
    """Commands in the shell blocks that can be checked, without prompt and with continued lines joined."""
    joined = "\n".join(blocks(text, *SHELL)).replace("\\\n", " ")
    lines = [line.strip().removeprefix("$ ") for line in joined.splitlines()]
    return [line for line in lines if line.startswith(("fedrs ", "make ", "sbatch "))]


COMMANDS = [
    pytest.param(line, id=f"{path.stem}: {line}")
    for path in PAGES
    for line in dict.fromkeys(commands(path.read_text("utf-8")))
]
assert len(COMMANDS) > 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository as a reader has it, with the YAML files that the pages show."""
    made = tmp_path_factory.mktemp("repository")
    for path in ROOT.iterdir():
        if path.name in FOLDERS or path.is_file():
            (made / path.name).symlink_to(path)
    for text in [path.read_text("utf-8") for path in PAGES]:
        for body in blocks(text, "yaml"):
            name = re.match(r"# (\w+\.yaml)\n", body)
            if name:
                (made / name[1]).write_text(body)
        for name, body in re.findall(
            r"^Save this as `(\w+\.py)`:\n\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
        ):
            (made / name).write_text(body)
    return made


class Parsed(BaseException):
    """Raised where a command has parsed its arguments and would begin its work."""


def check_fit(arguments: list[str]) -> None:
    if any(word == "--print_config" or word.endswith((".help", "--help")) for word in arguments):
        with pytest.raises(SystemExit) as end:
            parse(arguments)
        assert not end.value.code
    else:
        parse(arguments)


def check_sweep(arguments: list[str]) -> None:
    found, rest = sweep.parser().parse_known_args(arguments)
    extra = parse_extra(rest)
    for combination in combinations(parse_grids(found.grid), parse_seeds(found.seeds)):
        check_fit(combination.arguments(found.config, extra))


def check_data(arguments: list[str]) -> None:
    original = options.Parser.parse

    def stop(self: Any, argv: Any) -> argparse.Namespace:
        original(self, argv)
        raise Parsed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(options.Parser, "parse", stop)
        with pytest.raises(Parsed):
            cli_data.main(arguments)


def check_flops(arguments: list[str]) -> None:
    found, rest = flops.parser().parse_known_args(arguments)
    for name in found.compare.split(",") if found.compare else []:
        assert name in METHODS or Path(name).is_file()
    check_fit(rest)


CHECKS: dict[str, Any] = {
    "fit": check_fit,
    "sweep": check_sweep,
    "data": check_data,
    "flops": check_flops,
    "table": lambda arguments: table.parser().parse(arguments),
    "plot": lambda arguments: plot.parser().parse(arguments),
}


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_work_as_written(line, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    words = shlex.split(line, comments=True)
    if words[0] == "fedrs":
        CHECKS[words[1]](words[2:])
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", page("Makefile"), re.MULTILINE)
    else:
        check_fit(words[words.index("slurm/fit.sbatch") + 1 :])


def test_wrong_commands_are_found(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for line in (
        "fit --config experiments/quickstart.yaml --schedule.num_round 3",
        "fit --config experiments/absent.yaml",
        "sweep --config experiments/quickstart.yaml --grid method.init_args.pover=1,2",
        "data check eurosat --rood X",
        "table runs --metrics X",
    ):
        words = shlex.split(line)
        with pytest.raises(ConfigError):
            CHECKS[words[0]](words[1:])


def test_yaml_examples_are_whole_or_add_to_one_that_is(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    shown = [path for path in folder.glob("*.yaml") if not path.is_symlink()]
    assert len(shown) >= 2
    for path in shown:
        parse(["--config", "experiments/quickstart.yaml", "--config", path.name])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_paths_in_backticks_exist(path):
    names = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[^`\s]*)`", path.read_text(encoding="utf-8"))
    assert [name for name in names if not list(ROOT.glob(name.rstrip("/")))] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_relative_links_resolve(path):
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", FENCE.sub("", linked.read_text(encoding="utf-8")), re.MULTILINE)
            assert anchor in [
                re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
            ], target


def test_every_subcommand_is_shown():
    shown = {
        line.split()[1] for path in PAGES for line in commands(path.read_text("utf-8")) if line.startswith("fedrs ")
    }
    assert shown == set(SUBCOMMANDS) == set(CHECKS)


def test_every_method_has_a_section_and_a_row():
    headings = re.findall(r"^## (\w+)$", page("docs/methods.md"), re.MULTILINE)
    assert set(METHODS) <= set(headings)
    for name in ("README.md", "docs/methods.md"):
        assert set(METHODS) <= set(re.findall(r"^\| `(\w+)` \|", page(name), re.MULTILINE)), name


def test_every_shipped_file_is_described():
    pages = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    for folder, pattern in (("configs/data", "*.yaml"), ("experiments", "*.yaml")):
        shipped = {path.name for path in (ROOT / folder).glob(pattern)}
        assert shipped <= set(re.findall(rf"{folder}/([\w-]+\.yaml)", pages)), folder


def test_file_names_on_pages_and_in_configs_exist():
    """Names of experiments, configs, pages, benchmarks and sources, wherever they stand, lead to a file."""
    texts = [*PAGES, *(ROOT / "configs").rglob("*.yaml"), *(ROOT / "experiments").rglob("*.yaml")]
    for path in texts:
        text = path.read_text(encoding="utf-8")
        names = re.findall(rf"(?<![\w/.-])((?:{'|'.join(FOLDERS)})/[\w./-]*\.(?:yaml|py|md|sbatch|ipynb))\b", text)
        assert [name for name in names if not (ROOT / name).is_file()] == [], path.name


def test_every_picture_of_a_run_is_named():
    source = (ROOT / "src" / "fedrs_lightning" / "cli" / "pictures.py").read_text(encoding="utf-8")
    drawn = set(re.findall(r'"(\w+\.png)"', source)) | {"gate.png", "drift_spec.png", "drift_spa.png", "drift_dap.png"}
    assert drawn <= set(re.findall(r"(\w+\.png)", page("docs/results.md")))


@pytest.mark.parametrize("path", OPTION_TABLES["PAGES"], ids=lambda path: path.name)
def test_option_tables_are_signatures_and_docstrings(path):
    text = path.read_text(encoding="utf-8")
    assert OPTION_TABLES["renewed"](text) == text, "run make options"


def test_every_class_of_a_config_has_an_option_table():
    tabled = {
        name.rpartition(".")[2]
        for path in PAGES
        for name in re.findall(r"^<!-- options: ([\w.]+) -->$", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    classes = {name for name in data.__all__ if inspect.isclass(getattr(data, name))}
    named = {name for name in classes if issubclass(getattr(data, name), CONFIGURED)}
    abstract = {name for name in named if inspect.isabstract(getattr(data, name))}
    without = {
        name
        for name in (*METHODS, *named)
        if not inspect.signature(getattr(data, name, None) or METHODS[name]).parameters
    }
    assert tabled >= (named - abstract | set(METHODS)) - without


def test_an_option_table_of_other_defaults_is_renewed():
    text = page("docs/data-eurosat.md")
    changed = text.replace("| `bands` | `rgb` |", "| `bands` | `all` |")
    assert changed != text
    assert OPTION_TABLES["renewed"](changed) == text


def option_exists(option: str) -> bool:
    group, *rest = option.split(".")
    if group in ("schedule", "fabric", "run"):
        owner = {"schedule": Schedule, "fabric": FabricSettings, "run": RunSettings}[group]
        return rest == [] or rest == ["*"] or rest[0] in {field.name for field in fields(owner)}
    families: dict[str, list[Any]] = {
        "data": [getattr(data, name) for name in data.__all__ if inspect.isclass(getattr(data, name))],
        "task": [getattr(tasks, name) for name in tasks.__all__],
        "method": list(METHODS.values()),
        "optimizer": [Adam],
    }
    return bool(rest) and any(rest[-1] in inspect.signature(owner).parameters for owner in families[group])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_options_named_in_backticks_exist(path):
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    named = re.findall(r"`(?:--)?((?:data|task|method|optimizer|schedule|fabric|run)\.[\w.*]+)[^`]*`", text)
    assert [option for option in named if option != "data.json" and not option_exists(option)] == []


def test_options_are_told_from_nonsense():
    assert option_exists("method.init_args.eps_place")
    assert option_exists("data.partition.init_args.alpha")
    assert not option_exists("method.init_args.eps_plaice")
    assert not option_exists("schedule.rounds")


def test_the_layers_of_the_architecture_are_those_that_are_tested():
    below = runpy.run_path(str(ROOT / "tests" / "test_layers.py"))["BELOW"]
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", page("docs/architecture.md"), re.MULTILINE)
    ground = {part for part, _ in rows[:8]}
    stated = {}
    for part, cell in rows[: len(below)]:
        stated[part] = set(re.findall(r"`(\w+)`", cell)) | (ground if "the eight first" in cell else set())
    assert stated == {part: set(others) for part, others in below.items()}


def test_the_python_example_runs(tmp_path, monkeypatch):
    (example,) = blocks(page("docs/running.md"), "python")
    write_sample(tmp_path / "sample-data" / "eurosat", EuroSATSample(tiles=20))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRS_CACHE", str(tmp_path / "cache"))
    exec(compile(example, "docs/running.md", "exec"), {})
    (store,) = find_runs([tmp_path / "runs"])
    assert [record["round"] for record in store.rounds()] == [1, 2]


def test_versions_agree():
    version = fedrs_lightning.__version__
    citation = yaml.safe_load(page("CITATION.cff"))
    assert citation["version"] == version
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert re.search(rf"^## {re.escape(version)} ", page("CHANGELOG.md"), re.MULTILINE)
    assert f"Version {version}." in page("README.md")


def test_no_page_speaks_of_a_machine_or_leaves_a_gap():
    for path in [*PAGES, ROOT / "CITATION.cff"]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"/(?:root|home|work|Users)/|\bTODO\b|\bTBD\b|\bXXX\b", text), path.name
