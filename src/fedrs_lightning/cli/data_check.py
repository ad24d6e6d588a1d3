"""`fedrs data check`: the faults of a data folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedrs_lightning.cli.data_options import DATASETS
from fedrs_lightning.cli.options import Parser, one_of, writing
from fedrs_lightning.errors import ConfigError

if TYPE_CHECKING:
    from fedrs_lightning.data.check_report import Report
    from fedrs_lightning.data.datasets.eurosat import EuroSAT

_EUROSAT = ("bands", "clients", "alpha", "by", "attributes", "split")
_BIGEARTHNET = ("metadata", "flagged_metadata", "flagged", "season", "countries")
_ONLY_NAMED = ("root", *_EUROSAT, *_BIGEARTHNET)  # what a config says itself


def main(argv: Sequence[str]) -> int:
    """Look, and show what was found; returns the exit code, 2 where there are errors."""
    from fedrs_lightning.cli.data_config import data_options
    from fedrs_lightning.data.check import check_eurosat
    from fedrs_lightning.data.check_bigearthnet import check_bigearthnet
    from fedrs_lightning.data.check_segmentation import check_segmentation
    from fedrs_lightning.files import write_json

    parser = _parser()
    overrides, rest = data_options(argv)
    options = parser.parse(rest)
    if options.config or overrides:
        return _check_config(options, overrides, parser)
    if options.dataset is None or options.root is None:
        raise ConfigError("name a data set and its --root, or a --config (see fedrs data check --help)")
    options.seed = options.seed or 0
    for names, dataset in ((_EUROSAT, "eurosat"), (_BIGEARTHNET, "bigearthnet")):
        for name in names if options.dataset != dataset else ():
            if getattr(options, name) != parser.get_default(name):
                raise ConfigError(f"--{name.replace('_', '-')} is for {dataset}; leave it out")
    if options.dataset == "eurosat":
        report = check_eurosat(
            options.root, options.bands, options.deep, options.sample, options.seed, _dealer(options)
        )
    elif options.dataset == "bigearthnet":
        report = check_bigearthnet(
            options.root,
            options.metadata,
            options.flagged_metadata,
            _season(options.season),
            options.countries.split(",") if options.countries else None,
            options.flagged,
            options.deep,
            options.sample,
            options.seed,
        )
    else:
        report = check_segmentation(options.dataset, options.root, options.deep, options.sample, options.seed)
    if options.json:
        with writing(options.json, "--json"):
            write_json(options.json, report.to_json())
    _show(report)
    return 2 if report.failed else 0


def _parser() -> Parser:
    parser = Parser(prog="fedrs data check", description="Find the faults of a data folder.")
    parser.add_argument(
        "dataset", type=one_of(DATASETS), nargs="?", help=f"{', '.join(DATASETS)}; or leave it out and give --config"
    )
    parser.add_argument("--root", metavar="DIR", help="data folder, as in the config")
    parser.add_argument(
        "--config",
        action="append",
        type=Path,
        metavar="FILE",
        help="check what an experiment file or a data-set file (configs/data/*.yaml) names, your own files too; "
        "repeatable, and "
        "options such as --data.init_args.root DIR override it",
    )
    parser.add_argument(
        "--bands", type=one_of(("rgb", "all")), default="rgb", help="rgb (JPEG, default) or all (13-band GeoTIFF)"
    )
    parser.add_argument(
        "--deep", action="store_true", help="decode every file instead of reading headers and a few rows"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="look into N random files (tiles, patches) only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report as JSON")
    parser.add_argument("--seed", type=int, help="of --sample and of the clients (default: that of the config, or 0)")
    parser.add_argument(
        "--clients", type=int, metavar="K", help="show the table of K clients (with --alpha: Dirichlet, otherwise IID)"
    )
    parser.add_argument("--alpha", type=float, help="concentration of the Dirichlet partition")
    parser.add_argument("--by", metavar="ATTRIBUTE", help="show the table of one client for each value of an attribute")
    parser.add_argument("--attributes", metavar="CSV", help="attribute table with a column 'file'")
    parser.add_argument(
        "--split", metavar="LISTS", help="also read published split lists: their folder, or the start of their paths"
    )
    patches = parser.add_argument_group("bigearthnet only")
    patches.add_argument("--metadata", metavar="FILE", help="metadata.parquet, where it does not lie beside the images")
    patches.add_argument(
        "--flagged-metadata",
        metavar="FILE",
        help="the table of flagged patches, where it does not lie beside the other",
    )
    patches.add_argument(
        "--flagged", action="store_true", help="the table of flagged patches (snow, cloud, shadow) must be there"
    )
    patches.add_argument(
        "--season",
        metavar="WHEN",
        help="look at patches of this season: summer, all (default), or months such as 6,7,8",
    )
    patches.add_argument(
        "--countries", metavar="NAME[,NAME]", help="look at patches of these countries, each of which must have some"
    )
    return parser


def _check_config(options: argparse.Namespace, overrides: Sequence[str], parser: Parser) -> int:
    from fedrs_lightning.cli.data_config import dataset_of
    from fedrs_lightning.data.check_dataset import check_dataset
    from fedrs_lightning.files import write_json

    given = [
        f"--{name.replace('_', '-')}" for name in _ONLY_NAMED if getattr(options, name) != parser.get_default(name)
    ]
    if options.dataset is not None or given:
        raise ConfigError(
            f"{given[0] if given else options.dataset} is said by the config; leave it out, or the config"
        )
    dataset, seed = dataset_of(options.config, overrides, options.seed)
    reports = check_dataset(dataset, options.deep, options.sample, seed)
    failed = any(report.failed for report in reports)
    if options.json:
        with writing(options.json, "--json"):
            write_json(options.json, {"failed": failed, "reports": [report.to_json() for report in reports]})
    for report in reports:
        _show(report)
    return 2 if failed else 0


def _dealer(options: argparse.Namespace) -> EuroSAT | None:
    """The data set that splits and deals the samples, where the options say how."""
    from fedrs_lightning.data.datasets.eurosat import EuroSAT
    from fedrs_lightning.data.partition import IID, ByAttribute, Dirichlet, Partition

    if options.by and (options.clients is not None or options.alpha is not None):
        raise ConfigError("--by makes its own clients; leave out --clients and --alpha")
    if options.alpha is not None and options.clients is None:
        raise ConfigError("--alpha needs --clients K")
    partition: Partition = IID(1 if options.clients is None else options.clients)
    if options.by:
        partition = ByAttribute(options.by)
    elif options.alpha is not None:
        partition = Dirichlet(options.clients, options.alpha)
    elif options.clients is None and options.split is None and options.attributes is None:
        return None
    return EuroSAT(
        options.root, partition, bands=options.bands, split=options.split or "seeded", attributes=options.attributes
    )


def _season(text: str | None) -> str | list[int]:
    if text in (None, "all", "summer"):
        return text or "all"
    if not all(part.strip().isdigit() for part in text.split(",")):
        raise ConfigError(f"--season must be summer, all, or months such as 6,7,8, got '{text}'")
    return [int(part) for part in text.split(",")]


def _show(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    # A table that is wider than the window is better than one with names and numbers cut short.
    wide = Console(width=max(console.width, 200)) if report.samples else console
    if report.files:
        table = Table(
            "part",
            *next(iter(report.files.values())),
            title=f"{report.dataset} in {report.folder}",
            title_justify="left",
        )
        for part, numbers in report.files.items():
            table.add_row(part, *map(str, numbers.values()))
        console.print(table)
    if report.counts:
        table = Table("class", title=f"{report.dataset} in {report.folder}", title_justify="left")
        table.add_column(report.unit, justify="right")
        for number, (name, count) in enumerate(report.counts.items()):
            table.add_row(f"{number} {name}", str(count))
        table.add_section()
        table.add_row("all", str(sum(report.samples.values() or report.counts.values())))
        console.print(table)
    if report.clients:
        title = (
            "patches of each client and split"
            if report.samples
            else "training samples of each client, and the common test set"
        )
        table = Table("samples by class", title=title, title_justify="left")
        for name in ["all", *map(str, range(len(report.counts)))]:
            table.add_column(name, justify="right")
        for name, counts in report.clients.items():
            table.add_row(name, str(report.samples.get(name, sum(counts))), *map(str, counts))
        wide.print(table)
    for finding in report.findings:
        # Not through rich: it would wrap and colour file names.
        print(f"{finding.severity}: {finding.message}", file=sys.stderr if finding.severity == "error" else sys.stdout)
    errors = sum(finding.severity == "error" for finding in report.findings)
    warnings = sum(finding.severity == "warning" for finding in report.findings)
    what = (
        "decoded"
        if report.mode == "deep"
        else "headers read"
        if report.dataset == "EuroSAT"
        else "headers read; --deep looks at every pixel"
    )
    print(
        f"{report.checked} files checked ({what}): {errors} {_plural(errors, 'error')}, {warnings} "
        f"{_plural(warnings, 'warning')}"
    )


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"
