"""One set of classes for data sets that label different things."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedrs_lightning.data.rasters.class_tables import IGNORE
from fedrs_lightning.errors import ConfigError

Choice = Literal["union"] | Mapping[str, Sequence[str]] | None


@dataclass(frozen=True)
class LabelSpace:
    """Joint classes.

    Attributes:
        names: of the joint classes 0, 1, ...
        tables: of each domain, own id to joint id, uint8 [256]; None where they are the same.
        dropped: of each domain, own classes that mean 255.
    """

    names: tuple[str, ...]
    tables: tuple[np.ndarray | None, ...]
    dropped: tuple[tuple[str, ...], ...]

    def present(self, domain: int, num_own: int) -> list[bool]:
        """Which joint classes the labels of a domain can hold."""
        table = self.tables[domain]
        own = set(range(num_own)) if table is None else {int(value) for value in table[:num_own]}
        return [number in own for number in range(len(self.names))]

    def labels(self, domain: int, own: np.ndarray) -> np.ndarray:
        """Joint labels of a domain's images from own ones: class of each, int [N], or 1 for each it has, [N, C].

        Raises:
            ConfigError: an image with one class has one that is in no joint class.
        """
        table = self.tables[domain]
        if table is None:
            return own
        if own.ndim == 1:
            joint = table[own].astype(np.int64)
            if (joint == IGNORE).any():
                lacking = self.dropped[domain][0]
                raise ConfigError(f"label_space: names no class for {lacking}, which images have; add it")
            return joint
        joint = np.zeros((len(own), len(self.names)), own.dtype)
        for place in range(own.shape[1]):
            if table[place] != IGNORE:
                joint[:, table[place]] = np.maximum(joint[:, table[place]], own[:, place])
        return joint


def label_space(choice: Choice, domains: Sequence[str], classes: Sequence[tuple[str, ...]]) -> LabelSpace:
    """The joint classes of several domains.

    The choice is None where all domains have the same classes; `union` gives every name its own id, and equal names the
    same one; a mapping names, for each joint class, the classes that it takes in, as `class` or `domain:class`.

    Raises:
        ConfigError: the domains differ and nothing was chosen; or the mapping names something that is not there, or
            something twice, or leaves a domain or class empty.
    """
    if choice is None:
        for name, own in zip(domains, classes, strict=True):
            if own != classes[0]:
                both = f"domain {domains[0]} has the classes {', '.join(classes[0])}, but {name} has {', '.join(own)}"
                remedy = "set it to union, or to a mapping of joint class to own classes"
                raise ConfigError(f"label_space is needed: {both}; {remedy}")
        return LabelSpace(classes[0], (None,) * len(domains), ((),) * len(domains))
    if isinstance(choice, str):
        if choice != "union":
            raise ConfigError(f"label_space must be union, a mapping, or null, got '{choice}'")
        names = tuple(dict.fromkeys(name for own in classes for name in own))
        tables = tuple(None if own == names else _table([names.index(name) for name in own]) for own in classes)
        return LabelSpace(names, tables, ((),) * len(domains))
    return _mapped(choice, domains, classes)


def _mapped(
    choice: Mapping[str, Sequence[str]], domains: Sequence[str], classes: Sequence[tuple[str, ...]]
) -> LabelSpace:
    joint: dict[tuple[int, str], int] = {}
    for number, (name, members) in enumerate(choice.items()):
        if not members:
            raise ConfigError(f"label_space: class '{name}' takes in no class; remove it")
        for member in members:
            domain, colon, own = member.rpartition(":")
            if colon and domain not in domains:
                text = f"'{member}' names domain '{domain}', but the domains are {', '.join(domains)}"
                raise ConfigError(f"label_space: {text}")
            places = [place for place, known in enumerate(domains) if domain in ("", known) and own in classes[place]]
            if not places:
                lists = (
                    f"{name or 'the archive'}: {', '.join(names)}" for name, names in zip(domains, classes, strict=True)
                )
                text = f"no class '{own}' in {domain or 'any domain'}; known are {'; '.join(lists)}"
                raise ConfigError(f"label_space: {text}")
            for place in places:
                if joint.setdefault((place, own), number) != number:
                    raise ConfigError(f"label_space: class '{own}' of {domains[place]} is in two joint classes")
    tables = tuple(_table([joint.get((place, name), IGNORE) for name in own]) for place, own in enumerate(classes))
    dropped = tuple(tuple(name for name in own if (place, name) not in joint) for place, own in enumerate(classes))
    for place, names in enumerate(classes):
        if len(dropped[place]) == len(names):
            raise ConfigError(f"label_space: takes in no class of domain {domains[place]}")
    return LabelSpace(tuple(choice), tables, dropped)


def _table(ids: list[int]) -> np.ndarray:
    table = np.full(256, IGNORE, dtype=np.uint8)
    table[: len(ids)] = ids
    return table
