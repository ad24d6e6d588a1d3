"""Form of the pages: width, the site's navigation, and one command that decides whether a change is accepted."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def wide(page):
    """Lines of prose over 100 columns. Tables and code may be wider, and so may the target of a link."""
    prose = [line for line in FENCE.sub("", page).splitlines() if not line.startswith(("|", "    ", "<!--"))]
    return [line for line in prose if len(re.sub(r"\]\([^)\s]*\)", "]()", line)) > 100]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_are_at_most_100_columns_wide(path):
    assert wide(path.read_text(encoding="utf-8")) == []


def test_wide_lines_are_found():
    long = "word " * 21
    assert wide(f"{long}\n| {long} |\n\n    {long}\n\n```console\n$ {long}\n```\n") == [long]
    assert wide(f"see [the page](https://example.org/{'a' * 100})\n") == []


def test_the_site_has_all_pages():
    """In its navigation stands every page, and nothing that is not there."""
    listed = re.findall(r"^ +- ([\w-]+\.md)$", text("mkdocs.yml"), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == {"index.md"} | {path.name for path in PAGES} - {"README.md"}


def test_one_command_decides():
    """README and contributing page name what .ci/run calls, the workflow calls .ci/run, hooks run what lint runs."""
    (command,) = [line for line in text(".ci/run").splitlines() if line.startswith("make ")]
    for page in ("README.md", "CONTRIBUTING.md"):
        assert f"$ {command}\n" in text(page), page
    jobs = yaml.safe_load(text(".github/workflows/ci.yml"))["jobs"]
    assert [step["run"] for step in jobs["check"]["steps"] if "run" in step] == [".ci/run"]
    lint = text("Makefile").split("\nlint:")[1].split("\n\n")[0]
    (repository,) = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        tool = hook["entry"].removeprefix(".venv/bin/").split(" --")[0]
        assert f"$(BIN)/{tool}" in lint, hook["id"]
