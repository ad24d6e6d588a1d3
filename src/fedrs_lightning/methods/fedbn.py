"""FedBN: normalisation layers stay on the client (Li et al., 2021, arXiv:2102.07623; docs/methods.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedrs_lightning.errors import ConfigError, check_choices, one_of
from fedrs_lightning.methods.base import Buffers, FedAvg, Weighting
from fedrs_lightning.nn.surgery import buffer_keys, keys_of, parameter_keys

if TYPE_CHECKING:
    from fedrs_lightning.tasks.base import Task

What = Literal["all", "statistics_only", "affine_only"]
Select = Literal["by_type", "by_name"]
Norm = Literal["batch", "instance", "group", "layer"]

_NORMS: dict[str, type[nn.Module]] = {
    "batch": _BatchNorm,
    "instance": _InstanceNorm,
    "group": nn.GroupNorm,
    "layer": nn.LayerNorm,
}


class FedBN(FedAvg):
    """Federated averaging of everything but the normalisation layers.

    Each client keeps its own weights, biases, running statistics and counters of these layers for the whole run, also
    over rounds in which it does not take part. There is no global model: evaluation composes one per client.

    Args:
        what: `all` entries of the layers, `statistics_only` (buffers) or `affine_only` (weight and bias).
        select: `by_type` of layer. `by_name` takes the entries with "bn" in their name, as the authors' code does; that
            misses the skip paths of a ResNet, and is here for comparison only.
        norms: which layers count under `by_type`. A transformer has layer normalisation and hardly any batch norm, so
            that the default makes nearly FedAvg of it.
        weighting: as in FedAvg. The authors' code weights clients equally.
        buffers: of the other layers, as in FedAvg.
    """

    def __init__(
        self,
        what: What = "all",
        select: Select = "by_type",
        norms: Sequence[Norm] = ("batch",),
        weighting: Weighting = "samples",
        buffers: Buffers = "mean",
    ) -> None:
        super().__init__(weighting, buffers)
        check_choices(FedBN.__init__, locals())
        for norm in norms:
            one_of("norms", norm, _NORMS)
        self.what, self.select, self.norms = what, select, tuple(norms)

    def adapt(self, task: Task) -> None:
        """Insert nothing; refuse a network without any such layer, on which this would be FedAvg."""
        if self.norms and not self.norm_keys(task):
            raise ConfigError(
                f"{type(self).__name__}: the network has no entries that what={self.what}, select={self.select}, "
                f"norms={list(self.norms)} would keep private; choose the layers it has (norms: {', '.join(_NORMS)})"
            )

    def private_keys(self, task: Task) -> set[str]:
        """Those of FedAvg and of the normalisation layers."""
        return super().private_keys(task) | self.norm_keys(task)

    def norm_keys(self, task: Task) -> set[str]:
        """`model/*` keys that `what`, `select` and `norms` name."""
        if self.select == "by_name":
            keys = {key for key in task.model_state() if "bn" in key.removeprefix("model/")}
        else:
            keys = keys_of(task, *(_NORMS[norm] for norm in self.norms))
        if self.what == "statistics_only":
            return keys & buffer_keys(task)
        if self.what == "affine_only":
            return keys & parameter_keys(task)
        return keys
