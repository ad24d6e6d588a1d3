"""YAML files with the line of every key, for messages that say where a mistake is."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedrs_lightning.cli.config.nearest_names import nearest
from fedrs_lightning.errors import ConfigError
from fedrs_lightning.files import Unreadable, parse_yaml, place


@dataclass(frozen=True)
class YamlFile:
    """A mapping read from a file.

    Attributes:
        path: of the file.
        content: its keys and values.
        lines: line of every key, by the keys that lead to it.
        texts: single values as they are written, by the same keys.
    """

    path: Path
    content: dict[Any, Any]
    lines: dict[tuple[Any, ...], int] = field(repr=False)
    texts: dict[tuple[Any, ...], str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, path: Path, asked_by: str) -> YamlFile:
        """Read a file.

        Args:
            path: of the file.
            asked_by: option or key that names it.

        Raises:
            ConfigError: it cannot be read, is not YAML or no mapping, or a key stands twice in one place.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(f"{asked_by}: no file {path}{_similar(path)}") from None
        except IsADirectoryError:
            raise ConfigError(f"{asked_by}: {path} is a folder; name a YAML file") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{asked_by}: {path} is not a text file (UTF-8)") from None
        except OSError as error:
            raise ConfigError(f"{asked_by}: {path}: {error.strerror}") from None
        lines: dict[tuple[Any, ...], int] = {}
        try:
            content, node = parse_yaml(text)
        except Unreadable as error:
            raise ConfigError(f"{place(path, error)}: not valid YAML: {error.reason}") from None
        texts: dict[tuple[Any, ...], str] = {}
        _lines(node, (), path, lines, texts)
        if not isinstance(content, dict):
            held = "holds a list" if isinstance(content, list) else "holds a single value"
            held = "is empty" if content is None else held
            raise ConfigError(f"{path}: {held}; write keys with values, such as `seed: 0`")
        return cls(path, content, lines, texts)

    def where(self, keys: tuple[Any, ...]) -> str:
        """`file:line` of a key, or of the nearest key above it."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return f"{self.path}:{self.lines[keys]}" if keys else str(self.path)


def is_yaml_name(value: Any) -> bool:
    """Whether a value names a YAML file."""
    return isinstance(value, str) and value.endswith((".yaml", ".yml")) and "\n" not in value


def parse_text(text: str) -> Any:
    """A value as written on the command line; text that is no YAML stays text."""
    try:
        return parse_yaml(text)[0]
    except Unreadable:
        return text


def _lines(
    node: yaml.Node | None,
    above: tuple[Any, ...],
    path: Path,
    lines: dict[tuple[Any, ...], int],
    texts: dict[tuple[Any, ...], str],
) -> None:
    if isinstance(node, yaml.ScalarNode):
        texts[above] = node.value
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            _lines(item, (*above, number), path, lines, texts)
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{path}:{line}: a key is text, not a list or mapping")
        key = (*above, key_node.value)
        if key in lines:
            twice = f"key '{key_node.value}' stands there twice, also in line {lines[key]}; remove one"
            raise ConfigError(f"{path}:{line}: {twice}")
        lines[key] = line
        _lines(value_node, key, path, lines, texts)


def _similar(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (there is no folder {path.parent})"
    return nearest(path.name, [other.name for other in path.parent.iterdir()], "")
