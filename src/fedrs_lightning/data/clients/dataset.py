"""The federated data set of a run: archives, and the rules by which their samples go to clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor

from fedrs_lightning.data.archives.archive import Archive, ImageArchive, ImageListing, TileArchive, TileListing
from fedrs_lightning.data.check.report import Report
from fedrs_lightning.data.clients.assignment import Assignment, AssignmentRule, Ground, assign, name_in
from fedrs_lightning.data.clients.check import check_dataset
from fedrs_lightning.data.clients.domain import CropRule, Domain, DomainSamples, SplitRule, samples_of
from fedrs_lightning.data.clients.federation import Federation
from fedrs_lightning.data.clients.label_space import label_space as joint_classes
from fedrs_lightning.data.clients.manifest import manifest_of
from fedrs_lightning.data.clients.normalisation import Normalisation, Statistics, published, statistics
from fedrs_lightning.data.clients.partition import IID, Dirichlet, Partition, Shards
from fedrs_lightning.data.packs.fields import Field, mean_std
from fedrs_lightning.data.packs.files import DecodedFiles
from fedrs_lightning.data.packs.folders import cache_folder, ordered
from fedrs_lightning.data.packs.images import ImagePack
from fedrs_lightning.data.packs.index import SIDE
from fedrs_lightning.data.packs.pack import Pack
from fedrs_lightning.data.packs.source import PackedSource, Part
from fedrs_lightning.data.packs.verification import Verification, Verify
from fedrs_lightning.data.transforms.transform import Transform
from fedrs_lightning.errors import ConfigError, DataError, one_of

PROTOCOLS = ("global", "personal_common", "personal_own", "validation")
CROP = 512  # pixels
OF_IMAGES = ("split", "train_fraction", "validation_fraction", "stratify", "own_test", "image_size", "storage")
OF_TILES = ("crop_size", "test_overlap", "random_crops_from", "ground")


@final
class FederatedDataset:
    """Samples of an archive, or of several as domains, and the clients that have them.

    The constructor does no I/O; disk is touched in `prepare` and `federation`. Choices that a paper leaves open are
    recorded in `data.json` of a run.

    Args:
        archive: what lies on disk, where all of it is one domain.
        partition: how training samples go to clients; null where the archive says whose they are.
        domains: archives with clients of their own, instead of `archive`. Every client is tested on the test data of
            its own domain.
        subfolders: folders below `root`, each a domain that `archive` reads; `num_clients` or `partition` is for each.
        num_clients: clients of each of the `subfolders`, with equal random shares.
        root: folder from which relative folders of archives are taken.
        split: `published` takes the archive's own training, validation and test samples; `seeded` draws them; null
            takes published ones where there are any. Tiles always have a published split.
        train_fraction: share of the images that is not the common test set, for `split: seeded`. Where images have
            owners, each owner's are split.
        validation_fraction: share of the training images held out for choosing a round, for `split: seeded`.
        stratify: draw test and validation images within each class.
        own_test: also give each client own test data: the common test set, cut within each class in proportion to the
            clients' training images of that class, seeded. This rule is ours; the sources define none.
        min_samples: smallest number of training samples of a client; fewer is an error.
        client_size: training samples of each client: `equal` gives all the largest possible equal number, a number that
            many; what is left over is listed. Null gives everything away.
        crop_size: side in pixels of the crops of tiles that a network sees; null takes 512.
        test_overlap: pixels by which neighbouring test crops overlap; each pixel still counts once, in the crop whose
            centre is nearest.
        random_crops_from: side of stored training windows, such as 1024 for LoveDA, from each of which an epoch takes
            one crop at random; null trains on the fixed grid of crops.
        ground: for domains that show the same terrain, such as Potsdam in RGB and in IRRG: `disjoint` gives each
            training tile to one of them; `shared` lets both see all tiles.
        label_space: needed where archives have different classes: `union` gives every class name its own id, and keeps
            out of a pixel's softmax what its archive does not know; a mapping of joint class to own classes (`class`
            or `domain:class`) merges them, and pixels of classes that it does not name are ignored. Images with one
            class each need every class named; those with several lose the others.
        normalise: `published` uses each archive's customary statistics; `federated` those of all clients' training
            pixels, from sums that clients upload before round 1; `per_domain` those of each domain, from sums too;
            `per_client` each client's own, for archives that say whose every sample is. Null takes published ones where
            all archives have them, else federated.
        image_size: side in pixels to which batches of images are resized; null keeps the stored size.
        augment: random flips and quarter turns in training.
        protocols: under which models are evaluated (docs/evaluation.md); null takes all that the data allow, and
            `global` and `personal_own` for domains.
        storage: `pack` decodes all samples once into the cache; `files` reads images anew for every batch, slowly.
        verify: compare the bytes of packs with their hashes beside the run, which a damaged pack ends: `always`;
            `once`, after they were written and whenever size, time or inode of a file changed; or `never`.
        label: honest name of the federation, for results.
        cache_dir: where decoded samples are packed; null means `$FEDRS_CACHE` or the platform's cache folder.
        seed: seed of split and partition; null takes the run's.
    """

    def __init__(
        self,
        archive: Archive | None = None,
        partition: Partition | None = None,
        domains: list[Domain] | None = None,
        subfolders: list[str] | None = None,
        num_clients: int | None = None,
        root: str = ".",
        split: Literal["published", "seeded"] | None = None,
        train_fraction: float = 0.8,
        validation_fraction: float = 0.0,
        stratify: bool = False,
        own_test: bool = False,
        min_samples: int = 1,
        client_size: Literal["equal"] | int | None = None,
        crop_size: int | None = None,
        test_overlap: int = 0,
        random_crops_from: int | None = None,
        ground: Ground = "disjoint",
        label_space: Literal["union"] | dict[str, list[str]] | None = None,
        normalise: Normalisation | None = None,
        image_size: int | None = None,
        augment: bool = True,
        protocols: list[str] | None = None,
        storage: Literal["pack", "files"] = "pack",
        verify: Verify = "once",
        label: str | None = None,
        cache_dir: str | None = None,
        seed: int | None = None,
    ) -> None:
        given = dict(locals())
        self.root, self.normalise, self.image_size, self.augment = root, normalise, image_size, augment
        self.verify: Verify = verify
        self.storage, self.label, self.cache_dir, self.seed = storage, label, cache_dir, seed
        self.alone = archive is not None and subfolders is None
        self.domains = _domains(archive, partition, domains, subfolders, num_clients, root)
        self.split = SplitRule(split, train_fraction, validation_fraction, stratify)
        self.rule = AssignmentRule(client_size, own_test, min_samples, ground)
        self.tiled = isinstance(self.domains[0].archive, TileArchive)
        size = CROP if crop_size is None else crop_size
        self.crops = CropRule(size, test_overlap, random_crops_from or size)
        self.label_space = label_space
        kind, other = ("tiles", "images") if self.tiled else ("images", "tiles")
        for name in OF_IMAGES if self.tiled else OF_TILES:
            if given[name] != signature(FederatedDataset).parameters[name].default:
                raise ConfigError(f"{name} is for archives of {other}, and this one holds {kind}; leave it out")
        self._check(protocols)
        usual = PROTOCOLS if self.alone and not self.tiled else ("global", "personal_own")
        self.protocols = tuple(protocols or usual)
        names, classes = [domain.name for domain in self.domains], [own.archive.class_names for own in self.domains]
        self.space = joint_classes(label_space, names, classes)
        self._packed: list[Path] = []
        self.verification = Verification((), "never")

    def _check(self, protocols: list[str] | None) -> None:
        one_of("normalise", self.normalise or "published", ("published", "federated", "per_domain", "per_client"))
        one_of("storage", self.storage, ("pack", "files"))
        one_of("verify", self.verify, ("always", "once", "never"))
        one_of("ground", self.rule.ground, ("disjoint", "shared"))
        one_of("split", self.split.split or "seeded", ("published", "seeded"))
        for name in protocols or ():
            one_of("protocols", name, PROTOCOLS)
        if any(isinstance(domain.archive, TileArchive) != self.tiled for domain in self.domains):
            raise ConfigError("domains need archives of one kind, all of images with labels or all of tiles with masks")
        for domain in self.domains if self.tiled and not self.alone else ():
            domain.refuse_unowned_tiles()
        split, crops, size = self.split, self.crops, self.rule.client_size
        if not 0 < split.train_fraction <= 1 or not 0 <= split.validation_fraction < 1:
            text = "train_fraction must be in (0, 1] and validation_fraction in [0, 1), got"
            raise ConfigError(f"{text} {split.train_fraction} and {split.validation_fraction}")
        if self.image_size is not None and not 1 <= self.image_size <= SIDE:
            raise ConfigError(f"image_size must be 1 to {SIDE} pixels or null, got {self.image_size}")
        if not 1 <= crops.size <= SIDE:
            raise ConfigError(f"crop_size must be 1 to {SIDE} pixels, got {crops.size}")
        if not 0 <= crops.test_overlap < crops.size:
            raise ConfigError(f"test_overlap must be in [0, crop_size), got {crops.test_overlap} and {crops.size}")
        if not crops.size <= crops.window <= SIDE:
            raise ConfigError(f"random_crops_from must be crop_size={crops.size} to {SIDE}, got {crops.window}")
        if self.rule.min_samples < 0:
            raise ConfigError(f"min_samples must be at least 0, got {self.rule.min_samples}")
        if self.seed is not None and self.seed < 0:
            raise ConfigError(f"seed must be at least 0 or null, got {self.seed}")
        if (size < 1) if isinstance(size, int) else size not in (None, "equal"):
            raise ConfigError(f"client_size must be equal, or at least 1, got {size}")
        archives = {domain.name: domain.archive for domain in self.domains}
        for what, values in (
            ("number of bands", {name: len(archive.band_names) for name, archive in archives.items()}),
            ("dtype", {name: archive.dtype for name, archive in archives.items()}),
            ("scale", {name: archive.scale for name, archive in archives.items()}),
        ):
            if len(set(values.values())) > 1:
                text = ", ".join(f"{name}: {value}" for name, value in values.items())
                raise ConfigError(f"domains need the same {what}, got {text}")
        places = [_places(archive) for archive in archives.values()]
        if any(found != places[0] for found in places):
            raise ConfigError("domains need the same stored bands, chosen in the same order and resized alike")
        lacking = [name or type(archive).__name__ for name, archive in archives.items() if archive.published is None]
        if self.normalise == "published" and lacking:
            text = f"{lacking[0]} has no published statistics; set federated or per_domain"
            raise ConfigError(f"normalise: published: {text}")
        if self.normalise is None:
            self.normalise = "federated" if lacking else "published"

    @property
    def archive(self) -> Archive:
        """That of the first domain; bands and types are the same in all."""
        return self.domains[0].archive

    @property
    def num_classes(self) -> int:
        """Number of joint classes."""
        return len(self.space.names)

    @property
    def in_channels(self) -> int:
        """Bands that a network takes."""
        return len(self.archive.band_names)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Joint classes."""
        return self.space.names

    @property
    def unscored(self) -> tuple[int, ...]:
        """Classes that a mean over classes leaves out, such as clutter."""
        names = {name for domain in self.domains for name in domain.archive.unscored}
        return tuple(number for number, name in enumerate(self.class_names) if name in names)

    @property
    def crop_size(self) -> int | None:
        """Side of the crops of tiles; None for images."""
        return self.crops.size if self.tiled else None

    @property
    def stored_side(self) -> int | None:
        """Side of the stored images in pixels, where it is known without touching the disk."""
        return self.archive.stored_side

    def band_names(self, domain: str = "") -> Mapping[str, tuple[str, ...]]:
        """Names of a domain's stored bands (by default the first's) by field of the source's batches."""
        own = next((each.archive for each in self.domains if each.name == domain), self.archive)
        return own.stored_bands if isinstance(own, ImageArchive) else {"image": own.band_names}

    def acquired(self, sample_id: str) -> date | None:
        """Day on which a sample was acquired, where its id says so."""
        return self.archive.acquired(sample_id) if isinstance(self.archive, ImageArchive) else None

    def prepare(self) -> None:
        """List all samples, decode and pack them; packs that exist are used as they are. Call it on one rank.

        The bytes of packs are compared with their hashes from now on, beside what follows, see `verified`.
        """
        samples = self._prepared(0)
        if self.storage == "pack":
            self._packed = [pack.pack(cache_folder(self.cache_dir)) for own in samples for pack in own.packs]
            if not ordered():
                self.verification = Verification(self._packed, self.verify)

    def verified(self) -> None:
        """Wait until the packs that `prepare` opened are compared with their hashes, where that is asked for.

        Raises:
            DataError: one is damaged; names its folder, the samples and a remedy.
        """
        self.verification.finish()

    def _prepared(self, seed: int) -> list[DomainSamples]:
        for domain in self.domains:
            domain.archive.prepare(cache_folder(self.cache_dir))
        return self.samples(seed if self.seed is None else self.seed)

    def samples(self, seed: int) -> list[DomainSamples]:
        """Samples of every domain, split, without packing one.

        Raises:
            ConfigError: options that the samples do not allow.
            DataError: names the folder, file or row, and a remedy.
        """
        pairs = zip(self.domains, self.listings, strict=True)
        samples = [samples_of(domain, listing, self.split, self.crops, seed) for domain, listing in pairs]
        if not self.tiled:
            self._check_images(samples)
        if self._reports_own(samples) and "personal_own" not in self.protocols:
            raise ConfigError("protocols must name personal_own, which results report: clients have test data")
        if self.normalise == "per_client" and any(own.owners is None for own in samples):
            raise ConfigError("normalise: per_client needs an archive that says whose every sample is; set federated")
        return samples

    def _check_images(self, samples: list[DomainSamples]) -> None:
        """Refuse what the labels or sizes of images do not allow."""
        several = [own.labels is not None and own.labels.ndim == 2 for own in samples]
        if any(several) and not all(several):
            raise ConfigError("domains need images with one class each in all of them, or with several in all")
        if any(several) and any(isinstance(own.domain.partition, (Dirichlet, Shards)) for own in samples):
            raise ConfigError("a partition by class is for one class an image; here take IID or ByAttribute")
        if self.rule.own_test and (not self.alone or any(several) or samples[0].owners is not None):
            raise ConfigError("own_test cuts a common test set of images with one class each; leave it out here")
        first: dict[str, Field] = {}
        for own in samples:
            pack = own.packs[0]
            for name, field in pack.fields.items() if isinstance(pack, ImagePack) else ():
                size, other = (tuple(each.shape[-2:]) for each in (field, first.setdefault(name, field)))
                found, remedy = f"{own.where(0)}: is {size[1]} x {size[0]} pixels, and", "set image_size of the archive"
                if self.augment and size[0] != size[1]:
                    raise DataError(f"{found} quarter turns need squares; {remedy}, or augment: false")
                if size != other:
                    whose = f"an image of domain {samples[0].domain.name}"
                    raise DataError(f"{found} {whose} {other[1]} x {other[0]}; {remedy}s")

    def _reports_own(self, samples: list[DomainSamples]) -> bool:
        """Whether results are those of clients on test data of their own."""
        if self.tiled or not self.alone:
            return any(len(own.test) for own in samples)
        owners = samples[0].owners
        return owners is not None and bool((owners[samples[0].test] != "").any())

    def federation(self, seed: int) -> Federation:
        """The clients' data, the same on every rank that calls it with the same seed after `prepare`.

        Args:
            seed: the run's seed; the data set's own `seed` argument, where given, is used instead.
        """
        samples, used = self._prepared(seed), seed if self.seed is None else self.seed
        found = assign(samples, self.rule, self.alone, used)
        parts: list[Part] = []
        packed = iter(self._packed)
        for own, table in zip(samples, self.space.tables, strict=True):
            where = "" if self.alone else f"{own.domain.name}/"
            for spec in own.packs:
                if self.storage == "files" and isinstance(spec, ImagePack):
                    parts.append(Part(DecodedFiles(spec), where, table))
                    continue
                folder = next(packed, None)
                pack = spec.open(cache_folder(self.cache_dir)) if folder is None else Pack(folder, self.verification)
                parts.append(Part(pack, where if isinstance(spec, ImagePack) else f"{where}{spec.role}/", table))
        source, archive = PackedSource(parts, self.extras(samples, found)), self.archive
        normal = self._statistics(source, found)
        kernel = archive.kernel if isinstance(archive, ImageArchive) else "torch"
        options: dict[str, Any] = {"kernel": kernel, "image_size": self.image_size, "augment": self.augment}
        if self.tiled:
            options |= {"crop": self.crops.size, "window": self.crops.window}
            options["classes"] = None if self.label_space is None else self.known_classes()
        bands = self.band_names(), archive.band_names
        transform = Transform(normal.mean, normal.std, archive.scale, *bands, **options)
        manifest = manifest_of(self, samples, found, source, normal, used)
        whole = source, found.clients, found.test, found.validation, transform, manifest, source.sample_ids
        headline = "personal_own" if self._reports_own(samples) else None
        return Federation(*whole, self.protocols, headline, normal.setup_bytes)

    def known_classes(self) -> list[list[bool]]:
        """Of each domain, which joint classes its labels can hold."""
        counts = [len(domain.archive.class_names) for domain in self.domains]
        return [self.space.present(number, count) for number, count in enumerate(counts)]

    @cached_property
    def listings(self) -> list[ImageListing | TileListing]:
        """What each domain's archive lists."""
        return [domain.archive.listing() for domain in self.domains]

    @property
    def lacks_partition(self) -> bool:
        """Whether nothing says whose the samples of the one archive are."""
        if not self.alone or self.domains[0].partition is not None:
            return False
        return self.tiled or getattr(self.listings[0], "clients", None) is None

    def give_to_one_client(self) -> bool:
        """Give everything to one client where nothing says whose it is; tells whether that was so."""
        if lacking := self.lacks_partition:
            self.domains[0].partition = IID(1)
        return lacking

    def check(self, deep: bool = False, sample: int | None = None, seed: int = 0) -> list[Report]:
        """Look for faults of all archives, of the split and of the partition, see `check_dataset`."""
        return check_dataset(self, deep, sample, seed)

    def extras(self, samples: list[DomainSamples], found: Assignment) -> dict[str, Tensor]:
        """What a batch holds beside the arrays of packs."""
        domain = torch.from_numpy(np.repeat(np.arange(len(samples)), [own.count for own in samples]).astype(np.int64))
        extras = {"domain": domain}
        if not self.tiled:
            labels = ((number, own.labels) for number, own in enumerate(samples) if own.labels is not None)
            whole = np.concatenate([self.space.labels(number, own) for number, own in labels])
            extras = {"label": torch.from_numpy(whole.astype(np.int64 if whole.ndim == 1 else np.float32))}
        if self.normalise == "per_client":
            extras["group"] = torch.from_numpy(_owner_numbers(samples, found))
        elif self.normalise != "federated" and len(self.domains) > 1:
            extras["group"] = domain
        return extras

    def _statistics(self, source: PackedSource, found: Assignment) -> Statistics:
        kind, scale, clients = self.normalise, self.archive.scale, found.clients
        if kind == "published":
            rows = {own.name or type(own.archive).__name__: own.archive.published for own in self.domains}
            return published({name: row for name, row in rows.items() if row is not None}, scale)

        def measure(indices: np.ndarray) -> list[tuple[float, float]]:
            known: dict[str, tuple[float, float]] = {}
            for field, bands in self.band_names().items():
                count, sums = source.sums(indices, field)
                if not count:
                    names = ", ".join(sorted({source.sample_ids[index] for index in indices[:3].tolist()}))
                    raise DataError(f"{names}: all training pixels are declared as no data; check the images")
                known |= dict(zip(bands, zip(*mean_std(count, sums), strict=True), strict=True))
            return [known[band] for band in self.archive.band_names]

        if kind == "per_client":
            groups = {f"client {client.name}": client.train for client in clients}
        elif kind == "per_domain" and not self.alone:
            members = {own.name: [each.train for each in clients if each.domain == own.name] for own in self.domains}
            groups = {f"domain {name}": np.concatenate(trains) for name, trains in members.items()}
        else:
            groups = {"all clients together": np.concatenate([client.train for client in clients])}
        assert kind is not None
        return statistics(kind, groups, measure, self.archive.band_names, scale, len(clients))


def _domains(
    archive: Archive | None,
    partition: Partition | None,
    domains: list[Domain] | None,
    subfolders: list[str] | None,
    num_clients: int | None,
    root: str,
) -> list[Domain]:
    """The domains, their folders taken from `root`; a single archive is one without a name."""
    if (archive is None) == (domains is None):
        both = "archive and domains exclude each other; leave one out"
        neither = "data has neither archive nor domains; name an archive, such as archive: {class_path: EuroSAT}"
        raise ConfigError(neither if archive is None else both)
    if subfolders is not None and not subfolders:
        raise ConfigError("subfolders must name at least one folder, each of which is a domain")
    if domains is not None:
        if partition is not None or subfolders is not None or num_clients is not None:
            raise ConfigError("partition, subfolders and num_clients belong to archive; each of domains has its own")
        found = [replace(domain, num_clients=None, archive=domain.archive.below(root)) for domain in domains]
    elif subfolders is not None:
        assert archive is not None
        if Path(archive.root).expanduser().is_absolute():
            text = f"root of the archive is taken from each of them; make {archive.root} relative"
            raise ConfigError(f"subfolders: {text}")
        found = []
        for name in subfolders:
            moved = archive.below(name).below(root)
            found.append(replace(Domain(name.replace("/", "_"), moved, num_clients, partition), num_clients=None))
    else:
        assert archive is not None
        if num_clients is not None:
            raise ConfigError("num_clients is for subfolders; set partition, such as IID")
        found = [Domain("", archive.below(root), None, partition)]
    names = [domain.name for domain in found]
    named = domains is not None or subfolders is not None
    if not names or len(set(names)) != len(names) or (named and not all(names)) or any("/" in name for name in names):
        raise ConfigError(f"domains need distinct names without '/', got {names or 'none'}")
    return found


def _places(archive: Archive) -> list[object]:
    """Where a network's bands are stored, and how coarse ones come onto the grid."""
    if not isinstance(archive, ImageArchive):
        return []
    stored = archive.stored_bands.items()
    found = [(name, own.index(band)) for band in archive.band_names for name, own in stored if band in own]
    return [archive.kernel if len(stored) > 1 else None, *found]


def _owner_numbers(samples: list[DomainSamples], found: Assignment) -> np.ndarray:
    """Client id whose statistics normalise each sample, int64 [N]."""
    numbers: list[int] = []
    place = {(client.domain, client.name): client.id for client in found.clients}
    for own in samples:
        assert own.owners is not None
        name = own.domain.name
        for sample, owner in enumerate(own.owners.tolist()):
            key = (name, name_in(own, owner) if name else owner)
            if key not in place:
                raise DataError(f"{own.where(sample)}: an image without client, which per_client needs; name one")
            numbers.append(place[key])
    return np.asarray(numbers, dtype=np.int64)
