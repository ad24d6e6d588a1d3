"""`fedrs data synth` makes a sample data set; `fedrs data check` finds the faults of a data folder."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fedrs_lightning.errors import ConfigError

if TYPE_CHECKING:
    from fedrs_lightning.data.check import Report
    from fedrs_lightning.data.partition import Partition

HELP = "check a data folder, or make a synthetic sample"
DATASETS = ("eurosat",)


class _Parser(argparse.ArgumentParser):
    """Raises `ConfigError` with the nearest valid name instead of printing a usage block."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse, and name the nearest option for an unknown one."""
        arguments, unknown = self.parse_known_args(argv)
        if unknown:
            name = unknown[0].split("=")[0]
            self.error(
                f"unknown {'option' if name.startswith('-') else 'argument'} '{name}'{_hint(name, list(self._option_string_actions))}"
            )
        return arguments


def main(argv: list[str]) -> int:
    """Run `fedrs data ...`; returns the exit code."""
    actions: dict[str, Callable[[list[str]], int]] = {"synth": _synth, "check": _check}
    if not argv or argv[0] in ("-h", "--help"):
        print(
            "usage: fedrs data {synth,check} DATASET [options]\n\n"
            "  synth   write a synthetic sample in the official layout of a data set\n"
            "  check   find the faults of a data folder, each with its file and remedy; exit code 2 when there are errors\n\n"
            f"data sets: {', '.join(DATASETS)}. fedrs data synth --help and fedrs data check --help list the options."
        )
        return 0 if argv else 2
    if argv[0] not in actions:
        raise ConfigError(f"unknown command '{argv[0]}'{_hint(argv[0], list(actions))}")
    return actions[argv[0]](argv[1:])


def _synth(argv: list[str]) -> int:
    from fedrs_lightning.data.synth import defects, eurosat

    parser = _Parser("fedrs data synth", description="Write a synthetic sample.", allow_abbrev=False)
    parser.add_argument("dataset", type=_one_of(DATASETS), help=", ".join(DATASETS))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to make")
    parser.add_argument("--seed", type=int, default=0, help="of all draws (default 0)")
    sizes = ", ".join(f"{name} ({count} tiles a class)" for name, count in eurosat.SIZES.items())
    parser.add_argument("--size", type=_one_of(eurosat.SIZES), default="tiny", help=f"{sizes}; default tiny")
    parser.add_argument("--spectral-shift", type=float, default=0.0, metavar="S", help="difference of spectra between domains, 0 to 1")
    parser.add_argument("--spatial-shift", type=float, default=0.0, metavar="T", help="difference of layout between domains, 0 to 1")
    parser.add_argument(
        "--domains", type=int, default=1, metavar="N", help="number of domains (default 1); attributes.csv names each tile's"
    )
    parser.add_argument("--layout", type=_one_of(eurosat.LAYOUTS), default="2750", help=f"{', '.join(eurosat.LAYOUTS)} (default 2750)")
    parser.add_argument("--with-defect", default="", metavar="NAME[,NAME]", help=f"inject faults: {', '.join(defects.DEFECTS)}")
    options = parser.parse(argv)
    sample = eurosat.EuroSATSample(
        seed=options.seed,
        tiles=eurosat.SIZES[options.size],
        spectral_shift=options.spectral_shift,
        spatial_shift=options.spatial_shift,
        domains=options.domains,
        layout=options.layout,
        defects=tuple(name for name in options.with_defect.split(",") if name),
    )
    written = eurosat.write_sample(options.out, sample, ["fedrs", "data", "synth", *argv])
    count = f"{sample.tiles * 10} synthetic tiles, {sample.domains} {'domain' if sample.domains == 1 else 'domains'}"
    print(f"{options.out}: {count}" if written else f"{options.out}: already holds this sample ({count}); nothing to do")
    return 0


def _check(argv: list[str]) -> int:
    from fedrs_lightning.data.check import check_eurosat
    from fedrs_lightning.files import write_json

    parser = _Parser("fedrs data check", description="Find the faults of a data folder.", allow_abbrev=False)
    parser.add_argument("dataset", type=_one_of(DATASETS), help=", ".join(DATASETS))
    parser.add_argument("--root", required=True, metavar="DIR", help="data folder, as in the config")
    parser.add_argument("--bands", type=_one_of(("rgb", "all")), default="rgb", help="rgb (JPEG, default) or all (13-band GeoTIFF)")
    parser.add_argument("--deep", action="store_true", help="decode every image instead of reading headers")
    parser.add_argument("--sample", type=int, metavar="N", help="look into N random files only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report as JSON")
    parser.add_argument("--clients", type=int, metavar="K", help="show the table of K clients (with --alpha: Dirichlet, otherwise IID)")
    parser.add_argument("--alpha", type=float, help="concentration of the Dirichlet partition")
    parser.add_argument("--by", metavar="ATTRIBUTE", help="show the table of one client for each value of an attribute")
    parser.add_argument("--attributes", metavar="CSV", help="attribute table with a column 'file'")
    parser.add_argument("--seed", type=int, default=0, help="of --sample and of the clients (default 0)")
    options = parser.parse(argv)
    report = check_eurosat(options.root, options.bands, options.deep, options.sample, options.seed, _partition(options), options.attributes)
    if options.json:
        write_json(options.json, report.to_json())
    _show(report)
    return 2 if report.failed else 0


def _partition(options: argparse.Namespace) -> Partition | None:
    from fedrs_lightning.data.partition import IID, ByAttribute, Dirichlet

    if options.by:
        if options.clients is not None or options.alpha is not None:
            raise ConfigError("--by makes its own clients; leave out --clients and --alpha")
        return ByAttribute(options.by)
    if options.alpha is not None and options.clients is None:
        raise ConfigError("--alpha needs --clients K")
    if options.clients is None:
        return None
    return IID(options.clients) if options.alpha is None else Dirichlet(options.clients, options.alpha)


def _show(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if report.counts:
        table = Table("class", title=f"{report.dataset} in {report.folder}", title_justify="left")
        table.add_column("tiles", justify="right")
        for number, (name, count) in enumerate(report.counts.items()):
            table.add_row(f"{number} {name}", str(count))
        table.add_section()
        table.add_row("all", str(sum(report.counts.values())))
        console.print(table)
    if report.clients:
        table = Table("samples by class", title="training samples of each client, and the common test set", title_justify="left")
        for name in ["all", *map(str, range(len(report.counts)))]:
            table.add_column(name, justify="right")
        for name, counts in report.clients.items():
            table.add_row(name, str(sum(counts)), *map(str, counts))
        console.print(table)
    for finding in report.findings:
        # Not through rich: it would wrap and colour file names.
        print(f"{finding.severity}: {finding.message}", file=sys.stderr if finding.severity == "error" else sys.stdout)
    errors = sum(finding.severity == "error" for finding in report.findings)
    warnings = sum(finding.severity == "warning" for finding in report.findings)
    what = "decoded" if report.mode == "deep" else "headers read"
    print(f"{report.checked} files checked ({what}): {errors} {_plural(errors, 'error')}, {warnings} {_plural(warnings, 'warning')}")


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"


def _one_of(names: Collection[str]) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in names:
            raise argparse.ArgumentTypeError(f"'{value}' is not one of {', '.join(names)}{_hint(value, list(names))}")
        return value

    return parse


def _hint(name: str, valid: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, valid, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
