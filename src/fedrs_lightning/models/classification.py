"""Residual networks for scene classification, on any number of bands, from torchvision's blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.resnet import ResNet as TorchvisionResNet

from fedrs_lightning.errors import check_choices
from fedrs_lightning.models.weights import BandInit, WeightsReport, load_weights, require_counts
from fedrs_lightning.types import Output

Backbone = Literal["resnet18", "resnet34", "resnet50", "resnet101"]
Stem = Literal["imagenet", "small"]

_LAYOUTS: dict[str, tuple[Any, list[int]]] = {
    "resnet18": (BasicBlock, [2, 2, 2, 2]),
    "resnet34": (BasicBlock, [3, 4, 6, 3]),
    "resnet50": (Bottleneck, [3, 4, 6, 3]),
    "resnet101": (Bottleneck, [3, 4, 23, 3]),
}


class ResNet(TorchvisionResNet):
    """Residual network (He et al., 2016) that returns its feature maps beside the logits.

    With three bands, width 64 and the imagenet stem it is torchvision's network: the same state entries, initial values
    and logits.

    Args:
        backbone: depth.
        num_classes: C.
        in_channels: bands.
        width: channels of the first stage's 3x3 convolutions; all widths scale with it. 64 is the standard, 16
            suits small runs on a CPU.
        stem: `imagenet`: 7x7 convolution of stride 2 and a max pooling, maps shrink 32 times in all. `small`: 3x3 of
            stride 1 and no pooling, maps shrink 8 times, for images of 32 to 64 pixels.
        weights: local file to start from (see `load_weights`); None starts from random values. Nothing is downloaded.
        band_init: how a stem filter meets bands that the file does not have.

    Attributes:
        weights_report: what the weights file gave, or None.

    Raises:
        ConfigError: an argument out of range, or a weights file that is missing or does not fit.
    """

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        in_channels: int,
        width: int = 64,
        stem: Stem = "imagenet",
        weights: Path | None = None,
        band_init: BandInit = "mean",
    ) -> None:
        check_choices(ResNet.__init__, locals())
        require_counts(num_classes=num_classes, in_channels=in_channels, width=width)
        self._base_width = width
        block, layers = _LAYOUTS[backbone]
        super().__init__(block, layers, num_classes=num_classes)
        # torchvision fixes these; replaced only where they differ, so that the standard network draws the same numbers
        if width != 64 or in_channels != 3 or stem != "imagenet":
            self.conv1 = _stem_conv(in_channels, width, stem)
        if width != 64:
            self.bn1 = nn.BatchNorm2d(width)
            self.fc = nn.Linear(8 * width * block.expansion, num_classes)
        if stem == "small":
            self.maxpool = nn.Identity()
        self.weights_report: WeightsReport | None = None
        if weights is not None:
            self.weights_report = load_weights(self, weights, "conv1.weight", "fc", band_init)

    def _make_layer(self, block: Any, planes: int, blocks: int, stride: int = 1, dilate: bool = False) -> nn.Sequential:
        if not hasattr(self, "layer1"):
            self.inplanes = self._base_width
        return super()._make_layer(block, planes * self._base_width // 64, blocks, stride, dilate)

    def forward(self, image: Tensor) -> Output:
        """Classify images.

        Args:
            image: [B, in_channels, H, W].

        Returns:
            logits [B, C], embedding [B, D] in front of the last layer, shallow and deep: the first and the last stage.
        """
        shallow = self.layer1(self.maxpool(self.relu(self.bn1(self.conv1(image)))))
        deep = self.layer4(self.layer3(self.layer2(shallow)))
        embedding = torch.flatten(self.avgpool(deep), 1)
        return Output(logits=self.fc(embedding), embedding=embedding, shallow=shallow, deep=deep)


def _stem_conv(in_channels: int, width: int, stem: Stem) -> nn.Conv2d:
    kernel, stride, padding = (7, 2, 3) if stem == "imagenet" else (3, 1, 1)
    conv = nn.Conv2d(in_channels, width, kernel, stride, padding, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv
