"""`fedrs data synth`: a sample data set in the official layout."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedrs_lightning.cli.data_options import DATASETS, DataParser, one_of
from fedrs_lightning.errors import ConfigError


def main(argv: Sequence[str]) -> int:
    """Write the sample; returns the exit code."""
    from fedrs_lightning.synth.aerial import defects as aerial_defects
    from fedrs_lightning.synth.aerial import sample as aerial
    from fedrs_lightning.synth.bigearthnet import defects as bigearthnet_defects
    from fedrs_lightning.synth.eurosat import defects
    from fedrs_lightning.synth.eurosat import sample as eurosat

    faults = {"eurosat": defects.DEFECTS} | aerial_defects.DEFECTS | {"bigearthnet": bigearthnet_defects.DEFECTS}
    layouts = {"eurosat": tuple(eurosat.LAYOUTS)} | dict(aerial.LAYOUTS)
    parser = DataParser(
        "fedrs data synth", description="Write a synthetic sample in the official layout.", allow_abbrev=False
    )
    parser.add_argument("dataset", type=one_of(DATASETS), help=", ".join(DATASETS))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to make")
    parser.add_argument(
        "--seed", type=int, default=0, help="of all draws (default 0); the samples of one federation share it"
    )
    parser.add_argument(
        "--size",
        type=one_of(eurosat.SIZES),
        default="tiny",
        help="tiny (default), small or medium: number of tiles or patches",
    )
    parser.add_argument(
        "--spectral-shift", type=float, default=0.0, metavar="S", help="difference of spectra between domains, 0 to 1"
    )
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
        "the others get one whole sample DIR/domain<d> each, and bigearthnet's domains are its countries",
    )
    aerials = parser.add_argument_group("potsdam, vaihingen and loveda only")
    aerials.add_argument(
        "--domain", type=int, metavar="D", help="write the sample of this domain, from 0, straight into DIR"
    )
    aerials.add_argument(
        "--class-spectral",
        action="store_true",
        help="let S move vegetation more than the ground, and roofs and cars less",
    )
    aerials.add_argument("--side", type=int, metavar="PIXELS", help="of a tile, 64 to 4096")
    aerials.add_argument(
        "--gsd-factor", type=float, metavar="F", help="pixels F times larger on the ground (default 1)"
    )
    listed = "; ".join(f"{name}: {', '.join(names)}" for name, names in layouts.items())
    parser.add_argument("--layout", metavar="NAME", help=f"{listed} (default: the first)")
    listed = "; ".join(f"{name}: {', '.join(names)}" for name, names in faults.items())
    parser.add_argument("--with-defect", default="", metavar="NAME[,NAME]", help=f"inject faults. {listed}")
    options = parser.parse(argv)
    injected = tuple(name for name in options.with_defect.split(",") if name)
    command = ["fedrs", "data", "synth", *argv]
    if options.dataset not in ("eurosat", "bigearthnet"):
        return _synth_aerial(options, injected, command)
    for name in ("domain", "side", "gsd_factor", "class_spectral"):
        if getattr(options, name) is not None and getattr(options, name) is not False:
            raise ConfigError(f"--{name.replace('_', '-')} is for potsdam, vaihingen and loveda; leave it out")
    if options.dataset == "bigearthnet":
        return _synth_bigearthnet(options, injected, command)
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
    _tell(
        options.out,
        written,
        f"{sample.tiles * 10} synthetic tiles, {sample.domains} {'domain' if sample.domains == 1 else 'domains'}",
    )
    return 0


def _synth_bigearthnet(options: argparse.Namespace, injected: tuple[str, ...], command: list[str]) -> int:
    from fedrs_lightning.synth.bigearthnet.archive import write_sample
    from fedrs_lightning.synth.bigearthnet.sample import SIZES, BigEarthNetSample

    if options.domains != 1:
        raise ConfigError("--domains is not for bigearthnet, whose domains are its countries; leave it out")
    if options.layout:
        raise ConfigError("--layout is not for bigearthnet, which has one layout; leave it out")
    sample = BigEarthNetSample(
        seed=options.seed,
        patches=SIZES[options.size],
        spectral_shift=options.spectral_shift,
        spatial_shift=options.spatial_shift or 0.0,
        defects=injected,
    )
    written = write_sample(options.out, sample, command)
    _tell(
        options.out,
        written,
        f"{len(sample.all_patches())} synthetic patches, {sample.patches} of each of 8 countries in summer",
    )
    return 0


def _synth_aerial(options: argparse.Namespace, injected: tuple[str, ...], command: list[str]) -> int:
    from fedrs_lightning.synth.aerial.archive import write_sample
    from fedrs_lightning.synth.aerial.sample import AerialSample

    if options.domains < 1 or (
        options.domain is not None and options.domains > 1 and options.domain >= options.domains
    ):
        raise ConfigError(
            f"--domain must be in 0..{options.domains - 1} with --domains {options.domains}, got {options.domain}"
        )
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
