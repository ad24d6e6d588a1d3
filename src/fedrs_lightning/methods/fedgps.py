"""FedGPS: surrogate data and a look-ahead along the others' update (docs/methods.md; visitworld123/FedGPS)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrs_lightning.errors import ConfigError, check_choices
from fedrs_lightning.methods.base import Buffers, FedAvg, Weighting, stack
from fedrs_lightning.methods.per_client import client_ids, rows_of
from fedrs_lightning.methods.requirements import require_at_least_one, require_not_negative, require_positive
from fedrs_lightning.nn.precision import in_at_least_float32
from fedrs_lightning.nn.projection import last_linear, replace_layer
from fedrs_lightning.nn.prototypes import members, merged_means
from fedrs_lightning.nn.surgery import network_of
from fedrs_lightning.nn.surrogate import class_means, draw, supervised_contrast
from fedrs_lightning.nn.trainable import snapshot, trainable
from fedrs_lightning.types import Batch, Client, Local, Output, State, Upload

if TYPE_CHECKING:
    from fedrs_lightning.tasks.base import Task

Outputs = Literal["first", "all"]
SetPositives = Literal["drop", "same_labels"]

IDS, SHARES, SHARE = "fedgps/clients", "fedgps/shares", "fedgps/share"
UPDATE, OWN = "fedgps/update/", "fedgps/own/"
PROTOTYPES, SEEN, COUNTS = "fedgps/prototypes", "fedgps/seen", "fedgps/counts"
LABELS = "surrogate"
"""Entry of a batch with the classes of its last images, which are surrogates."""


class FedGPS(FedAvg):
    """Federated averaging with surrogate images in every batch, and gradients taken ahead, along the others' update.

    *Surrogate data.* C classes of images without real content, the same for all clients: a Gaussian a class, whose mean
    is a coarse random image. Surrogate class c is trained as class C + c of a network with 2C outputs. In every step as
    many surrogates s as real images x pass through the network together; f are their embeddings and SC is the
    supervised contrastive loss:

        L = CE(x) + a CE(s) + class_weight SC(f(x), stop(f(s))) + surrogate_weight SC(f(s)) + b |f(s) - P_y(s)|^2 / D

    In the first SC a real and a surrogate image of the same class are negatives. P are the global surrogate prototypes:
    per class the mean of all participants' surrogate embeddings in the round before, weighted by their counts. A class
    without one adds 0.

    *Look-ahead.* u is the last aggregated update. A client that has taken part before takes g = u, or, when it took
    part in the last round with share s and own update u_k, the part that is not its own: g = (u - s u_k) / (1 - s).
    Every gradient is taken at theta + rho g / (sum over tensors of |g^t|), and used at theta, clipped. Without a
    direction (alone in the last round, or g = 0) it is taken at theta.

    A client sends its model, and per class its mean surrogate embedding and count; the server works out u from the
    models. It sends the model, u, the prototypes and the client's last share. A client keeps its last own update.
    Predictions are those of the first C outputs.

    *Multi-label tasks are our extension.* Targets are padded to 2C, one-hot in the second half for surrogates. Real
    images have no single class: SC over them is dropped, or takes those with equal label sets as positives
    (`multilabel`).

    The released configuration reads surrogates from image folders whose making is not published; the paper draws them
    from Gaussians. Sizes and spreads of ours are suggestions. Not rebuilt: the released plain feature distance, whose
    weight is 0, and its triplet form of the last term, which is off.

    Args:
        surrogate: `gaussian`, or null: no surrogates, C outputs, and of the losses SC over real images alone.
        surrogate_weight_ce: a (released: 1).
        class_weight: weight of SC over all images (released: 1).
        surrogate_weight: weight of SC over surrogates (released: 0.1).
        prototype_weight: b (released: 0.1).
        temperature: of both SC (released: 0.07).
        rho: length of the look-ahead; 0 does not look ahead (released: 0.5).
        clip: largest norm of all gradients together, null for none (released: 10).
        class_match: real and surrogate images of the same class are positives (released: off; both branches of its
            switch compute the same thing).
        evaluate: `first` predicts among the C real outputs (ours); `all` among 2C, where a surrogate class is always
            wrong (released).
        multilabel: `drop` or `same_labels`, see above (ours).
        surrogate_side: pixels along a side of the coarse means (ours).
        surrogate_mean_std: spread of the means over pixels, in units of normalised images (ours).
        surrogate_noise_std: spread of the images of a class (ours).
        surrogate_seed: of the means; the run's seed does not enter, so that repeated runs share them.
        weighting: as in FedAvg (released: uniform).
        buffers: as in FedAvg.
    """

    streams = True

    def __init__(
        self,
        surrogate: Literal["gaussian"] | None = "gaussian",
        surrogate_weight_ce: float = 1.0,
        class_weight: float = 1.0,
        surrogate_weight: float = 0.1,
        prototype_weight: float = 0.1,
        temperature: float = 0.07,
        rho: float = 0.5,
        clip: float | None = 10.0,
        class_match: bool = False,
        evaluate: Outputs = "first",
        multilabel: SetPositives = "drop",
        surrogate_side: int = 8,
        surrogate_mean_std: float = 1.0,
        surrogate_noise_std: float = 0.5,
        surrogate_seed: int = 0,
        weighting: Weighting = "uniform",
        buffers: Buffers = "mean",
    ) -> None:
        super().__init__(weighting, buffers)
        check_choices(FedGPS.__init__, locals())
        if surrogate not in ("gaussian", None):
            raise ConfigError(f"surrogate must be gaussian or null, got '{surrogate}'")
        require_not_negative(
            surrogate_weight_ce=surrogate_weight_ce,
            class_weight=class_weight,
            surrogate_weight=surrogate_weight,
            prototype_weight=prototype_weight,
            rho=rho,
            surrogate_mean_std=surrogate_mean_std,
            surrogate_noise_std=surrogate_noise_std,
        )
        require_positive(temperature=temperature)
        require_positive("null does not clip", clip=clip)
        require_at_least_one(surrogate_side=surrogate_side)
        self.surrogate, self.surrogate_weight_ce, self.class_weight = surrogate, surrogate_weight_ce, class_weight
        self.surrogate_weight, self.prototype_weight, self.temperature = surrogate_weight, prototype_weight, temperature
        self.rho, self.clip, self.class_match = rho, clip, class_match
        self.evaluate, self.multilabel = evaluate, multilabel
        self.surrogate_side, self.surrogate_mean_std = surrogate_side, surrogate_mean_std
        self.surrogate_noise_std, self.surrogate_seed = surrogate_noise_std, surrogate_seed

    # Structure

    def check(self, task: Task) -> None:
        """Refuse an arg-max over all outputs where samples have several labels."""
        if task.label_kind == "several_classes" and self.evaluate == "all":
            raise ConfigError(
                f"FedGPS: evaluate: all takes the one best of 2C outputs, and {type(task).__name__} has several "
                "labels a sample; set method.init_args.evaluate: first"
            )

    def adapt(self, task: Task) -> None:
        """Give the classifier 2C outputs, of which the first C start as they would without; refuse a task that is no
        image classification, or whose last layer is not linear.
        """
        network = network_of(task)
        found = None if task.label_kind == "pixel_classes" else last_linear(network, task.head_keys())
        if found is None:
            raise ConfigError(
                f"FedGPS needs images with labels of their own and a linear last layer, which {type(task).__name__} "
                "does not have; its surrogate classes are not defined for pixels"
            )
        if self.surrogate is None:
            return
        name, old = found
        count = old.out_features
        wide = nn.Linear(old.in_features, 2 * count, bias=old.bias is not None)
        with torch.no_grad():
            wide.weight[:count].copy_(old.weight)
            if old.bias is not None:
                wide.bias[:count].copy_(old.bias)
        replace_layer(network, name, wide)
        if self.evaluate == "first":
            network.register_forward_hook(partial(_first_outputs, count))
        else:
            task.num_classes = 2 * count  # type: ignore[assignment]  # the metric counts as many

    def init_server(self, task: Task, clients: Sequence[Client]) -> State:
        """No update and no prototype yet; nobody has had a share."""
        state = {IDS: client_ids(clients), SHARES: torch.zeros(len(clients), dtype=torch.float64)}
        state |= {UPDATE + key: torch.zeros_like(value, device="cpu") for key, value in trainable(task).items()}
        if self.surrogate is not None:
            found = last_linear(network_of(task), task.head_keys())
            assert found is not None
            count, layer = found[1].out_features // 2, found[1]
            state[PROTOTYPES] = torch.zeros(count, layer.in_features, dtype=layer.weight.dtype)
            state[SEEN] = torch.zeros(count, dtype=torch.bool)
        return state

    def download(self, server: State, client_id: int) -> State:
        """The model, the last update, the prototypes, and this client's share in that update (0 when it was absent)."""
        sent = {key: value for key, value in server.items() if key.startswith(UPDATE) or key in (PROTOTYPES, SEEN)}
        return super().download(server, client_id) | sent | {SHARE: server[SHARES][rows_of(server[IDS], [client_id])]}

    # Client

    def on_local_start(self, local: Local) -> None:
        """Set out the direction of the look-ahead, and sums for the surrogates' means."""
        parameters = trainable(local.task)
        local.scratch["fedgps/received"] = snapshot(parameters)
        local.scratch["fedgps/direction"] = self._direction(local, list(parameters))
        if self.surrogate is not None:
            sums = torch.zeros_like(local.received[PROTOTYPES], dtype=torch.float64)
            local.scratch["fedgps/sums"] = sums
            local.scratch["fedgps/counts"] = torch.zeros(len(sums), dtype=torch.int64, device=sums.device)

    def _direction(self, local: Local, keys: Sequence[str]) -> list[Tensor] | None:
        """g^t over the sum of norms, or None where there is none."""
        share = float(local.received[SHARE])
        if share >= 1 or not all(OWN + key in local.memory for key in keys):
            return None
        ahead = [local.received[UPDATE + key] for key in keys]
        if share > 0:
            own = [local.memory[OWN + key] for key in keys]
            ahead = [(value - share * mine) / (1 - share) for value, mine in zip(ahead, own, strict=True)]
        length = torch.stack(torch._foreach_norm(ahead)).sum()
        return [value / length for value in ahead] if bool(length > 0) else None

    def local_step(self, local: Local, batch: Batch) -> dict[str, Tensor]:
        """A step with surrogates in the batch, whose gradient is taken further along the others' update."""
        if self.surrogate is not None:
            batch = self._with_surrogates(local, batch)
        direction, parameters = local.scratch["fedgps/direction"], trainable(local.task)
        if direction is not None:
            local.scratch["fedgps/here"] = snapshot(parameters)
            with torch.no_grad():
                torch._foreach_add_(list(parameters.values()), direction, alpha=self.rho)
        return super().local_step(local, batch)

    def before_step(self, local: Local) -> None:
        """Back to theta, bit for bit, with the gradient that was taken ahead of it, clipped."""
        parameters: list[Tensor] = list(trainable(local.task).values())
        if local.scratch["fedgps/direction"] is not None:
            torch._foreach_copy_(parameters, local.scratch["fedgps/here"])
        if self.clip is not None:
            nn.utils.clip_grad_norm_(parameters, self.clip)

    def loss(self, local: Local, batch: Batch, output: Output) -> dict[str, Tensor]:
        """The task's loss of the real images and the weighted terms of the surrogates, less those that do not apply."""
        features, labels = in_at_least_float32(output.embedding), batch["label"]
        if self.surrogate is None:
            contrast = self._contrast(features, features[:0], labels, labels.new_zeros(0, dtype=torch.int64), 0)
            return super().loss(local, batch, output) | {"contrast": self.class_weight * contrast}
        count, kinds, classes = len(labels), batch[LABELS], output.logits.shape[1] // 2
        real = Output(output.logits[:count], output.embedding[:count])
        surrogate = Output(output.logits[count:], output.embedding[count:])
        of_real, of_surrogates = labels, classes + kinds
        if labels.is_floating_point():
            of_real, of_surrogates = F.pad(labels, (0, classes)), members(of_surrogates, 2 * classes).float()
        apart = (in_at_least_float32(surrogate.embedding) - local.received[PROTOTYPES][kinds]).square().mean(1)
        known = local.received[SEEN][kinds]
        self._count(local, surrogate.embedding, kinds)
        terms = super().loss(local, {**batch, "label": of_real}, real)
        cross_entropy = local.task.criterion(surrogate, {**batch, "label": of_surrogates})
        terms["surrogate"] = self.surrogate_weight_ce * cross_entropy
        contrast = self._contrast(features[:count], features[count:], labels, kinds, classes)
        terms["contrast"] = self.class_weight * contrast
        contrast = supervised_contrast(features[count:], kinds, self.temperature)
        terms["surrogate_contrast"] = self.surrogate_weight * contrast
        terms["prototype"] = self.prototype_weight * torch.where(known, apart, 0.0).sum() / known.sum().clamp(min=1)
        return terms

    def _contrast(self, real: Tensor, surrogate: Tensor, labels: Tensor, kinds: Tensor, classes: int) -> Tensor:
        """SC of real and surrogate images together, without gradient through the surrogates."""
        features = torch.cat([real, surrogate.detach()])
        if not labels.is_floating_point():
            of_all = torch.cat([labels, kinds if self.class_match else kinds + classes])
            return supervised_contrast(features, of_all, self.temperature)
        if self.multilabel == "drop":
            return 0.0 * real.sum()
        positive = torch.zeros(len(features), len(features), dtype=torch.bool, device=real.device)
        positive[: len(real), : len(real)] = (labels[:, None] == labels).all(-1)
        positive[len(real) :, len(real) :] = kinds[:, None] == kinds
        return supervised_contrast(features, positive, self.temperature)

    def _with_surrogates(self, local: Local, batch: Batch) -> Batch:
        """The batch with as many surrogates behind its images."""
        image, count = batch["image"], len(local.received[PROTOTYPES])
        if "fedgps/means" not in local.scratch:
            form = count, image.shape[1], self.surrogate_side
            means = class_means(self.surrogate_seed, *form, self.surrogate_mean_std, image.device)
            local.scratch["fedgps/means"] = means
        kinds = torch.randint(0, count, (len(image),), device=image.device)
        size = (int(image.shape[2]), int(image.shape[3]))
        images = draw(local.scratch["fedgps/means"], kinds, size, self.surrogate_noise_std).to(image.dtype)
        return {**batch, "image": torch.cat([image, images]), LABELS: kinds}

    @torch.no_grad()
    def _count(self, local: Local, features: Tensor, kinds: Tensor) -> None:
        """Add surrogate embeddings to their classes' sums, by a product that gives the same bits on every run."""
        inside = members(kinds, len(local.scratch["fedgps/counts"]))  # [B, C]
        local.scratch["fedgps/sums"] += inside.double().T @ features.detach().double()
        local.scratch["fedgps/counts"] += inside.sum(0)

    def on_local_end(self, local: Local) -> None:
        """Keep the own update for the next round's look-ahead."""
        parameters = trainable(local.task)
        moved = torch._foreach_sub([value.detach() for value in parameters.values()], local.scratch["fedgps/received"])
        local.memory |= {OWN + key: value for key, value in zip(parameters, moved, strict=True)}
        local.log["fedgps/look_ahead"] = float(local.scratch["fedgps/direction"] is not None and self.rho > 0)

    def upload(self, local: Local) -> State:
        """Mean surrogate embedding and count of each class."""
        if self.surrogate is None:
            return {}
        counts: Tensor = local.scratch["fedgps/counts"]
        means = local.scratch["fedgps/sums"] / counts.clamp(min=1)[:, None]
        return {PROTOTYPES: means.to(local.received[PROTOTYPES].dtype), COUNTS: counts}

    # Server

    def aggregate(self, server: State, uploads: Sequence[Upload]) -> State:
        """The averaged model, its update, the participants' shares in it, and the prototypes."""
        state = super().aggregate(server, uploads)
        for key in uploads[0].parameters:
            state[UPDATE + key] = (state[key].double() - server[key].double()).to(server[key].dtype)
        shares = torch.tensor([upload.log["weight"] for upload in uploads], dtype=torch.float64)
        state[SHARES] = torch.zeros_like(server[SHARES]).index_copy(0, rows_of(server[IDS], uploads), shares)
        if PROTOTYPES in server:
            means, counts = stack(uploads, PROTOTYPES), stack(uploads, COUNTS)  # [K, C, D], [K, C]
            state[PROTOTYPES], seen = merged_means(means, counts, server[PROTOTYPES])
            state[SEEN] = server[SEEN] | seen
        return state


def _first_outputs(count: int, network: nn.Module, inputs: tuple[Any, ...], output: Output) -> Output:
    """Outside training, shows the first C outputs alone."""
    return output if network.training else replace(output, logits=output.logits[:, :count])
