"""The data set of a config: of an experiment file or of a data-set file, with options that override it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser

from fedrs_lightning.cli.config.command_line import refusal
from fedrs_lightning.cli.config.reading import read
from fedrs_lightning.cli.config.signatures import named
from fedrs_lightning.cli.config.yaml_files import YamlFile
from fedrs_lightning.cli.options import Parser
from fedrs_lightning.errors import ConfigError, FedrsError

if TYPE_CHECKING:
    from fedrs_lightning.data import FederatedDataset

EPILOG = """any option of the data set may be overridden as for fedrs fit, for example
  --data.init_args.root DIR   --data.init_args.partition.init_args.alpha 0.1"""


def config_parser(command: str, description: str) -> Parser:
    """Parser of a command that takes `--config FILE`; options `--data...` are taken out before (`data_options`)."""
    parser = Parser(prog=command, description=description, epilog=EPILOG)
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
    schema = named(f"{_Data.__module__}.{_Data.__name__}")
    assert schema is not None
    config = read(schema, arguments, {})

    from fedrs_lightning.data import FederatedDataset

    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FederatedDataset, "data", required=True)
    try:
        dataset = parser.instantiate(parser.parse_object({"data": config["data"]})).data
    except (FedrsError, TypeError, ValueError) as error:
        raise ConfigError(refusal(error)) from None
    return dataset, int(config["seed"])
