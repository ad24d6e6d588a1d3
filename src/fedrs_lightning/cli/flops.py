"""`fedrs flops`: operations, parameters and bytes of an experiment, without its data."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from fedrs_lightning.cli.config.command_line import build, configure
from fedrs_lightning.cli.options import Parser, above
from fedrs_lightning.cli.process import run_settings
from fedrs_lightning.errors import ConfigError

DEFAULT_SIDE = 64
FEW = 4
_OPTIONS = "[--side N] [--round N] [--images N] [--compare METHODS] [--json] [any option of fedrs fit]"
_DESCRIPTION = """Count the floating-point operations of a sample and of a local step, the parameters, and the bytes of
a client and round.
The method's own step runs on a few random images; the data need not be there."""
_EPILOG = """examples:
  fedrs flops --config experiments/eurosat_small.yaml
  fedrs flops --config experiments/eurosat_small.yaml --compare FedAvg,FedBN,FedMAD,FedProto --json
  fedrs flops --config experiments/feddap/compound.yaml --compare FedAvg,experiments/feddap/fedseg.yaml --side 256"""


def parser() -> Parser:
    """Options of `fedrs flops`; everything else goes to the parser of `fedrs fit`."""
    usage = f"fedrs flops --config FILE {_OPTIONS}"
    options = Parser(prog="fedrs flops", usage=usage, description=_DESCRIPTION, epilog=_EPILOG)
    number: Any = {"type": above(1), "metavar": "N"}
    side = f"of the data set's image_size or crop_size, or of its stored images, else {DEFAULT_SIDE}"
    options.add_argument("--side", **number, help=f"side of the images in pixels (default: that {side})")
    early = "round that is counted: in the first many methods do less (default 2)"
    options.add_argument("--round", **number, default=2, help=early)
    methods = "methods by commas: names, which take their defaults, or configuration files laid over the experiment"
    options.add_argument("--compare", metavar="METHODS", help=methods)
    scaled = f"images that are counted; figures of a step are scaled to schedule.batch_size (default {FEW})"
    options.add_argument("--images", type=above(2), metavar="N", default=FEW, help=scaled)
    options.add_argument("--json", action="store_true", help="print full numbers as JSON instead of a table")
    return options


def main(argv: Sequence[str]) -> int:
    """Print the figures; returns 0."""
    options, rest = parser().parse_known_args(list(argv))
    names = options.compare.split(",") if options.compare else [None]
    configure(rest)  # a mistake is found before torch is loaded
    with run_settings():
        rows = [_row(rest, name, options) for name in names]
        if options.json:
            print(json.dumps(rows, indent=2))
        else:
            _print(rows)
    return 0


def _row(arguments: list[str], name: str | None, options: Namespace) -> dict[str, Any]:
    """Figures of the experiment with the named method, or with its own.

    Raises:
        ConfigError: the experiment cannot be built, or its images do not fit its network.
    """
    from lightning import Fabric

    from fedrs_lightning import methods
    from fedrs_lightning.engine.cost import measure, random_samples

    own = configure(arguments).method if name is not None else None
    if name is not None and name.endswith((".yaml", ".yml")):
        arguments = [*arguments, "--config", name]
    elif name is not None and name != own:
        arguments = [*arguments, "--method", name]
    try:
        run = configure(arguments)
        built = build(run)
    except ConfigError as error:
        if name not in methods.__all__ or name == own:
            raise
        remedy = "write the values under method: in a file and give the file instead of the name"
        why = f"a name alone takes defaults, so where there is none or it does not suit, {remedy}"
        example = "such as experiments/feddap/compound.yaml for FedDAP"
        raise ConfigError(f"--compare {name}: {error}; {why}, {example}") from None
    side, source = _side(built.data, options.side)
    fabric = Fabric(accelerator=built.fabric.resolve(1).accelerator, devices=1, precision=built.fabric.precision)
    fabric.launch()
    data = built.data
    batch_size = built.schedule.batch_size
    samples = random_samples(built.task, min(batch_size, options.images), data.num_classes, data.in_channels, side)
    cost = measure(built.task, built.method, fabric, samples, batch_size, options.round)
    label = run.label if name is None or name.endswith((".yaml", ".yml")) else None
    image = {"channels": data.in_channels, "side": side, "side_from": source}
    return {"method": label or run.method, "task": type(built.task).__name__, "image": image} | cost.as_dict()


def _side(data: Any, given: int | None) -> tuple[int, str]:
    """Side of the images, and where it is from."""
    if given is not None:
        return given, "--side"
    for name in ("image_size", "crop_size"):
        value = getattr(data, name, None)
        if value is not None:
            return int(value), f"data.{name}"
    if data.stored_side is not None:
        return data.stored_side, "as stored"
    return DEFAULT_SIDE, "default, set --side for another"


_NOTE = """A multiplication and an addition are two operations; convolutions and products of matrices count, modulation
by its formula, nothing else that works entry by entry. One client with one batch; passes outside: before and after the
steps of local training."""


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    first = rows[0]
    image = first["image"]
    reference = next((row for row in rows if row["method"] == "FedAvg"), None)
    counted = f" (counted on {first['counted_on']} images)" if first["counted_on"] < first["batch_size"] else ""
    size = f"{image['channels']} x {image['side']} x {image['side']} ({image['side_from']})"
    batches = f"batches of {first['batch_size']}{counted}, round {first['round']}"
    table = Table(title=f"{first['task']}, {size}, {batches}", title_justify="left")
    headings = ["method", "forward\n/ sample", "+ backward\n/ sample", "local step\n/ batch"]
    headings += ["passes outside\n/ sample", "parameters", "shared", "private", "down\n/ round", "up\n/ round"]
    headings += ["step\n/ FedAvg"] if reference else []
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for row in rows:
        cells = [row["method"]]
        cells += [_short(row[key], "FLOP") for key in ("forward", "forward_backward", "local_step", "outside_steps")]
        cells += [_short(row[key], "") for key in ("parameters", "shared", "private")]
        cells += [_short(row[key], "B") for key in ("bytes_down", "bytes_up")]
        cells += [f"{row['local_step'] / reference['local_step']:.3f}"] if reference else []
        table.add_row(*cells)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    console.print(table)
    print(_NOTE)


def _short(value: float, unit: str) -> str:
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 1000 or prefix == "T":
            number = f"{value:.4g}" if prefix else f"{value:d}"
            return f"{number} {prefix}{unit}".strip()
        value /= 1000
    raise AssertionError
