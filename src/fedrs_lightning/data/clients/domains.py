"""Federations of several segmentation data sets: each is a domain, with clients of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedrs_lightning.data.archives.tiles import Survey, TileDataset, one_of
from fedrs_lightning.data.clients.dealing import deal_crops, share_ground
from fedrs_lightning.data.clients.federated import ClientSplit, FederatedDataset, Federation, hash_ids
from fedrs_lightning.data.clients.label_space import label_space as joint_classes
from fedrs_lightning.data.clients.normalisation import setup_bytes
from fedrs_lightning.data.packs.crop_packs import CropPack, CropSpec, Role, crops_folder, pack_crops
from fedrs_lightning.data.packs.crop_source import CropSource, Part
from fedrs_lightning.data.packs.fields import mean_std
from fedrs_lightning.data.packs.folders import cache_folder
from fedrs_lightning.data.transforms.masks import SegmentationTransform
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.seeding import numpy_stream

MANY = 2000  # surplus crops are listed one by one up to so many, beyond by tile


@dataclass
class Domain:
    """A data set and its clients.

    Args:
        name: for people and results, such as `potsdam_irrg`.
        dataset: where its tiles are.
        num_clients: how many clients share it.
        proportions: relative sizes of the clients, for unequal ones; null makes them equal.
    """

    name: str
    dataset: TileDataset
    num_clients: int
    proportions: list[float] | None = None


@dataclass(frozen=True)
class _Deal:
    train: list[np.ndarray]
    surplus: np.ndarray
    tiles: list[str]


class Domains(FederatedDataset):
    """Clients of several domains: crops of each domain's training tiles are dealt to its clients.

    Every client is tested on the test tiles of its own domain; every pixel of those counts once. How images go to
    clients, the crop size and the sizes of clients are our choices where a paper does not state them.

    Args:
        domains: data sets with their clients.
        root: folder from which relative folders of the data sets are taken.
        by: what is dealt: single `crop`s, or whole `tile`s (for LoveDA: images), trimmed to crops afterwards.
        crop_size: side in pixels of the crops that a network sees.
        test_overlap: pixels by which neighbouring test crops overlap; each pixel still counts once, in the crop whose
            centre is nearest.
        random_crops_from: side of packed training windows, such as 1024 for LoveDA, from each of which an epoch takes
            one crop at random; null trains on the fixed grid of crops.
        equal: all clients get the same number of training crops (windows), the largest possible one; the surplus is
            left out and listed. False gives each domain's crops to its clients completely.
        client_size: number of training crops of each client, to make it smaller; needs equal.
        ground: for domains that show the same terrain, such as Potsdam in RGB and in IRRG: `disjoint` gives each
            training tile to one of them; `shared` lets both see all tiles.
        label_space: needed where the data sets have different classes: `union` gives every class name its own id, and
            masks out of the softmax what a sample's data set does not know; a mapping of joint class to own classes
            (`class` or `domain:class`) merges them, and classes that it does not name are ignored.
        normalise: `published` uses ImageNet's statistics, as is customary; `train` the training crops of all clients
            (from exact integer sums); `per_domain` those of each domain.
        augment: random flips and quarter turns in training.
        label: honest name of the federation, for results.
        cache_dir: where crops are packed; null means `$FEDRS_CACHE` or the platform's cache folder.
        seed: seed of the deal; null takes the run's.
    """

    def __init__(
        self,
        domains: list[Domain],
        root: str = ".",
        by: Literal["crop", "tile"] = "crop",
        crop_size: int = 512,
        test_overlap: int = 0,
        random_crops_from: int | None = None,
        equal: bool = True,
        client_size: int | None = None,
        ground: Literal["disjoint", "shared"] = "disjoint",
        label_space: Literal["union"] | dict[str, list[str]] | None = None,
        normalise: Literal["published", "train", "per_domain"] = "published",
        augment: bool = True,
        label: str | None = None,
        cache_dir: str | None = None,
        seed: int | None = None,
    ) -> None:
        one_of("by", by, ("crop", "tile"))
        one_of("ground", ground, ("disjoint", "shared"))
        one_of("normalise", normalise, ("published", "train", "per_domain"))
        self.root, self.by, self.crop_size, self.test_overlap = root, by, crop_size, test_overlap
        self.domains = [replace(domain, dataset=domain.dataset.below(root)) for domain in domains]
        self.random_crops_from, self.equal, self.client_size, self.ground = (
            random_crops_from,
            equal,
            client_size,
            ground,
        )
        self.label_space, self.normalise, self.augment, self.label = label_space, normalise, augment, label
        self.cache_dir, self.seed = cache_dir, seed
        self._check()
        self._space = joint_classes(
            label_space, [domain.name for domain in domains], [domain.dataset.class_names for domain in domains]
        )

    def _check(self) -> None:
        names = [domain.name for domain in self.domains]
        if not names or len(set(names)) != len(names) or not all(names) or any("/" in name for name in names):
            raise ConfigError(f"domains need distinct names without '/', got {names or 'none'}")
        if self.crop_size < 1 or not 0 <= self.test_overlap < self.crop_size:
            raise ConfigError(
                f"test_overlap must be in [0, crop_size), got {self.test_overlap} and crop_size={self.crop_size}"
            )
        if self.random_crops_from is not None and self.random_crops_from < self.crop_size:
            raise ConfigError(
                f"random_crops_from must be at least crop_size={self.crop_size}, got {self.random_crops_from}"
            )
        if self.client_size is not None and (not self.equal or self.client_size < 1):
            raise ConfigError(
                f"client_size must be at least 1 and needs equal: true, got {self.client_size} and equal: {self.equal}"
            )
        for domain in self.domains:
            if domain.num_clients < 1:
                raise ConfigError(f"domain {domain.name}: num_clients must be at least 1, got {domain.num_clients}")
            given = domain.proportions
            if given is not None and (
                self.equal or len(given) != domain.num_clients or not all(value > 0 for value in given)
            ):
                raise ConfigError(
                    f"domain {domain.name}: proportions needs equal: false and one positive number a client, got "
                    f"{given}"
                )
        for what in ("in_channels", "dtype", "scale"):
            values = {domain.name: getattr(domain.dataset, what) for domain in self.domains}
            if len(set(values.values())) > 1:
                raise ConfigError(
                    f"domains need the same {what}, got "
                    f"{', '.join(f'{name}: {value}' for name, value in values.items())}"
                )
        lacking = [domain.name for domain in self.domains if domain.dataset.published is None]
        if self.normalise == "published" and lacking:
            raise ConfigError(
                f"normalise: published: there are no published statistics for domain {lacking[0]}; use train or "
                "per_domain"
            )

    @property
    def num_classes(self) -> int:
        """Number of joint classes."""
        return len(self._space.names)

    @property
    def in_channels(self) -> int:
        """Bands, the same in all domains."""
        return self.domains[0].dataset.in_channels

    @property
    def class_names(self) -> tuple[str, ...]:
        """Joint classes."""
        return self._space.names

    def band_names(self, domain: str = "") -> dict[str, tuple[str, ...]]:
        """Those of the domain's data set; of the first one where no domain is named."""
        chosen = next((each for each in self.domains if each.name == domain), self.domains[0])
        return {"image": chosen.dataset.band_names}

    @property
    def unscored(self) -> tuple[int, ...]:
        """Classes that a mean over classes leaves out, such as clutter."""
        names = {name for domain in self.domains for name in domain.dataset.unscored}
        return tuple(number for number, name in enumerate(self.class_names) if name in names)

    def prepare(self) -> None:
        """Read all headers, cut and pack all crops; packs that exist are used as they are."""
        cache = cache_folder(self.cache_dir)
        for domain in self.domains:
            domain.dataset.prepare(cache)
            survey = self._survey(domain)
            for role in ("train", "test"):
                pack_crops(self._spec(domain, survey, role), cache)

    def federation(self, seed: int) -> Federation:
        """Deal the crops, and open the packs. See `FederatedDataset.federation`."""
        used, cache = seed if self.seed is None else self.seed, cache_folder(self.cache_dir)
        surveys, parts = [], []
        for number, domain in enumerate(self.domains):
            domain.dataset.prepare(cache)
            surveys.append(self._survey(domain))
            for role in ("train", "test"):
                folder = crops_folder(self._spec(domain, surveys[-1], role), cache)
                if not folder.is_dir():
                    raise DataError(
                        f"{folder}: not packed yet, or files changed; call prepare() first, and share cache_dir "
                        "between nodes"
                    )
                parts.append(Part(CropPack(folder), f"{domain.name}/{role}", number, self._space.tables[number]))
        source = CropSource(parts)
        deals = self._deal(source, used)
        clients, tests = self._clients(source, deals)
        mean, std = self._statistics(source, clients)
        scale = self.domains[0].dataset.scale
        classes = [
            self._space.present(number, len(domain.dataset.class_names)) for number, domain in enumerate(self.domains)
        ]
        window = self.random_crops_from or self.crop_size
        known = None if self.label_space is None else classes
        transform = SegmentationTransform(mean, std, scale, known, self.crop_size, window, self.augment)
        manifest = {
            "dataset": "+".join(domain.name for domain in self.domains),
            "label": self.label,
            "synthetic": next((made for survey in surveys if (made := survey.facts["synthetic"])), None),
            "seed": used,
            "crops": {
                "size": self.crop_size,
                "train": f"random, one an epoch from each window of {window}"
                if window > self.crop_size
                else "regular grid",
                "test_overlap": self.test_overlap,
                "test_rule": "each pixel counts once, in the crop with the nearest centre",
            },
            "deal": {"by": self.by, "equal": self.equal, "client_size": self.client_size, "ground": self._ground()},
            "label_space": {
                "rule": self.label_space,
                "dropped": dict(zip(self._names, map(list, self._space.dropped), strict=True)),
            },
            "class_names": list(self.class_names),
            "unscored_classes": [self.class_names[number] for number in self.unscored],
            "ignore_index": 255,
            "normalisation": {"statistics": self.normalise, "scale": scale, "mean": mean, "std": std},
            "augmentation": "flips and quarter turns" if self.augment else None,
            "domains": [
                self._describe_domain(source, number, surveys[number], deals[number], classes)
                for number in range(len(surveys))
            ],
            "clients": [self._describe_client(source, client) for client in clients],
            "num_samples": len(source),
            "test": self._describe(source, np.concatenate(tests)),
        }
        nothing = np.empty(0, dtype=np.int64)
        return Federation(
            source=source,
            clients=clients,
            test=np.concatenate(tests),
            validation=nothing,
            transform=transform,
            manifest=manifest,
            sample_ids=source.sample_ids,
            protocols=("global", "personal_own"),
            headline="personal_own",
            setup_bytes=setup_bytes(0 if self.normalise == "published" else len(clients), self.in_channels),
        )

    @property
    def _names(self) -> list[str]:
        return [domain.name for domain in self.domains]

    def _survey(self, domain: Domain) -> Survey:
        survey = domain.dataset.survey()
        if not survey.test:
            raise DataError(
                f"domain {domain.name}: {survey.folder} has no test tile; add one, or set split: by_position"
            )
        return survey

    def _spec(self, domain: Domain, survey: Survey, role: Role) -> CropSpec:
        dataset, train = domain.dataset, role == "train"
        return CropSpec(
            name=type(dataset).__name__.lower(),
            tiles=survey.train if train else survey.test,
            folder=survey.folder,
            role=role,
            size=(self.random_crops_from or self.crop_size) if train else self.crop_size,
            overlap=0 if train else self.test_overlap,
            bands=dataset.in_channels,
            dtype=dataset.dtype,
            num_classes=len(dataset.class_names),
            settings=dataset.settings(),
        )

    def _terrains(self) -> list[list[int]]:
        """Domains that show the same terrain, where there are at least two."""
        grouped: dict[str, list[int]] = {}
        for number, domain in enumerate(self.domains):
            grouped.setdefault(domain.dataset.ground, []).append(number)
        return [members for members in grouped.values() if len(members) > 1]

    def _ground(self) -> str | None:
        return self.ground if self._terrains() else None

    def _deal(self, source: CropSource, seed: int) -> list[_Deal]:
        tiles = [list(source.parts[2 * number].pack.index.tiles) for number in range(len(self.domains))]
        for members in self._terrains() if self.ground == "disjoint" else []:
            rng = numpy_stream(seed, "domains", "ground", self.domains[members[0]].name)
            weights = [self.domains[number].num_clients for number in members]
            for number, own in zip(
                members, share_ground([tiles[number] for number in members], weights, rng), strict=True
            ):
                tiles[number] = own
        dealt: list[list[np.ndarray]] = []
        for number, domain in enumerate(self.domains):
            index = source.parts[2 * number].pack.index
            mine = np.flatnonzero(np.isin(np.asarray(index.tiles)[index.tile], tiles[number]))
            proportions = domain.proportions or [1.0] * domain.num_clients
            shares = deal_crops(
                index.tile[mine], proportions, self.by, numpy_stream(seed, "domains", "deal", domain.name)
            )
            dealt.append([mine[share] + source.offsets[2 * number] for share in shares])
        if self.equal:
            dealt = self._trimmed(dealt)
        result = []
        for number, shares in enumerate(dealt):
            index, offset = source.parts[2 * number].pack.index, source.offsets[2 * number]
            mine = np.flatnonzero(np.isin(np.asarray(index.tiles)[index.tile], tiles[number])) + offset
            result.append(
                _Deal([np.sort(share) for share in shares], np.setdiff1d(mine, np.concatenate(shares)), tiles[number])
            )
        return result

    def _trimmed(self, dealt: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
        largest = min(len(share) for shares in dealt for share in shares)
        size = largest if self.client_size is None else self.client_size
        if size > largest:
            raise ConfigError(
                f"client_size is {size}, but the smallest client can have {largest} training crops only; lower it"
            )
        return [[share[:size] for share in shares] for shares in dealt]

    def _clients(self, source: CropSource, deals: Sequence[_Deal]) -> tuple[tuple[ClientSplit, ...], list[np.ndarray]]:
        clients: list[ClientSplit] = []
        tests = []
        for number, (domain, deal) in enumerate(zip(self.domains, deals, strict=True)):
            tests.append(np.arange(source.offsets[2 * number + 1], source.offsets[2 * number + 2]))
            for place, train in enumerate(deal.train):
                name = f"{domain.name} {place}"
                if not len(train):
                    raise ConfigError(
                        f"client {len(clients)} ({name}) gets no training crop; lower num_clients, or set by: crop"
                    )
                clients.append(ClientSplit(len(clients), name, train, tests[-1], domain.name))
        return tuple(clients), tests

    def _statistics(
        self, source: CropSource, clients: Sequence[ClientSplit]
    ) -> tuple[list[list[float]], list[list[float]]]:
        means, stds = [], []
        for domain in self.domains:
            if self.normalise == "published":
                assert domain.dataset.published is not None
                mean, std = (list(values) for values in domain.dataset.published)
            else:
                own = [client.train for client in clients if self.normalise == "train" or client.domain == domain.name]
                mean, std = mean_std(*source.sums(np.concatenate(own)))
                if min(std) <= 0:
                    raise DataError(
                        f"domain {domain.name}: a band has no variation in the training crops; check its images"
                    )
                scale = domain.dataset.scale
                mean, std = [scale * value for value in mean], [scale * value for value in std]
            means.append(mean)
            stds.append(std)
        return means, stds

    def _describe(self, source: CropSource, indices: np.ndarray) -> dict[str, Any]:
        pixels = source.class_pixels(indices, self.num_classes).tolist()
        return {
            "num_samples": len(indices),
            "class_pixels": pixels[:-1],
            "ignored_pixels": pixels[-1],
            "sha256": hash_ids([source.sample_ids[index] for index in indices]),
        }

    def _describe_client(self, source: CropSource, client: ClientSplit) -> dict[str, Any]:
        assert client.test is not None
        return {
            "id": client.id,
            "name": client.name,
            "domain": client.domain,
            "train": self._describe(source, client.train) | {"num_tiles": len(source.tiles(client.train))},
            "test": self._describe(source, client.test),
        }

    def _describe_domain(
        self, source: CropSource, number: int, survey: Survey, deal: _Deal, classes: list[list[bool]]
    ) -> dict[str, Any]:
        domain, packs = self.domains[number], [part.pack for part in source.parts[2 * number : 2 * number + 2]]
        surplus = [source.sample_ids[index] for index in deal.surplus]
        return {
            "name": domain.name,
            "num_clients": domain.num_clients,
            "proportions": domain.proportions,
            "root": str(Path(domain.dataset.root).resolve()),
            "settings": domain.dataset.settings(),
            "facts": survey.facts,
            "tiles_train": deal.tiles,
            "tiles_test": list(packs[1].index.tiles),
            "classes": [name for name, known in zip(self.class_names, classes[number], strict=True) if known],
            "unknown_pixels": packs[0].unknown | packs[1].unknown,
            "crops_sha256": [pack.digest for pack in packs],
            "surplus": {
                "num_samples": len(surplus),
                "sha256": hash_ids(surplus),
                "ids": surplus if len(surplus) <= MANY else source.tiles(deal.surplus),
            },
        }
