"""The data set of a config: of an experiment file or of a data-set file, with options that override it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")

from jsonargparse import SUPPRESS, ArgumentParser

from fedrs_lightning.cli.data_options import DataParser
from fedrs_lightning.cli.messages import plain_message, refusal
from fedrs_lightning.cli.mistakes import Schema, config_files, first_mistake
from fedrs_lightning.cli.yaml_files import YamlFile
from fedrs_lightning.data import FederatedDataset
from fedrs_lightning.errors import ConfigError, FedrsError

OTHERS = ("task", "method", "schedule", "optimizer", "fabric", "run", "resume")
"""Keys of an experiment file that say nothing about its data: whatever stands there is passed over."""


EPILOG = """any option of the data set may be overridden as for fedrs fit, for example
  --data.init_args.root DIR   --data.init_args.partition.init_args.alpha 0.1"""


def config_parser(command: str, description: str) -> DataParser:
    """Parser of a command that takes `--config FILE`; options `--data...` are taken out before (`data_options`)."""
    style = argparse.RawDescriptionHelpFormatter
    parser = DataParser(command, description=description, epilog=EPILOG, formatter_class=style, allow_abbrev=False)
    parser.add_argument(
        "--config",
        action="append",
        type=Path,
        metavar="FILE",
        help="experiment file, or data-set file (configs/data/*.yaml); repeatable",
    )
    return parser


def data_options(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options `--data...` with their values, and all the rest."""
    own: list[str] = []
    rest: list[str] = []
    taking = False
    for token in argv:
        name = token.partition("=")[0]
        if name == "--data" or name.startswith("--data."):
            own.append(token)
            taking = "=" not in token
        elif taking:
            own.append(token)
            taking = False
        else:
            rest.append(token)
    return own, rest


def dataset_of(
    configs: Sequence[Path] | None, overrides: Sequence[str], seed: int | None = None
) -> tuple[FederatedDataset, int]:
    """The data set that configs name, and the seed of its federation.

    Args:
        configs: experiment files (with a key `data`) or data-set files (with `class_path`); later ones win.
        overrides: options such as `--data.init_args.root DIR`.
        seed: instead of that of the configs, which is 0 where they state none.

    Raises:
        ConfigError: one line with file and line or option, the key, what is wrong, and the nearest valid name.
    """
    if not configs and not overrides:
        raise ConfigError(
            "--config is missing; name an experiment file or a data-set file, such as configs/data/eurosat.yaml"
        )
    arguments: list[str] = []
    for path in configs or ():
        content = YamlFile.read(path, "--config").content
        arguments += ["--data" if "class_path" in content else "--config", str(path)]
    arguments += overrides
    if seed is not None:
        arguments.append(f"--seed={seed}")
    config_files(arguments)
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_subclass_arguments(FederatedDataset, "data", required=True)
    for name in OTHERS:
        parser.add_argument(f"--{name}", type=Any, default=SUPPRESS)
    schema = Schema(plain={"seed": int} | dict.fromkeys(OTHERS, Any), groups={}, classes={"data": FederatedDataset})
    try:
        config = parser.parse_args(arguments)
    except (Exception, SystemExit) as error:
        raise ConfigError(first_mistake(schema, arguments) or plain_message(error)) from None
    try:
        dataset = parser.instantiate(config).data
    except (FedrsError, TypeError, ValueError) as error:
        raise ConfigError(refusal(error)) from None
    return dataset, int(config.seed)
