"""FedDC: clients keep their drift and correct for it (Gao et al., 2022, arXiv:2203.11751; docs/methods.md)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from fedrs_lightning.errors import check_choices
from fedrs_lightning.methods.base import Buffers, FedAvg
from fedrs_lightning.methods.per_client import client_ids, client_samples, rows_of
from fedrs_lightning.methods.requirements import require_not_negative, require_positive
from fedrs_lightning.nn.trainable import snapshot, squared_distance, trainable
from fedrs_lightning.states import entries, numerators, weighted_sum
from fedrs_lightning.types import Client, Local, State, Upload

if TYPE_CHECKING:
    from fedrs_lightning.tasks.base import Task

ServerRule = Literal["released", "paper"]
StateScale = Literal["step_count", "none"]

IDS, SIZES, SIZE = "feddc/clients", "feddc/sizes", "feddc/size"
STATE, DRIFT, CHANGE = "feddc/state/", "feddc/drift/", "feddc/change/"


class FedDC(FedAvg):
    """Federated averaging with a drift variable h_k and a gradient state c_k on every client, each a model in size.

    With w the received model, K clients, q_k = K n_k / (n_1 + ... + n_K) and alpha_k = alpha / q_k, a client minimises

        L_k = task loss + alpha_k / 2 |theta - (w - h_k)|^2 + <theta, c / q_k - c_k>

    over its trainable tensors; `before_step` adds the gradients of both terms, alpha_k (theta - (w - h_k)) and
    c / q_k - c_k, and then clips all. After M steps of learning rate eta, with Delta = theta_k - w,

        h_k <- h_k + Delta,    c_k' = c_k - c / q_k - Delta / (M eta)
        c   <- c + 1/K sum over participants of q_k (c_k' - c_k)

    and the server takes

        released:   w <- mean over participants of theta_k + mean over ALL clients of h_k
        paper (7):  w <- sum over participants of n_k / n (theta_k + h_k)

    which agree when all clients take part and hold equally many images. h_k and c_k stay on a client over rounds
    without it, and so does its share of the mean drift. Batch-norm statistics are averaged without drift, with the
    weights of the parameters.

    A client sends its model and q_k (c_k' - c_k), and h_k under the paper's rule. Under the released rule the server
    knows how h_k changed: by theta_k - w. It sends its model, c and q_k.

    Delta / (M eta) is a mean gradient for plain SGD only; with Adam it is hundreds of times larger, and the linear term
    then rules the loss. The formula is kept, with a warning; `state_scale: none` drops the term. Weight decay of the
    optimiser acts outside L_k. Both terms are logged after local training, as `feddc/penalty` and `feddc/correction`.

    Args:
        alpha: weight of the penalty, at least 0 (released scripts: 0.01 on CIFAR, 0.1 on MNIST).
        server_rule: see above (default: released, which published numbers come from).
        clip: largest norm of all gradients together, null for none (released code: 10).
        state_scale: `step_count` as above with M the client's own number of steps; `none` leaves c_k and c at 0 and
            sends neither. The released scripts take M from the mean client size, which is the same for equal sizes.
        buffers: as in FedAvg.
    """

    def __init__(
        self,
        alpha: float = 0.01,
        server_rule: ServerRule = "released",
        clip: float | None = 10.0,
        state_scale: StateScale = "step_count",
        buffers: Buffers = "mean",
    ) -> None:
        super().__init__("uniform" if server_rule == "released" else "samples", buffers)
        check_choices(FedDC.__init__, locals())
        require_not_negative(alpha=alpha)
        require_positive("null does not clip", clip=clip)
        self.alpha, self.server_rule, self.clip, self.state_scale = alpha, server_rule, clip, state_scale

    def init_server(self, task: Task, clients: Sequence[Client]) -> State:
        """c = 0, the mean drift of all clients (released rule), and every client's q_k."""
        samples = client_samples(clients)
        state = {IDS: client_ids(clients), SIZES: len(clients) * samples / samples.sum()}
        names = (STATE, DRIFT) if self.server_rule == "released" else (STATE,)
        own = trainable(task).items()
        return state | {name + key: torch.zeros_like(value, device="cpu") for name in names for key, value in own}

    def download(self, server: State, client_id: int) -> State:
        """The model, c and this client's q_k."""
        size = server[SIZES][rows_of(server[IDS], [client_id])]  # [1]
        state = {key: value for key, value in server.items() if key.startswith(STATE)}
        return super().download(server, client_id) | {SIZE: size} | state

    # Client

    def on_local_start(self, local: Local) -> None:
        """Set out w, h_k, w - h_k and c / q_k - c_k."""
        if self.state_scale == "step_count" and not isinstance(local.optimizer, torch.optim.SGD):
            warnings.warn(
                f"FedDC's state is a mean gradient for SGD only; with {type(local.optimizer).__name__} its linear "
                "term can outweigh the loss. Set optimizer: torch.optim.SGD without momentum, or "
                "method.init_args.state_scale: none",
                stacklevel=2,
            )
        parameters = trainable(local.task)
        size = float(local.received[SIZE])
        received = snapshot(parameters)
        drift, state = (_of_client(local, name, parameters) for name in (DRIFT, STATE))
        centre = torch._foreach_sub(received, drift)  # w - h_k
        shared = [local.received[STATE + key] for key in parameters]
        pull = torch._foreach_sub(torch._foreach_div(shared, size), state)  # c / q_k - c_k
        local.scratch |= {"feddc/received": received, "feddc/centre": centre, "feddc/pull": pull, "feddc/drift": drift}
        alpha = self.alpha / size
        constant = torch._foreach_sub(pull, torch._foreach_mul(centre, alpha))
        local.scratch |= {
            "feddc/size": size,
            "feddc/alpha": alpha,
            "feddc/terms": list(zip(parameters.values(), constant, strict=True)),
        }

    def before_step(self, local: Local) -> None:
        """gradient <- gradient + alpha_k (theta - (w - h_k)) + c / q_k - c_k, then clip.

        All but alpha_k theta is constant in local training: (c / q_k - c_k) - alpha_k (w - h_k).
        """
        for theta, constant in local.scratch["feddc/terms"]:
            if theta.grad is not None:
                theta.grad.add_(theta, alpha=local.scratch["feddc/alpha"]).add_(constant)
        if self.clip is not None:
            nn.utils.clip_grad_norm_([theta for theta, _ in local.scratch["feddc/terms"]], self.clip)

    def on_local_end(self, local: Local) -> None:
        """Take h_k and c_k further, and log both terms."""
        parameters, scratch = trainable(local.task), local.scratch
        size, values = scratch["feddc/size"], [parameter.detach() for parameter in parameters.values()]
        penalty = 0.5 * self.alpha / size * squared_distance(values, scratch["feddc/centre"])
        inner = [(value.double() * pull).sum() for value, pull in zip(values, scratch["feddc/pull"], strict=True)]
        read = torch.stack([penalty.double(), torch.stack(inner).sum()]).tolist()  # a device is asked once
        local.log |= dict(zip(("feddc/penalty", "feddc/correction"), read, strict=True))
        moved = torch._foreach_sub(values, scratch["feddc/received"])  # Delta
        drift = torch._foreach_add(scratch["feddc/drift"], moved)
        if self.state_scale == "step_count":
            # c_k' - c_k = -c / q_k - Delta / (M eta)
            shared = [local.received[STATE + key] for key in parameters]
            change = list(torch._foreach_neg(torch._foreach_div(shared, size)))
            factor = -1 / (local.num_steps * local.learning_rate) if local.learning_rate else 0.0
            torch._foreach_add_(change, moved, alpha=factor)
        else:
            change = [torch.zeros_like(value) for value in moved]
        state = torch._foreach_add(_of_client(local, STATE, parameters), change)
        local.memory |= {DRIFT + key: value for key, value in zip(parameters, drift, strict=True)}
        local.memory |= {STATE + key: value for key, value in zip(parameters, state, strict=True)}
        scratch["feddc/change"] = torch._foreach_mul(change, size)

    def upload(self, local: Local) -> State:
        """q_k (c_k' - c_k), and h_k under the paper's rule."""
        keys = list(trainable(local.task))
        state: State = {}
        if self.state_scale == "step_count":
            state |= {CHANGE + key: value for key, value in zip(keys, local.scratch["feddc/change"], strict=True)}
        if self.server_rule == "paper":
            state |= {DRIFT + key: local.memory[DRIFT + key] for key in keys}
        return state

    # Server

    def aggregate(self, server: State, uploads: Sequence[Upload]) -> State:
        """The averaged model corrected by the drift, the next c and the next mean drift."""
        weights, state = self.weights(server, uploads), super().aggregate(server, uploads)
        count, ones = len(server[IDS]), torch.ones(len(uploads), dtype=torch.float64)

        factors, divisor = numerators(weights, uploads)

        def total(key: str, weights: Tensor, divisor: float = 1.0) -> Tensor:
            return weighted_sum(entries(uploads, key), weights, torch.float64, divisor)

        for key in uploads[0].parameters:
            old = server[STATE + key]
            if self.state_scale == "step_count":
                state[STATE + key] = (old.double() + total(CHANGE + key, ones) / count).to(old.dtype)
            mean = total(key, factors, divisor)
            if self.server_rule == "released":
                gained = len(uploads) / count * (mean - server[key].double())  # 1/K sum of (theta_k - w)
                drift = server[DRIFT + key].double() + gained
                state[DRIFT + key] = drift.to(server[DRIFT + key].dtype)
            else:
                drift = total(DRIFT + key, weights)
            state[key] = (mean + drift).to(server[key].dtype)
        return state


def _of_client(local: Local, name: str, parameters: dict[str, nn.Parameter]) -> list[Tensor]:
    """This client's h_k or c_k; zero before its first round."""
    memory = local.memory
    return [memory[name + key] if name + key in memory else torch.zeros_like(p) for key, p in parameters.items()]
