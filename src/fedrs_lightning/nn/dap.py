"""Domain-adaptive prototypes: a batch's descriptors, two modulators of the anchors, their gate (docs/deviations.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from fedrs_lightning.errors import check_choices
from fedrs_lightning.nn.precision import FullLinear, full_precision, pointwise, product
from fedrs_lightning.nn.prototypes import unit
from fedrs_lightning.types import Output

Activation = Literal["relu", "gelu", "silu", "tanh"]
Gate = Literal["learned", "fixed", "spectral", "spatial"]

CELLS = (1, 2, 4)
"""Sides of the pooling grids of the spatial descriptor."""

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}
_FIXED = {"fixed": 0.5, "spectral": 1.0, "spatial": 0.0}


def channel_statistics(maps: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean over space and deviation sqrt(var + eps) of each image and channel: [B, C, H, W] -> two of [B, C]."""
    variance, mean = torch.var_mean(maps, dim=(2, 3), correction=0)
    return mean, (variance + eps).sqrt()


def pooled_cells(maps: Tensor, side: int) -> Tensor:
    """Means of the cells of a side x side grid, [B, C, H, W] -> [B, C * side * side], channel by channel, rows first.

    The cells are those of adaptive average pooling, as two products of matrices: its own backward pass on a GPU adds in
    no fixed order.
    """
    rows, columns = (_cell_weights(length, side, maps) for length in maps.shape[-2:])  # [side, H], [side, W]
    return product(rows, product(maps, columns.T)).flatten(1)


def _cell_weights(length: int, side: int, like: Tensor) -> Tensor:
    cells = torch.arange(side, device=like.device)
    first, last = cells * length // side, -(-(cells + 1) * length // side)
    places = torch.arange(length, device=like.device)
    inside = (places >= first[:, None]) & (places < last[:, None])
    return inside.to(like.dtype) / (last - first)[:, None]


def spectral_descriptor(maps: Tensor, eps: float) -> Tensor:
    """Means and deviations of channels, mean over the batch: [B, D_c, H, W] -> [2 D_c]."""
    return torch.cat(channel_statistics(maps, eps), dim=1).mean(0)


def spatial_descriptor(maps: Tensor, eps: float) -> Tensor:
    """Cells of the 1, 2 and 4 grids, means and deviations, mean over the batch: [B, D_r, H, W] -> [23 D_r]."""
    return torch.cat([*(pooled_cells(maps, side) for side in CELLS), *channel_statistics(maps, eps)], dim=1).mean(0)


def modulate(anchors: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """Norm(gamma * P + beta), all [C, D]."""
    return unit(gamma * anchors + beta)


def fuse(gate: Tensor, spectral: Tensor, spatial: Tensor) -> Tensor:
    """Norm(gate * P_spec + (1 - gate) * P_spa): gate [C], prototypes [C, D]."""
    return unit(gate[:, None] * spectral + (1 - gate[:, None]) * spatial)


def drift(prototypes: Tensor, anchors: Tensor) -> Tensor:
    """Cosine distance of prototypes from their anchors, in [0, 2]: [3, C, D] and [C, D] -> [3, C]."""
    return 1 - (prototypes * anchors).sum(-1)


def smooth(previous: Tensor | None, value: Tensor, keep: float) -> Tensor:
    """keep * previous + (1 - keep) * value; the value itself where there is nothing before it."""
    return value if previous is None else keep * previous + (1 - keep) * value


def mlp(sizes: Sequence[int], activation: Activation) -> nn.Sequential:
    """Linear layers of the given sizes with the activation between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [FullLinear(inputs, outputs), _ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


def _apply(conv: nn.Conv2d, maps: Tensor) -> Tensor:
    return pointwise(maps, conv.weight[:, :, 0, 0], conv.bias)


class Modulator(nn.Module):
    """Scale and offset of each class's anchor from a descriptor and a table of class embeddings.

    It starts at scale 1 and offset 0: the prototypes begin as the anchors.

    Args:
        descriptor_dim: length Q of the descriptor.
        num_classes: C.
        class_dim: D_e, length of a class embedding.
        embedding_dim: D.
        hidden_sizes: of the MLP.
        activation: of the MLP.
        bounded: keep the scale in (0, 2) by twice a sigmoid (spatial branch); else it is the raw output (spectral
            branch).
    """

    def __init__(
        self,
        descriptor_dim: int,
        num_classes: int,
        class_dim: int,
        embedding_dim: int,
        hidden_sizes: Sequence[int],
        activation: Activation,
        bounded: bool,
    ) -> None:
        super().__init__()
        self.bounded = bounded
        self.classes = nn.Parameter(torch.randn(num_classes, class_dim))
        self.mlp = mlp([descriptor_dim + class_dim, *hidden_sizes, 2 * embedding_dim], activation)
        last = self.mlp[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        if not bounded:
            nn.init.ones_(last.bias[:embedding_dim].detach())

    def forward(self, descriptor: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and offset, each [C, D], from a descriptor [Q]."""
        rows = torch.cat([descriptor.expand(len(self.classes), -1), self.classes], dim=1)  # [C, Q + D_e]
        gamma, beta = self.mlp(rows).chunk(2, dim=1)
        return (2 * gamma.sigmoid() if self.bounded else gamma), beta


@dataclass
class Prototypes:
    """What the two branches and the gate make of the anchors.

    Attributes:
        spectral_descriptor: q_spec, [2 D_c].
        spatial_descriptor: q_spa, [23 D_r].
        gamma: scales of the spectral and the spatial branch, each [C, D].
        beta: offsets of the spectral and the spatial branch, each [C, D].
        gate: alpha, [C].
        branches: P_spec, P_spa and P_dap, [3, C, D].
    """

    spectral_descriptor: Tensor
    spatial_descriptor: Tensor
    gamma: tuple[Tensor, Tensor]
    beta: tuple[Tensor, Tensor]
    gate: Tensor
    branches: Tensor

    @property
    def dap(self) -> Tensor:
        """P_dap, [C, D]."""
        return self.branches[2]


class DAP(nn.Module):
    """Embedding head, descriptor convolutions, both modulators and the gate. It is a part of the network that the
    network's own forward pass does not run.

    Args:
        num_classes: C.
        embedding_channels: of the map that the head reads.
        shallow_channels: C_s.
        deep_channels: C_d.
        embedding_dim: D.
        spectral_dim: D_c.
        spatial_dim: D_r.
        class_dim: D_e.
        hidden_sizes: of all three MLPs.
        activation: of all three MLPs.
        gate: `learned`, or one value for all classes: `fixed` 0.5, `spectral` 1, `spatial` 0.
        eps: inside the root of the deviations.
        detach: no gradient from descriptors into the backbone.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_channels: int,
        shallow_channels: int,
        deep_channels: int,
        embedding_dim: int,
        spectral_dim: int,
        spatial_dim: int,
        class_dim: int,
        hidden_sizes: Sequence[int],
        activation: Activation,
        gate: Gate,
        eps: float,
        detach: bool,
    ) -> None:
        super().__init__()
        check_choices(DAP.__init__, locals())
        self.gate_mode, self.eps, self.detach = gate, eps, detach
        spectral, spatial = 2 * spectral_dim, (sum(side * side for side in CELLS) + 2) * spatial_dim
        self.head = nn.Conv2d(embedding_channels, embedding_dim, 1)
        self.spectral_conv = nn.Conv2d(shallow_channels, spectral_dim, 1)
        self.spatial_conv = nn.Conv2d(deep_channels, spatial_dim, 1)
        shape = num_classes, class_dim, embedding_dim, hidden_sizes, activation
        self.spectral = Modulator(spectral, *shape, bounded=False)
        self.spatial = Modulator(spatial, *shape, bounded=True)
        self.gate = mlp([spectral + spatial, *hidden_sizes, num_classes], activation)
        last = self.gate[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)  # every class starts half-way between the branches
        nn.init.zeros_(last.bias)

    @property
    def descriptor_dim(self) -> int:
        """Length of both descriptors together."""
        first = self.gate[0]
        assert isinstance(first, nn.Linear)
        return first.in_features

    def embed(self, embedding: Tensor) -> Tensor:
        """Embeddings [B, D, h, w] of the decoder's output, not yet of unit length, in at least float32."""
        return _apply(self.head, embedding)

    def descriptors(self, output: Output) -> tuple[Tensor, Tensor]:
        """q_spec [2 D_c] and q_spa [23 D_r] of a batch."""
        assert output.shallow is not None
        assert output.deep is not None
        shallow, deep = output.shallow, output.deep
        if self.detach:
            shallow, deep = shallow.detach(), deep.detach()
        shallow, deep = _apply(self.spectral_conv, shallow), _apply(self.spatial_conv, deep)
        with full_precision(shallow):
            return spectral_descriptor(shallow, self.eps), spatial_descriptor(deep, self.eps)

    def forward(self, output: Output, anchors: Tensor) -> Prototypes:
        """Prototypes of a batch from its feature maps and the anchors [C, D]."""
        spectral, spatial = self.descriptors(output)
        with full_precision(anchors):
            gammas, betas = zip(self.spectral(spectral), self.spatial(spatial), strict=True)
            branches = modulate(anchors, torch.stack(gammas), torch.stack(betas))  # [2, C, D]
            gate = self._gate(torch.cat([spectral, spatial]))
            fused = fuse(gate, branches[0], branches[1])
        return Prototypes(spectral, spatial, gammas, betas, gate, torch.cat([branches, fused[None]]))

    def _gate(self, descriptor: Tensor) -> Tensor:
        if self.gate_mode == "learned":
            alpha: Tensor = self.gate(descriptor).sigmoid()
            return alpha
        return descriptor.new_full((len(self.spectral.classes),), _FIXED[self.gate_mode])
