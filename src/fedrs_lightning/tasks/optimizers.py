"""One optimiser for all visits of a rank, as good as new at the start of each."""

from __future__ import annotations

import copy
from typing import Any

from torch.optim import Optimizer


class ReusedOptimizer:
    """Gives the same optimiser again and again, without state and with the options it was made with.

    Args:
        optimizer: just made; its parameters stay the same tensors, whatever values are copied into them.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._options = [_options(group) for group in optimizer.param_groups]

    def fresh(self) -> Optimizer:
        """The optimiser, which now steps as one made anew would."""
        self.optimizer.state.clear()
        for group, options in zip(self.optimizer.param_groups, self._options, strict=True):
            for name in set(group) - set(options) - {"params"}:
                del group[name]
            group.update(copy.deepcopy(options))
        return self.optimizer


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Everything of a group but its parameters, copied: a learning rate may be a tensor."""
    return copy.deepcopy({name: value for name, value in group.items() if name != "params"})
