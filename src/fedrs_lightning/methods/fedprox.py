"""FedProx: a penalty on the distance to the received model (Li et al., 2020, arXiv:1812.06127; docs/methods.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrs_lightning.methods.base import Buffers, FedAvg, Weighting
from fedrs_lightning.methods.requirements import require_not_negative
from fedrs_lightning.nn.trainable import squared_distance, trainable

if TYPE_CHECKING:
    from fedrs_lightning.types import Local


class FedProx(FedAvg):
    """Federated averaging of clients that are held near the model they received.

    With w the received model, fixed during local training, a client minimises

        L_k = task loss + mu / 2 * sum over trainable tensors t of |theta^t - w^t|^2

    Biases and batch-norm scales count, buffers do not. The penalty is not put through the backward pass: `before_step`
    adds its gradient, mu (theta - w), which is the same. So it passes through the moments of Adam, as in the released
    PyTorch code (QinbinLi/MOON); the TensorFlow original adds it inside a plain SGD step, where both agree. Its value
    is computed once, after the last step, and logged as `fedprox/penalty`.

    Args:
        mu: weight of the penalty, at least 0; 0 is FedAvg. The authors find no value that works everywhere and try
            0.001, 0.01, 0.1, 0.5 and 1; the default is ours.
        weighting: as in FedAvg.
        buffers: as in FedAvg.
    """

    def __init__(self, mu: float = 0.01, weighting: Weighting = "samples", buffers: Buffers = "mean") -> None:
        super().__init__(weighting, buffers)
        require_not_negative("0 is FedAvg", mu=mu)
        self.mu = mu

    def on_local_start(self, local: Local) -> None:
        """Remember w beside theta."""
        local.scratch["fedprox"] = [(theta, theta.detach().clone()) for theta in trainable(local.task).values()]

    def before_step(self, local: Local) -> None:
        """gradient <- gradient + mu (theta - w)."""
        for theta, w in local.scratch["fedprox"]:
            if theta.grad is not None:
                theta.grad.add_(theta - w, alpha=self.mu)

    def on_local_end(self, local: Local) -> None:
        """Log the penalty at the end of local training."""
        theta, w = zip(*local.scratch["fedprox"], strict=True)
        local.log["fedprox/penalty"] = float(0.5 * self.mu * squared_distance(theta, w))
