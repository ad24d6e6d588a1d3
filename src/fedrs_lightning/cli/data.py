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
DATASETS = ("eurosat", "potsdam", "vaihingen", "loveda")


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
    from fedrs_lightning.data.synth import aerial, aerial_defects, defects, eurosat

    faults = {"eurosat": defects.DEFECTS} | aerial_defects.DEFECTS
    layouts = {"eurosat": tuple(eurosat.LAYOUTS)} | dict(aerial.LAYOUTS)
    parser = _Parser("fedrs data synth", description="Write a synthetic sample in the official layout.", allow_abbrev=False)
    parser.add_argument("dataset", type=_one_of(DATASETS), help=", ".join(DATASETS))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to make")
    parser.add_argument("--seed", type=int, default=0, help="of all draws (default 0); the samples of one federation share it")
    parser.add_argument("--size", type=_one_of(eurosat.SIZES), default="tiny", help="tiny (default), small or medium: number of tiles")
    parser.add_argument("--spectral-shift", type=float, default=0.0, metavar="S", help="difference of spectra between domains, 0 to 1")
    parser.add_argument(
        "--spatial-shift",
        type=float,
        metavar="T",
        help="difference of layout between domains, 0 to 1 (default 0; loveda 0.5, so that Urban and Rural differ)",
    )
    parser.add_argument(
        "--domains",
        type=int,
        default=1,
        metavar="N",
        help="number of domains (default 1): eurosat deals its tiles among them and attributes.csv names each tile's; "
        "the others get one whole sample DIR/domain<d> each",
    )
    aerials = parser.add_argument_group("potsdam, vaihingen and loveda only")
    aerials.add_argument("--domain", type=int, metavar="D", help="write the sample of this domain, from 0, straight into DIR")
    aerials.add_argument(
        "--class-spectral", action="store_true", help="let S move vegetation more than the ground, and roofs and cars less"
    )
    aerials.add_argument("--side", type=int, metavar="PIXELS", help="of a tile, 64 to 4096")
    aerials.add_argument("--gsd-factor", type=float, metavar="F", help="pixels F times larger on the ground (default 1)")
    listed = "; ".join(f"{name}: {', '.join(names)}" for name, names in layouts.items())
    parser.add_argument("--layout", metavar="NAME", help=f"{listed} (default: the first)")
    listed = "; ".join(f"{name}: {', '.join(names)}" for name, names in faults.items())
    parser.add_argument("--with-defect", default="", metavar="NAME[,NAME]", help=f"inject faults. {listed}")
    options = parser.parse(argv)
    injected = tuple(name for name in options.with_defect.split(",") if name)
    command = ["fedrs", "data", "synth", *argv]
    if options.dataset != "eurosat":
        return _synth_aerial(options, injected, command)
    for name in ("domain", "side", "gsd_factor", "class_spectral"):
        if getattr(options, name) is not None and getattr(options, name) is not False:
            raise ConfigError(f"--{name.replace('_', '-')} is for potsdam, vaihingen and loveda; leave it out")
    sample = eurosat.EuroSATSample(
        seed=options.seed,
        tiles=eurosat.SIZES[options.size],
        spectral_shift=options.spectral_shift,
        spatial_shift=options.spatial_shift or 0.0,
        domains=options.domains,
        layout=options.layout or "2750",
        defects=injected,
    )
    written = eurosat.write_sample(options.out, sample, command)
    _tell(options.out, written, f"{sample.tiles * 10} synthetic tiles, {sample.domains} {'domain' if sample.domains == 1 else 'domains'}")
    return 0


def _synth_aerial(options: argparse.Namespace, injected: tuple[str, ...], command: list[str]) -> int:
    from fedrs_lightning.data.synth.aerial import AerialSample
    from fedrs_lightning.data.synth.aerial_files import write_sample

    if options.domains < 1 or (options.domain is not None and options.domains > 1 and options.domain >= options.domains):
        raise ConfigError(f"--domain must be in 0..{options.domains - 1} with --domains {options.domains}, got {options.domain}")
    usual = 0.5 if options.dataset == "loveda" else 0.0
    every = options.domain is None and options.domains > 1
    for domain in range(options.domains) if every else (options.domain or 0,):
        sample = AerialSample(
            dataset=options.dataset,
            seed=options.seed,
            size=options.size,
            side=options.side,
            spectral_shift=options.spectral_shift,
            spatial_shift=usual if options.spatial_shift is None else options.spatial_shift,
            domain=domain,
            class_spectral=options.class_spectral,
            layout=options.layout or "official",
            gsd_factor=1.0 if options.gsd_factor is None else options.gsd_factor,
            defects=injected,
        )
        out = options.out / f"domain{domain}" if every else options.out
        _tell(out, write_sample(out, sample, command), f"{len(sample.tiles())} synthetic tiles, domain {domain}")
    return 0


def _tell(out: Path, written: bool, count: str) -> None:
    print(f"{out}: {count}" if written else f"{out}: already holds this sample ({count}); nothing to do")


def _check(argv: list[str]) -> int:
    from fedrs_lightning.data.check import check_eurosat
    from fedrs_lightning.data.check_segmentation import check_segmentation
    from fedrs_lightning.files import write_json

    parser = _Parser("fedrs data check", description="Find the faults of a data folder.", allow_abbrev=False)
    parser.add_argument("dataset", type=_one_of(DATASETS), help=", ".join(DATASETS))
    parser.add_argument("--root", required=True, metavar="DIR", help="data folder, as in the config")
    parser.add_argument("--bands", type=_one_of(("rgb", "all")), default="rgb", help="rgb (JPEG, default) or all (13-band GeoTIFF)")
    parser.add_argument("--deep", action="store_true", help="decode every file instead of reading headers and a few rows")
    parser.add_argument("--sample", type=int, metavar="N", help="look into N random files (tiles) only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report as JSON")
    parser.add_argument("--clients", type=int, metavar="K", help="show the table of K clients (with --alpha: Dirichlet, otherwise IID)")
    parser.add_argument("--alpha", type=float, help="concentration of the Dirichlet partition")
    parser.add_argument("--by", metavar="ATTRIBUTE", help="show the table of one client for each value of an attribute")
    parser.add_argument("--attributes", metavar="CSV", help="attribute table with a column 'file'")
    parser.add_argument("--seed", type=int, default=0, help="of --sample and of the clients (default 0)")
    options = parser.parse(argv)
    if options.dataset == "eurosat":
        partition = _partition(options)
        report = check_eurosat(options.root, options.bands, options.deep, options.sample, options.seed, partition, options.attributes)
    else:
        given = {"--bands": options.bands != "rgb", "--clients": options.clients, "--alpha": options.alpha, "--by": options.by}
        for name, value in (given | {"--attributes": options.attributes}).items():
            if value:
                raise ConfigError(f"{name} is for eurosat; leave it out")
        report = check_segmentation(options.dataset, options.root, options.deep, options.sample, options.seed)
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
    if report.files:
        table = Table("part", *next(iter(report.files.values())), title=f"{report.dataset} in {report.folder}", title_justify="left")
        for part, numbers in report.files.items():
            table.add_row(part, *map(str, numbers.values()))
        console.print(table)
    if report.counts:
        table = Table("class", title=f"{report.dataset} in {report.folder}", title_justify="left")
        table.add_column(report.unit, justify="right")
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
    what = "decoded" if report.mode == "deep" else "headers read" if report.unit == "tiles" else "headers read; --deep looks at every pixel"
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
