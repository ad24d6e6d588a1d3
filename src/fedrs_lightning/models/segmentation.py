"""Segmentation networks on any number of bands, from segmentation-models-pytorch, with feature maps for methods."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedrs_lightning.errors import ConfigError, check_choices
from fedrs_lightning.models.weights import BandInit, WeightsReport, load_weights, require_counts
from fedrs_lightning.nn.interpolation import deterministic_interpolation
from fedrs_lightning.types import Output

Architecture = Literal["deeplabv3plus", "fpn", "unet", "segformer"]
Encoder = Literal["resnet18", "resnet34", "resnet50", "mit_b0"]
DeepFeature = Literal["encoder", "aspp"]

SHALLOW = 2
"""Place of the stride-4 stage in an encoder's list of feature maps, for residual networks and for MiT alike."""


class SegmentationNetwork(nn.Module):
    """Encoder, decoder and segmentation head; one forward pass yields logits and feature maps (docs/deviations.md).

    | | DeepLabV3+ | FPN | Unet | Segformer |
    |---|---|---|---|---|
    | sides a multiple of | 16 | 32 | 32 | 32 |
    | `embedding`, decoder output | 256, stride 4 | 128, stride 4 | 16, stride 1 | 256, stride 4 |
    | `shallow`, stage of stride 4 | 256 (ResNet-50), 64 (18, 34) | same | same | 32 |
    | `deep`, last stage | 2048 (ResNet-50), 512 (18, 34), stride 16 | stride 32 | stride 32 | 256, stride 32 |

    Args:
        architecture: DeepLabV3+ (Chen et al., 2018), FPN (Lin et al., 2017), Unet (Ronneberger et al., 2015) or
            Segformer (Xie et al., 2021).
        encoder: a residual network, or `mit_b0` for Segformer.
        num_classes: C.
        in_channels: bands.
        decoder_channels: channels of the decoder's output; everything inside the decoder that its authors tie to it
            scales along. None takes the standard of the table.
        encoder_width: channels of a residual network's first stage. 64 is the standard, 16 suits small runs on a CPU.
        deep: `encoder`, the last stage, or for DeepLabV3+ `aspp`, the output of its pyramid of dilated convolutions.
        weights: local file with the encoder's weights (see `load_weights`); None starts from random values. Nothing is
            downloaded.
        band_init: how a filter of the first convolution meets bands that the file does not have.

    Attributes:
        shallow_channels: of `Output.shallow`.
        deep_channels: of `Output.deep`.
        embedding_channels: of `Output.embedding`.
        stride: sides of images must be multiples of it.
        weights_report: what the weights file gave, or None.

    Raises:
        ConfigError: an argument out of range, parts that do not go together, a weights file that is missing or does not
            fit.
    """

    def __init__(
        self,
        architecture: Architecture,
        encoder: Encoder,
        num_classes: int,
        in_channels: int,
        decoder_channels: int | None = None,
        encoder_width: int = 64,
        deep: DeepFeature = "encoder",
        weights: Path | None = None,
        band_init: BandInit = "mean",
    ) -> None:
        check_choices(SegmentationNetwork.__init__, locals())
        require_counts(num_classes=num_classes, in_channels=in_channels, encoder_width=encoder_width)
        require_counts(decoder_channels=decoder_channels)
        if (architecture == "segformer") != (encoder == "mit_b0"):
            fitting = "mit_b0" if architecture == "segformer" else "resnet18, resnet34 or resnet50"
            raise ConfigError(f"encoder: {architecture} goes with {fitting}, not with {encoder}")
        if deep == "aspp" and architecture != "deeplabv3plus":
            raise ConfigError(f"deep: only deeplabv3plus has an aspp, {architecture} has not; choose deep: encoder")
        if encoder == "mit_b0" and encoder_width != 64:
            raise ConfigError("encoder_width: mit_b0 has one width only; leave it at 64")
        if architecture == "fpn" and (decoder_channels or 128) % 32:
            raise ConfigError(f"decoder_channels: {decoder_channels}, but fpn has 32 groups; take a multiple of 32")
        super().__init__()
        name = encoder if encoder_width == 64 else _narrow_encoder(encoder, encoder_width)
        network = _make(architecture, decoder_channels)(
            encoder_name=name, encoder_weights=None, in_channels=in_channels, classes=num_classes
        )
        self.encoder, self.decoder, self.segmentation_head = network.encoder, network.decoder, network.segmentation_head
        self.architecture, self.deep_feature = architecture, deep
        self.stride = int(self.encoder.output_stride)
        widths = self.encoder.out_channels
        self.embedding_channels = int(self.segmentation_head[0].in_channels)
        self.shallow_channels = int(widths[SHALLOW])
        self.deep_channels = int(widths[-1]) if deep == "encoder" else self.embedding_channels
        self.weights_report: WeightsReport | None = None
        if weights is not None:
            stem, classifier = ("patch_embed1.proj.weight", "head") if encoder == "mit_b0" else ("conv1.weight", "fc")
            self.weights_report = load_weights(self.encoder, weights, stem, classifier, band_init)

    def forward(self, image: Tensor) -> Output:
        """Segment images.

        Args:
            image: [B, in_channels, H, W], H and W multiples of `stride`.

        Returns:
            logits [B, C, H, W], embedding (the decoder's output in front of the head), shallow and deep.

        Raises:
            ConfigError: a side is not a multiple of `stride`.
        """
        height, width = image.shape[-2:]
        if height % self.stride or width % self.stride:
            side = height if height % self.stride else width
            raise ConfigError(
                f"images of {height} x {width} pixels do not fit {self.architecture}, whose sides must be multiples of "
                f"{self.stride}; choose a crop size such as {max(1, round(side / self.stride)) * self.stride}"
            )
        features = self.encoder(image)
        with deterministic_interpolation(image.device):
            if self.deep_feature == "aspp":
                deep = self.decoder.aspp(features[-1])
                # the rest of the DeepLabV3+ decoder behind its pyramid
                skip = self.decoder.block1(features[SHALLOW])
                embedding = self.decoder.block2(torch.cat([self.decoder.up(deep), skip], dim=1))
            else:
                deep, embedding = features[-1], self.decoder(features)
            logits = self.segmentation_head(embedding)
        return Output(logits, embedding, features[SHALLOW], deep)


def _make(architecture: str, decoder_channels: int | None) -> Callable[..., Any]:
    # Imported here: it takes seconds, and classification runs do without.
    import segmentation_models_pytorch as smp  # type: ignore[import-untyped]

    standard = {"deeplabv3plus": 256, "fpn": 128, "unet": 16, "segformer": 256}
    width = decoder_channels or standard[architecture]
    if architecture == "deeplabv3plus":
        return partial(smp.DeepLabV3Plus, decoder_channels=width)
    if architecture == "fpn":
        return partial(smp.FPN, decoder_segmentation_channels=width, decoder_pyramid_channels=2 * width)
    if architecture == "unet":
        return partial(smp.Unet, decoder_channels=[width * factor for factor in (16, 8, 4, 2, 1)])
    return partial(smp.Segformer, decoder_segmentation_channels=width)


def _narrow_encoder(encoder: str, width: int) -> str:
    """Enter a residual network of another width in the library's table of encoders; returns its name there."""
    from segmentation_models_pytorch.encoders import encoders  # type: ignore[import-untyped]

    name = f"{encoder}-width{width}"
    if name not in encoders:
        standard = encoders[encoder]
        base: Any = standard["encoder"]

        class NarrowEncoder(base):
            """The library's residual encoder with all widths scaled."""

            def _make_layer(
                self, block: Any, planes: int, blocks: int, stride: int = 1, dilate: bool = False
            ) -> nn.Sequential:
                if not hasattr(self, "layer1"):
                    self.inplanes = width
                    self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
                    self.bn1 = nn.BatchNorm2d(width)
                layer: nn.Sequential = super()._make_layer(block, planes * width // 64, blocks, stride, dilate)
                return layer

        channels = standard["params"]["out_channels"]
        widths = [channels[0], *(channel * width // 64 for channel in channels[1:])]
        encoders[name] = {
            "encoder": NarrowEncoder,
            "pretrained_settings": {},
            "params": standard["params"] | {"out_channels": widths},
        }
    return name
