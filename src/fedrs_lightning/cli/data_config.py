"""The data set of a command: of an experiment file, of a data-set file, or an archive by name; options override it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")

from jsonargparse import SUPPRESS, ArgumentParser

from fedrs_lightning.cli.data_options import DataParser, hint
from fedrs_lightning.cli.messages import plain_message, refusal
from fedrs_lightning.cli.mistakes import Schema, arguments_of, config_files, first_mistake, options, resolve, subclasses
from fedrs_lightning.cli.words import nearest
from fedrs_lightning.cli.yaml_files import YamlFile
from fedrs_lightning.data import Archive, FederatedDataset
from fedrs_lightning.errors import ConfigError, FedrsError

OTHERS = ("task", "method", "schedule", "optimizer", "fabric", "run", "resume")
"""Keys of an experiment file that say nothing about its data: whatever stands there is passed over."""

EPILOG = """ARCHIVE --root DIR is short for --data.archive ARCHIVE --data.archive.root DIR, as are its other options;
it is one of {archives},
or the import path of a class of yours. Options of the data set override a config as for fedrs fit, for example
  --data.archive.root DIR   --data.partition Dirichlet   --data.partition.num_clients 10   --data.partition.alpha 0.1"""


def config_parser(command: str, description: str) -> DataParser:
    """Parser of a command that takes an archive's name or `--config FILE`, and the options of the data set."""
    parser = DataParser(
        command,
        usage=f"{command} [ARCHIVE --root DIR ...] [--config FILE ...] [options]",
        description=description,
        epilog=EPILOG.format(archives=", ".join(sorted(subclasses(Archive)))),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config",
        action="append",
        type=Path,
        metavar="FILE",
        help="experiment file, or data-set file (configs/data/*.yaml); repeatable",
    )
    return parser


def parsed(parser: DataParser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options of the command, and those of the data set as `--data...`.

    Raises:
        ConfigError: an option or an archive that there is not; names the nearest one.
    """
    own, overrides, known = [], list[str](), dict[str, Any]()
    if argv and not argv[0].startswith("-"):
        path, cls = archive_class(argv[0])
        overrides, known, argv = [f"--data.archive={path}"], arguments_of(cls), argv[1:]
    for name, value in options(argv):
        token = str(value) if name is None else name if name.startswith("-") else f"--{name}"
        token += "" if name is None or value is None else f"={value}"
        first = (name or "").partition(".")[0]
        if first == "data":
            overrides.append(token)
        elif first in known and f"--{name}" not in parser.names():
            overrides.append(f"--data.archive.{token[2:]}")
        elif known and first and token.partition("=")[0] not in parser.names():
            near = hint(f"--{name}", [*parser.names(), *(f"--{option}" for option in known)])
            raise ConfigError(f"unknown option '--{name}'{near} (see {parser.prog} --help)")
        else:
            own.append(token)
    return parser.parse(own), overrides


def archive_class(name: str) -> tuple[str, type[Archive]]:
    """Name and class of an archive, whose short name may be written in any case.

    Raises:
        ConfigError: there is none; names the nearest one.
    """
    known = subclasses(Archive)
    path = {short.lower(): short for short in known}.get(name.lower(), name)
    cls, problem = resolve(Archive, path)
    if cls is None:
        raise ConfigError(problem + nearest(name, known, "choose from"))
    return path, cls


def dataset_of(
    configs: Sequence[Path] | None, overrides: Sequence[str], seed: int | None = None
) -> tuple[FederatedDataset, int]:
    """The data set that configs name, and the seed of its federation.

    Args:
        configs: experiment files (with a key `data`) or data-set files (with what stands below it); later ones win.
        overrides: options such as `--data.archive.root DIR`.
        seed: instead of that of the configs, which is 0 where they state none.

    Raises:
        ConfigError: one line with file and line or option, the key, what is wrong, and the nearest valid name.
    """
    if not configs and not overrides:
        raise ConfigError(
            "--config is missing; name an experiment file or a data-set file, such as configs/data/eurosat.yaml, or an "
            "archive and its --root"
        )
    arguments: list[str] = []
    for path in configs or ():
        keys = YamlFile.read(path, "--config").content.keys()
        arguments += ["--config" if keys & {"data", "seed", *OTHERS} else "--data", str(path)]
    arguments += overrides
    if seed is not None:
        arguments.append(f"--seed={seed}")
    config_files(arguments)
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_class_arguments(FederatedDataset, "data", sub_configs=True)
    for name in OTHERS:
        parser.add_argument(f"--{name}", type=Any, default=SUPPRESS)
    schema = Schema(plain={"seed": int} | dict.fromkeys(OTHERS, Any), groups={"data": FederatedDataset}, classes={})
    try:
        config = parser.parse_args(arguments)
    except (Exception, SystemExit) as error:
        raise ConfigError(first_mistake(schema, arguments) or plain_message(error)) from None
    try:
        dataset = parser.instantiate(config).data
    except (FedrsError, TypeError, ValueError) as error:
        raise ConfigError(refusal(error)) from None
    return dataset, int(config.seed)
