"""`fedrs data check`: the faults of the data of a config, or of an archive."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedrs_lightning.cli.options import writing

if TYPE_CHECKING:
    from fedrs_lightning.data.check.report import Report

DESCRIPTION = """Find the faults of data folders, each with its file and remedy; and where clients are given, those of
split and partition, with the classes that each client gets. The exit code is 2 where there are errors."""


def main(argv: Sequence[str]) -> int:
    """Look, and show what was found; returns the exit code, 2 where there are errors."""
    from fedrs_lightning.cli.data.config import config_parser, dataset_of, parsed
    from fedrs_lightning.files import write_json

    parser = config_parser("fedrs data check", DESCRIPTION)
    decode = "decode every file instead of reading headers and a few rows"
    parser.add_argument("--deep", action="store_true", help=decode)
    parser.add_argument("--sample", type=int, metavar="N", help="look into N random files (tiles, patches) only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the reports as JSON")
    parser.add_argument("--seed", type=int, help="of --sample and of the clients (default: that of the config, or 0)")
    options, overrides = parsed(parser, argv)
    dataset, seed = dataset_of(options.config, overrides, options.seed)
    reports = dataset.check(options.deep, options.sample, seed)
    failed = any(report.failed for report in reports)
    if options.json:
        with writing(options.json, "--json"):
            write_json(options.json, {"failed": failed, "reports": [report.to_json() for report in reports]})
    for report in reports:
        _show(report)
    return 2 if failed else 0


def _show(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    title = f"{report.dataset} in {report.folder}"
    if report.files:
        table = Table("part", *next(iter(report.files.values())), title=title, title_justify="left")
        for part, numbers in report.files.items():
            table.add_row(part, *map(str, numbers.values()))
        console.print(table)
    if report.counts and report.folder:
        table = Table("class", title=title, title_justify="left")
        table.add_column(report.unit, justify="right")
        for number, (name, count) in enumerate(report.counts.items()):
            table.add_row(f"{number} {name}", str(count))
        table.add_section()
        table.add_row("all", str(report.total or sum(report.counts.values())))
        console.print(table)
    if report.clients:
        whose = "published owner and split" if report.folder else "client, and of the common test set"
        table = Table(f"{report.unit} by class", title=f"{report.unit} of each {whose}", title_justify="left")
        for name in ["all", *map(str, range(len(report.counts)))]:
            table.add_column(name, justify="right")
        for name, counts in report.clients.items():
            table.add_row(name, str(report.samples[name]), *map(str, counts))
        # A table that is wider than the window is better than one with names and numbers cut short.
        Console(width=max(console.width, 200)).print(table)
    for finding in report.findings:
        # Not through rich: it would wrap and colour file names.
        print(f"{finding.severity}: {finding.message}", file=sys.stderr if finding.severity == "error" else sys.stdout)
    how = "decoded" if report.mode == "deep" else "headers read; --deep looks at every pixel"
    what = f"{report.checked} files checked ({how})" if report.dataset != "clients" else "clients checked"
    print(f"{what}: {_number(report, 'error')}, {_number(report, 'warning')}")


def _number(report: Report, severity: str) -> str:
    count = sum(finding.severity == severity for finding in report.findings)
    return f"{count} {severity}{'' if count == 1 else 's'}"
