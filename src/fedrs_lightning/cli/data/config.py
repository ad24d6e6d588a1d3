"""The federated data set that a data command is about: of a config, or of an archive by its name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrs_lightning.cli.config.command_line import refusal
from fedrs_lightning.cli.config.nearest_names import nearest
from fedrs_lightning.cli.config.reading import options, read
from fedrs_lightning.cli.config.signatures import SourceClass, named, resolve, short_names
from fedrs_lightning.cli.config.yaml_files import YamlFile
from fedrs_lightning.cli.options import Parser
from fedrs_lightning.errors import ConfigError, FedrsError

if TYPE_CHECKING:
    from fedrs_lightning.data import FederatedDataset

EPILOG = """ARCHIVE --root DIR is short for --data.archive ARCHIVE --data.archive.root DIR, as are its other options;
it is one of {archives},
or the import path of a class of yours. Options of the data set override a config as for fedrs fit, for example
  --data.root DIR   --data.partition Dirichlet   --data.partition.num_clients 10   --data.partition.alpha 0.1"""


def config_parser(command: str, description: str) -> Parser:
    """Parser of a command that takes an archive's name or `--config FILE`, and the options of the data set."""
    usage = f"{command} [ARCHIVE --root DIR ...] [--config FILE ...] [options]"
    epilog = EPILOG.format(archives=", ".join(short_names(_archive())))
    parser = Parser(prog=command, usage=usage, description=description, epilog=epilog)
    files = "experiment file, or data file (configs/data/*.yaml); repeatable"
    parser.add_argument("--config", action="append", type=Path, metavar="FILE", help=files)
    return parser


def parsed(parser: Parser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options of the command, and those of the data set as `--data...`.

    Raises:
        ConfigError: an option or an archive that there is not; names the nearest one.
    """
    own, overrides, known = [], list[str](), list[str]()
    if argv and not argv[0].startswith("-"):
        path, cls = archive_class(argv[0])
        overrides, known, argv = [f"--data.archive={path}"], [*(cls.parameters or ())], argv[1:]
    for name, value in options(argv):
        token = str(value) if name is None else name if name.startswith("-") else f"--{name}"
        token += "" if name is None or value is None else f"={value}"
        first = (name or "").partition(".")[0]
        if first == "data":
            overrides.append(token)
        elif first in known and f"--{name}" not in parser.names():
            overrides.append(f"--data.archive.{token[2:]}")
        elif known and first and token.partition("=")[0] not in parser.names():
            near = nearest(f"--{name}", [*parser.names(), *(f"--{option}" for option in known)], "")
            raise ConfigError(f"unknown option '--{name}'{near} (see {parser.prog} --help)")
        else:
            own.append(token)
    return parser.parse(own), overrides


def archive_class(name: str) -> tuple[str, SourceClass]:
    """Import path and class of an archive, whose short name may be written in any case.

    Raises:
        ConfigError: there is none; names the nearest one.
    """
    base, known = _archive(), short_names(_archive())
    found = resolve(base, {short.lower(): short for short in known}.get(name.lower(), name))
    if found is None or not found[1].derives_from(base):
        raise ConfigError(f"'{name}' is no archive{nearest(name, known, 'choose from')}")
    return found


def _archive() -> SourceClass:
    found = named("fedrs_lightning.data.Archive")
    assert found is not None
    return found


@dataclass
class _Data:
    """What the data commands read of an experiment file; all else stands there for others and is passed over."""

    data: FederatedDataset
    seed: int = 0
    task: Any = None
    method: Any = None
    schedule: Any = None
    optimizer: Any = None
    fabric: Any = None
    run: Any = None
    resume: Any = None


EXPERIMENT = {each.name for each in fields(_Data)} - {"seed"}
"""Keys that only an experiment file has."""


def dataset_of(
    configs: Sequence[Path] | None, overrides: Sequence[str], seed: int | None = None
) -> tuple[FederatedDataset, int]:
    """The federated data set that configs and options name, and the seed of its federation.

    Args:
        configs: experiment files (with a key `data`) or data files (with what stands below it); later ones win.
        overrides: options such as `--data.root DIR`.
        seed: instead of that of the configs, which is 0 where they state none.

    Raises:
        ConfigError: one line with file and line or option, the key, what is wrong, and the nearest valid name.
    """
    if not configs and not overrides:
        files = "an experiment file or a data file, such as configs/data/eurosat.yaml"
        raise ConfigError(f"name an archive and its --root, or a --config: {files}")
    arguments: list[str] = []
    for path in configs or ():
        keys = YamlFile.read(path, "--config").content.keys()
        arguments += ["--config" if keys & EXPERIMENT else "--data", str(path)]
    arguments += overrides
    if seed is not None:
        arguments.append(f"--seed={seed}")
    schema = named(f"{_Data.__module__}.{_Data.__name__}")
    assert schema is not None
    config = read(schema, arguments, {})

    from jsonargparse import ArgumentParser

    from fedrs_lightning.data import FederatedDataset

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(FederatedDataset, "data")
    try:
        dataset = parser.instantiate(parser.parse_object({"data": config["data"]})).data
    except (FedrsError, TypeError, ValueError, SystemExit) as error:
        raise ConfigError(refusal(error)) from None
    return dataset, int(config["seed"])
