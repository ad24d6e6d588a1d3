"""The examples in docstrings give what they say."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in sorted(SOURCE.rglob("*.py"))
    if re.search(r"^ +>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name, capsys):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert not result.failed, capsys.readouterr().out


def test_the_small_functions_have_examples():
    for package in ("states", "seeding", "nn.", "tasks.", "results."):
        assert any(name.startswith(f"fedrs_lightning.{package}") for name in MODULES), package
