"""`fedrs table`: mean and deviation over seeds of finished runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedrs_lightning.cli.options import Parser, writing
from fedrs_lightning.errors import RunError
from fedrs_lightning.files import write_text
from fedrs_lightning.results.render import FORMATS, render
from fedrs_lightning.results.store import RunStore, find_runs
from fedrs_lightning.results.tables import collect, tabulate

_DESCRIPTION = "Table of runs: one row for each experiment and label, mean ± sample deviation over seeds."
_EPILOG = """examples:
  fedrs table runs/eurosat_small
  fedrs table runs --format markdown --out table.md
  fedrs table runs --metric personal_own/overall_accuracy --metric train/loss"""


def parser() -> Parser:
    """Options of `fedrs table`."""
    options = parser_of_runs("fedrs table", _DESCRIPTION, _EPILOG)
    which = "metric to show, repeatable: overall_accuracy (headline protocol) or personal_own/overall_accuracy"
    options.add_argument("--metric", action="append", default=[], metavar="NAME", help=which)
    full = "csv and json hold full numbers, the others are rounded"
    options.add_argument("--format", choices=FORMATS, default="terminal", help=full)
    options.add_argument("--out", type=Path, metavar="FILE", help="write to this file instead of the terminal")
    return options


def parser_of_runs(command: str, description: str, epilog: str) -> Parser:
    """Parser of a command that takes run directories."""
    options = Parser(prog=command, description=description, epilog=epilog)
    which = "run directories, or folders that hold some at any depth"
    options.add_argument("runs", nargs="+", metavar="RUNS", help=which)
    return options


def main(argv: Sequence[str]) -> int:
    """Print or write the table; returns 0."""
    options = parser().parse(argv)
    collection = collect(runs_below(options.runs))
    text = render(tabulate(collection, options.metric), collection, options.format)
    if options.out is None:
        sys.stdout.write(text)
    else:
        with writing(options.out, "--out"):
            write_text(options.out, text)
        print(f"table: {options.out}")
    return 0


def runs_below(paths: Sequence[str]) -> list[RunStore]:
    """Runs below the folders.

    Raises:
        RunError: there is none; says so.
    """
    runs = find_runs(paths)
    if not runs:
        where = "`fedrs fit` writes them to runs/<experiment>/<method>-s<seed>-<hash>"
        raise RunError(f"no run below {', '.join(paths)}; {where}")
    return runs
