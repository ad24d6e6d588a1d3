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

HELP = "mean and deviation over seeds of finished runs"


def parser() -> Parser:
    """Options of `fedrs table`."""
    options = Parser(
        prog="fedrs table",
        description="Table of runs: one row for each experiment and label, mean ± sample deviation over seeds.",
        epilog="examples:\n  fedrs table runs/eurosat_small\n  fedrs table runs --format markdown --out table.md\n"
        "  fedrs table runs --metric personal_own/overall_accuracy --metric train/loss",
    )
    options.add_argument(
        "runs", nargs="+", metavar="RUNS", help="run directories, or folders that hold some at any depth"
    )
    options.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="metric to show, may be given several times: overall_accuracy (headline protocol) or "
        "personal_own/overall_accuracy",
    )
    options.add_argument(
        "--format", choices=FORMATS, default="terminal", help="csv and json hold full numbers, the others are rounded"
    )
    options.add_argument("--out", type=Path, metavar="FILE", help="write to this file instead of the terminal")
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
        raise RunError(
            f"no run below {', '.join(paths)}; `fedrs fit` writes them to runs/<experiment>/<method>-s<seed>-<hash>"
        )
    return runs
