"""`fedrs data synth`: a sample data set in the official layout."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrs_lightning.cli.options import Parser, one_of
from fedrs_lightning.errors import ConfigError

DATASETS = ("eurosat", "potsdam", "vaihingen", "loveda", "bigearthnet")

if TYPE_CHECKING:
    from fedrs_lightning.synth.sample import Sample


def main(argv: Sequence[str]) -> int:
    """Write the sample; returns the exit code."""
    from fedrs_lightning.synth.aerial import defects as aerial_defects
    from fedrs_lightning.synth.aerial.archive import LAYOUTS as AERIAL_LAYOUTS
    from fedrs_lightning.synth.bigearthnet import defects as bigearthnet_defects
    from fedrs_lightning.synth.eurosat import defects as eurosat_defects
    from fedrs_lightning.synth.eurosat.sample import LAYOUTS, SIZES
    from fedrs_lightning.synth.sample import write_sample

    faults: dict[str, Collection[str]] = {"eurosat": eurosat_defects.DEFECTS, **aerial_defects.DEFECTS}
    faults["bigearthnet"] = bigearthnet_defects.DEFECTS
    layouts = {"eurosat": tuple(LAYOUTS), **AERIAL_LAYOUTS}
    parser = Parser(prog="fedrs data synth", description="Write a synthetic sample in the official layout.")
    parser.add_argument("dataset", type=one_of(DATASETS), help=", ".join(DATASETS))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to make")
    draws, size = "of all draws (default 0); the samples of one federation share it", "number of tiles or patches"
    parser.add_argument("--seed", type=int, default=0, help=draws)
    sizes = f"tiny (default), small or medium: {size}"
    parser.add_argument("--size", type=one_of(SIZES), default="tiny", help=sizes)
    spectra = "difference of spectra between domains, 0 to 1"
    parser.add_argument("--spectral-shift", type=float, default=0.0, metavar="S", help=spectra)
    layout = "difference of layout between domains, 0 to 1 (default 0; loveda 0.5, so that Urban and Rural differ)"
    parser.add_argument("--spatial-shift", type=float, metavar="T", help=layout)
    tiles = "eurosat deals its tiles among them and attributes.csv names each tile's"
    others = "the others get one whole sample DIR/domain<d> each, and bigearthnet's domains are its countries"
    several = f"number of domains (default 1): {tiles}; {others}"
    parser.add_argument("--domains", type=int, default=1, metavar="N", help=several)
    aerials = parser.add_argument_group("potsdam, vaihingen and loveda only")
    alone = "write the sample of this domain, from 0, straight into DIR"
    aerials.add_argument("--domain", type=int, metavar="D", help=alone)
    classes = "let S move vegetation more than the ground, and roofs and cars less"
    aerials.add_argument("--class-spectral", action="store_true", default=None, help=classes)
    aerials.add_argument("--side", type=int, metavar="PIXELS", help="of a tile, 64 to 4096")
    larger = "pixels F times larger on the ground (default 1)"
    aerials.add_argument("--gsd-factor", type=float, metavar="F", help=larger)
    listed = "; ".join(f"{name}: {', '.join(names)}" for name, names in layouts.items())
    parser.add_argument("--layout", metavar="NAME", help=f"{listed} (default: the first)")
    listed = "; ".join(f"{name}: {', '.join(names)}" for name, names in faults.items())
    parser.add_argument("--with-defect", default="", metavar="NAME[,NAME]", help=f"inject faults. {listed}")
    options = parser.parse(argv)
    options.defects = tuple(name for name in options.with_defect.split(",") if name)
    if options.spatial_shift is None:
        options.spatial_shift = 0.5 if options.dataset == "loveda" else 0.0
    make = {"eurosat": _eurosat, "bigearthnet": _bigearthnet}.get(options.dataset, _aerial)
    for out, sample, details in make(options):
        written = write_sample(out, sample, ["fedrs", "data", "synth", *argv])
        count = f"{sample.count()} synthetic {details}"
        print(f"{out}: {count}" if written else f"{out}: already holds this sample ({count}); nothing to do")
    return 0


def _refuse_aerial(options: argparse.Namespace) -> None:
    for name in ("domain", "side", "gsd_factor", "class_spectral"):
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is for potsdam, vaihingen and loveda; leave it out")


def _chosen(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Values of the options that every sample has, and of others by name where they are given."""
    shared = ("seed", "spectral_shift", "spatial_shift", "defects")
    return {name: getattr(options, name) for name in (*shared, *names) if getattr(options, name) is not None}


def _eurosat(options: argparse.Namespace) -> Iterator[tuple[Path, Sample, str]]:
    from fedrs_lightning.synth.eurosat.sample import SIZES, EuroSATSample

    _refuse_aerial(options)
    sample = EuroSATSample(tiles=SIZES[options.size], **_chosen(options, "domains", "layout"))
    yield options.out, sample, f"tiles, {sample.domains} {'domain' if sample.domains == 1 else 'domains'}"


def _bigearthnet(options: argparse.Namespace) -> Iterator[tuple[Path, Sample, str]]:
    from fedrs_lightning.synth.bigearthnet.sample import SIZES, BigEarthNetSample

    _refuse_aerial(options)
    if options.domains != 1:
        raise ConfigError("--domains is not for bigearthnet, whose domains are its countries; leave it out")
    if options.layout:
        raise ConfigError("--layout is not for bigearthnet, which has one layout; leave it out")
    sample = BigEarthNetSample(patches=SIZES[options.size], **_chosen(options))
    yield options.out, sample, f"patches, {sample.patches} of each of 8 countries in summer"


def _aerial(options: argparse.Namespace) -> Iterator[tuple[Path, Sample, str]]:
    from fedrs_lightning.synth.aerial.sample import AerialSample

    count, chosen = options.domains, options.domain
    if count < 1 or (chosen is not None and 1 < count <= chosen):
        raise ConfigError(f"--domain must be in 0..{count - 1} with --domains {count}, got {chosen}")
    every = chosen is None and count > 1
    given = _chosen(options, "size", "side", "class_spectral", "layout", "gsd_factor")
    for domain in range(count) if every else (chosen or 0,):
        out = options.out / f"domain{domain}" if every else options.out
        yield out, AerialSample(options.dataset, domain=domain, **given), f"tiles, domain {domain}"
