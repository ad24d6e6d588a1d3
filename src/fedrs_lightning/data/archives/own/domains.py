"""Your own rasters in one folder a domain."""

from __future__ import annotations

from typing import Literal

from fedrs_lightning.data.archives.own.rasters import FolderSegmentation
from fedrs_lightning.data.archives.tiles import Split
from fedrs_lightning.data.clients.domains import Domain, Domains
from fedrs_lightning.errors import ConfigError


class FolderDomains(Domains):
    """Your own image and label rasters: each subfolder is a domain, and all have one class table.

    The same as `Domains` of several `FolderSegmentation`, written shorter. Both classes say what the arguments mean.

    Args:
        root: folder that holds the domains' folders.
        subfolders: names of the domains' folders, which become the domains' names; with `/` for deeper ones.
        clients_per_domain: how many clients share a domain.
        classes: class name to colour or value, see `FolderSegmentation`.
        in_channels: bands of an image that are used.
        bands: which ones, from 1; null takes the first.
        pixel_type: `uint8` or `uint16`.
        ignored: colours or values that mean "no label".
        images: folder of the training images below each subfolder.
        labels: folder of their labels.
        test_images: folder of the test images; null with `split: by_position`.
        test_labels: folder of their labels.
        image_ending: see `FolderSegmentation`.
        label_ending: see `FolderSegmentation`.
        split: see `FolderSegmentation`.
        by: see `Domains`.
        crop_size: see `Domains`.
        test_overlap: see `Domains`.
        equal: see `Domains`.
        client_size: see `Domains`.
        normalise: `train` or `per_domain`, see `Domains`.
        augment: see `Domains`.
        label: see `Domains`.
        cache_dir: see `Domains`.
        seed: see `Domains`.
    """

    def __init__(
        self,
        root: str,
        subfolders: list[str],
        clients_per_domain: int,
        classes: dict[str, int | list[int]],
        in_channels: int,
        bands: list[int] | None = None,
        pixel_type: Literal["uint8", "uint16"] = "uint8",
        ignored: list[int | list[int]] | None = None,
        images: str = "train/images",
        labels: str = "train/labels",
        test_images: str | None = "test/images",
        test_labels: str | None = "test/labels",
        image_ending: str = "",
        label_ending: str = "",
        split: Split = "official",
        by: Literal["crop", "tile"] = "crop",
        crop_size: int = 512,
        test_overlap: int = 0,
        equal: bool = True,
        client_size: int | None = None,
        normalise: Literal["train", "per_domain"] = "train",
        augment: bool = True,
        label: str | None = None,
        cache_dir: str | None = None,
        seed: int | None = None,
    ) -> None:
        if not subfolders:
            raise ConfigError("subfolders must name at least one folder, each of which is a domain")

        def folder(name: str) -> FolderSegmentation:
            return FolderSegmentation(
                name, classes, in_channels, bands, pixel_type, ignored, images, labels,
                test_images, test_labels, None, image_ending, label_ending, split,
            )  # fmt: skip

        super().__init__(
            [Domain(name.replace("/", "_"), folder(name), clients_per_domain) for name in subfolders],
            root,
            by=by,
            crop_size=crop_size,
            test_overlap=test_overlap,
            equal=equal,
            client_size=client_size,
            normalise=normalise,
            augment=augment,
            label=label,
            cache_dir=cache_dir,
            seed=seed,
        )
