"""Feature-wise affine modulation, and where it goes in a residual network (FedMAD; docs/deviations.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Literal, get_args

import torch
from lightning.fabric.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torchvision.models.resnet import BasicBlock, Bottleneck

from fedrs_lightning.errors import ConfigError, one_of
from fedrs_lightning.nn.surgery import Where, attach, like

Placement = Literal["pre_block", "pre_bn", "pre_conv2", "post_bn"]
Which = Literal["bn1", "bn2", "bn3", "all"]
Order = Literal["stage_round_robin", "first_n", "last_n"]

CHILD = "modulation"
"""Name of the inserted child: `layer2.1.modulation.gamma`, or `layer2.1.bn3.modulation.gamma`."""


class Modulation(nn.Module):
    """y = gamma * x + beta for each channel.

    Args:
        num_channels: C.
        gamma: initial scale.
        beta: initial offset.
        device: of the parameters.
        dtype: of the parameters.

    Attributes:
        gamma: [C].
        beta: [C].
        beta_is_dead: a batch norm behind this place removes every offset, so beta has no gradient in training mode.
    """

    def __init__(
        self,
        num_channels: int,
        gamma: float = 1.0,
        beta: float = 0.0,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((num_channels,), gamma, device=device, dtype=dtype))
        self.beta = nn.Parameter(torch.full((num_channels,), beta, device=device, dtype=dtype))
        self.beta_is_dead = False

    def forward(self, x: Tensor) -> Tensor:
        """Modulate [B, C, ...]; the result has the input's dtype and memory format.

        Under autocast the product is taken in the parameters' precision: bfloat16 has no number between 1 and 1.0078,
        so rounding gamma first would hide most of what a client learns.
        """
        shape = (1, -1, *[1] * (x.dim() - 2))
        return torch.addcmul(self.beta.view(shape), x, self.gamma.view(shape)).to(x.dtype)

    def extra_repr(self) -> str:
        """Channels, and whether the offset has an effect."""
        return f"{self.gamma.numel()}" + (", beta_is_dead=True" if self.beta_is_dead else "")


@dataclass(frozen=True)
class Block:
    """A residual block of the network: its name, the name of the stage that holds it, the module."""

    name: str
    stage: str
    module: BasicBlock | Bottleneck


def residual_blocks(model: nn.Module) -> list[Block]:
    """All residual blocks in the order of the network."""
    return [
        Block(name, name.rpartition(".")[0], module)
        for name, module in model.named_modules()
        if isinstance(module, (BasicBlock, Bottleneck))
    ]


def insert_modulation(
    model: nn.Module,
    count: int,
    placement: Placement = "pre_block",
    which: Which = "all",
    order: Order | Sequence[str] = "stage_round_robin",
    gamma: float = 1.0,
    beta: float = 0.0,
) -> list[str]:
    """Modulate `count` residual blocks of a ResNet in place; return the names of the new layers.

    No random number is drawn, the existing state entries keep their names, and with gamma 1 and beta 0 the network
    computes what it did before.

    Args:
        model: network with torchvision `BasicBlock`s or `Bottleneck`s.
        count: number of modulated blocks; 0 changes nothing.
        placement: `pre_block`: the map that enters the block, main path and skip alike. `pre_bn`: between a convolution
            and its batch norm, where training mode cancels it (a warning says so). `pre_conv2`: the input of `conv2`.
            `post_bn`: behind the last batch norm of the main path, before the skip is added.
        which: batch norms of the main path that `pre_bn` takes; `all` puts several layers into each block.
        order: `stage_round_robin`: cycle over the stages through the blocks with an identity skip, then the others.
            `first_n`, `last_n`: from the input, from the output. Or the names of exactly `count` blocks.
        gamma: initial scale.
        beta: initial offset.

    Raises:
        ConfigError: more layers than blocks, an unknown block, placement or batch norm, or a block modulated already.
    """
    one_of("placement", placement, get_args(Placement))
    blocks = _choose(residual_blocks(model), count, order)
    if blocks and placement == "pre_bn":
        rank_zero_warn(
            "placement: pre_bn puts the modulation directly in front of a batch norm, which cancels it in training: "
            "the gradient of beta is rounding noise and that of gamma nearly so, and Adam enlarges both to full steps. "
            "Use placement: pre_block."
        )
    sites = [site for block in blocks for site in _sites(block, placement, which)]
    for site in sites:
        if hasattr(site.host, CHILD):
            raise ConfigError(f"placement: {site.name} is modulated already; insert modulation once")
    for site in sites:
        layer = Modulation(site.num_channels, gamma, beta, **like(site.host))
        layer.beta_is_dead = site.beta_is_dead
        attach(site.host, CHILD, layer, site.where)
    return [f"{site.name}.{CHILD}" for site in sites]


@dataclass(frozen=True)
class _Site:
    name: str
    host: nn.Module
    where: Where
    num_channels: int
    beta_is_dead: bool


def _sites(block: Block, placement: Placement, which: Which) -> Iterator[_Site]:
    module = block.module
    norms = [name for name, _ in module.named_children() if name.startswith("bn")]
    if placement == "pre_block":
        skip = [] if module.downsample is None else module.downsample.children()  # an identity cancels nothing
        dead = _offset_is_cancelled(module.conv1, module.bn1) and _offset_is_cancelled(*skip)
        yield _Site(block.name, module, "input", module.conv1.in_channels, dead)
    elif placement == "pre_conv2":
        dead = _offset_is_cancelled(module.conv2, module.bn2)
        yield _Site(f"{block.name}.conv2", module.conv2, "input", module.conv2.in_channels, dead)
    elif placement == "post_bn":
        last = norms[-1]
        yield _Site(f"{block.name}.{last}", module.get_submodule(last), "output", _width(module, last), False)
    else:
        if which != "all" and which not in norms:
            kind = f"a {type(module).__name__} with {', '.join(norms)}"
            raise ConfigError(f"which: '{which}' is not in {block.name}, {kind}")
        for norm in norms if which == "all" else [which]:
            host = module.get_submodule(norm)
            yield _Site(f"{block.name}.{norm}", host, "input", _width(module, norm), _offset_is_cancelled(host))


def _width(block: nn.Module, norm: str) -> int:
    """Channels at a batch norm: what the convolution of the same number puts out, whatever the kind of norm."""
    conv = block.get_submodule(norm.replace("bn", "conv"))
    assert isinstance(conv, nn.Conv2d)
    return conv.out_channels


def _offset_is_cancelled(*layers: nn.Module) -> bool:
    """Whether one constant a channel, added in front of these layers, is gone behind them in training mode.

    Batch norm subtracts the channel's mean, and with it any constant. A convolution hands a constant on as a constant
    unless zeros at the border tell the pixels apart. On maps of one pixel all pixels are border, and a padded
    convolution is alike for them all: this is not looked at, since a layer does not know the size of its maps.
    """
    for layer in layers:
        if isinstance(layer, (_BatchNorm, _InstanceNorm)):
            return True
        if not (isinstance(layer, nn.Conv2d) and _hands_constants_on(layer)):
            return False
    return False


def _hands_constants_on(conv: nn.Conv2d) -> bool:
    if conv.padding_mode != "zeros":
        return True
    if isinstance(conv.padding, str):
        return conv.padding == "valid" or set(conv.kernel_size) == {1}
    return not any(conv.padding)


def _choose(blocks: list[Block], count: int, order: Order | Sequence[str]) -> list[Block]:
    if count < 0:
        raise ConfigError(f"number of modulated blocks: {count} is negative; 0 switches modulation off")
    if count > len(blocks):
        have = f"the network has {len(blocks)} residual blocks"
        raise ConfigError(f"number of modulated blocks: {count}, but {have}; ask for at most that")
    if order == "first_n":
        return blocks[:count]
    if order == "last_n":
        return blocks[len(blocks) - count :]
    if order == "stage_round_robin":
        return _round_robin(blocks)[:count]
    if isinstance(order, str):
        raise ConfigError(f"order: '{order}' is not one of {', '.join(get_args(Order))}, nor a list of block names")
    return _named(blocks, count, order)


def _round_robin(blocks: list[Block]) -> list[Block]:
    stages: dict[str, list[Block]] = {}
    for block in blocks:
        stages.setdefault(block.stage, [])
        if block.module.downsample is None:
            stages[block.stage].append(block)
    cycled = [block for block in chain.from_iterable(zip_longest(*stages.values())) if block is not None]
    return cycled + [block for block in blocks if block.module.downsample is not None]


def _named(blocks: list[Block], count: int, names: Sequence[str]) -> list[Block]:
    known = {block.name: block for block in blocks}
    for name in names:
        if name not in known:
            raise ConfigError(f"order: the network has no block '{name}'; it has {', '.join(known)}")
    if len(set(names)) != count or len(names) != count:
        listed = f"{len(set(names))} different blocks are listed"
        raise ConfigError(f"order: {listed}, {count} asked for; make the two numbers equal")
    return [known[name] for name in names]
