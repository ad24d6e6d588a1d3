"""FedDAP: class prototypes that adapt to a client's domain (docs/methods.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedrs_lightning.errors import ConfigError, check_choices
from fedrs_lightning.methods.base import Buffers, FedAvg, Weighting, normalise, num_samples
from fedrs_lightning.methods.per_client import client_ids, rows_of
from fedrs_lightning.methods.requirements import require_at_least_one, require_not_negative, require_positive
from fedrs_lightning.nn.clustering import finch, kmeans, nearest_cluster, zscore
from fedrs_lightning.nn.dap import DAP, Activation, Gate, drift, smooth
from fedrs_lightning.nn.precision import full_precision
from fedrs_lightning.nn.prototypes import (
    ClassMeans,
    cosine_cross_entropy,
    cosines,
    resize_labels,
    supervised_labels,
    update_anchors,
)
from fedrs_lightning.nn.surgery import MODEL, like, network_of
from fedrs_lightning.seeding import torch_stream
from fedrs_lightning.states import entries, select, under, weighted_sum
from fedrs_lightning.types import Batch, Client, Local, Output, State, Upload

if TYPE_CHECKING:
    from fedrs_lightning.tasks.base import Task

Clustering = Literal["kmeans", "finch"]
Convs = Literal["shared", "local"]
Source = Literal["training_batches", "statistics_pass"]
Reduction = Literal["sum", "mean"]
AnchorSource = Literal["after_training", "last_epoch"]
Scaling = Literal["zscore", "balanced", "none"]

CHILD = "feddap"
"""Name of the method's layers in the network: `model/feddap.*`."""

CLIENTS, ANCHORS, VALID = "feddap/clients", "feddap/anchors", "feddap/valid"
DESCRIPTOR, DESCRIPTORS, DESCRIBED = "feddap/descriptor", "feddap/descriptors", "feddap/described"
CLUSTER, PENDING = "feddap/cluster", "feddap/pending"
SUMS, COUNTS, PIXELS = "feddap/sums", "feddap/counts", "feddap/pixels"
MODULATORS, GATE, SENT = "feddap/modulators/", "feddap/gate/", "feddap/sent/"
BRANCHES = ("spec", "spa", "dap")
ADAPTERS = ("spectral", "spatial", "gate")
"""Layers that stay on the client."""


class FedDAP(FedAvg):
    """Federated averaging with domain-adaptive class prototypes, for segmentation.

    After a note on an ECCV 2026 paper whose equations are known in part only; what it leaves open is rebuilt here and
    has no default. **It is not the FedDAP of CVPR 2026**, which learns domain-aware prototypes for classification.

    The server keeps one anchor a class, P_c^inv, the direction of the mean pixel embedding over all clients. A client
    modulates it twice, by a spectral descriptor of its shallow features and a spatial one of its deep features, and a
    gate of both weighs the results, class by class:

        P_c^spec = Norm(gamma_c^spec P_c^inv + beta_c^spec),   P_c^spa = Norm(gamma_c^spa P_c^inv + beta_c^spa)
        P_c^dap  = Norm(alpha_c P_c^spec + (1 - alpha_c) P_c^spa),   alpha = sigmoid(MLP([q_spec, q_spa]))

    and pixels, embedded by a head on the decoder's output, are pulled to both kinds of prototypes, with CE the
    cross-entropy over cosines / temperature and the mean over the pixels whose class has an anchor:

        L = L_seg + lambda_dap CE(v, P^dap) + lambda_inv CE(v, P^inv) + lambda_drift sum over b of (1 - <P^b, P^inv>)

    Modulators and gate stay on the client. Every `sync_every` rounds the server clusters the clients by their smoothed
    descriptors and averages the modulators within each cluster and the gate over all; a client gets them at its next
    round, also one that was absent, which takes those of the cluster nearest to its last descriptor. A client without a
    descriptor takes the gate alone. Predictions use neither: there is one global model. Beside parameters, a client
    sends sums and counts of its pixels' embeddings and one descriptor, which depend on its data; no formal privacy is
    claimed.

    In the first `anchor_warmup_rounds` rounds all three terms are 0. Classes never seen take part in nothing.

    Args:
        temperature: tau > 0 of both cross-entropies (not in the source; suggestion 0.1).
        lambda_dap: weight of the supervision by P^dap; 0 switches it off (suggestion 0.5).
        lambda_inv: weight of the supervision by the anchors; 0 switches it off (suggestion 0.5).
        lambda_drift: weight of the drift penalty; 0 switches it off (suggestion 0.1).
        sync_every: R, rounds between synchronisations; null never synchronises (suggestion 5).
        smoothing: rho in [0, 1), share of the old descriptor at every step (suggestion 0.9).
        clustering: `kmeans`, or `finch`, which finds the number of clusters itself (suggestion kmeans).
        num_clusters: of k-means, the number of domains (suggestion 2 for two domains); null for finch.
        embedding_dim: D (suggestion 256).
        spectral_dim: D_c, output channels of the spectral convolution (suggestion 64).
        spatial_dim: D_r, output channels of the spatial convolution (suggestion 64).
        class_dim: D_e, length of a class embedding (suggestion 64).
        hidden_sizes: hidden layers of modulators and gate (suggestion one of 256).
        activation: of modulators and gate: relu, gelu, silu or tanh (suggestion relu).
        eps: inside the root of the descriptors' deviations (suggestion 1e-5).
        gate: `learned`, or for ablations the same for all classes: `fixed` 0.5, `spectral` 1, `spatial` 0.
        descriptor_convs: the two 1x1 convolutions are part of the `shared` model, so that all clients describe their
            data alike, or `local`.
        descriptor_source: the uploaded descriptor follows the `training_batches`, or a `statistics_pass` over the
            client's data with the received model in evaluation mode, which batch norm does not level.
        detach_descriptors: no gradient from the descriptors into the backbone (ours).
        drift_reduction: `sum` over the three prototypes of a class, or `mean`.
        anchor_warmup_rounds: first rounds without the three terms, at least 1: round 1 has no anchors (ours).
        anchor_source: pixels are summed in a pass `after_training` (evaluation mode, no augmentation), or in the
            batches of the `last_epoch`, which costs no pass.
        cluster_weights: weights of clients within a cluster and in the gate's mean: `samples` or `uniform`.
        descriptor_scaling: before clustering: `zscore` of each entry over the participants; `balanced`, where the two
            descriptors then count alike, although the spatial one has many more entries (ours); or `none`.
        weighting: as in FedAvg.
        buffers: as in FedAvg.
    """

    streams = True
    needs_labels = "pixel_classes"

    def __init__(
        self,
        temperature: float,
        lambda_dap: float,
        lambda_inv: float,
        lambda_drift: float,
        sync_every: int | None,
        smoothing: float,
        clustering: Clustering,
        num_clusters: int | None,
        embedding_dim: int,
        spectral_dim: int,
        spatial_dim: int,
        class_dim: int,
        hidden_sizes: list[int],
        activation: Activation,
        eps: float,
        gate: Gate = "learned",
        descriptor_convs: Convs = "shared",
        descriptor_source: Source = "training_batches",
        detach_descriptors: bool = True,
        drift_reduction: Reduction = "sum",
        anchor_warmup_rounds: int = 1,
        anchor_source: AnchorSource = "after_training",
        cluster_weights: Weighting = "samples",
        descriptor_scaling: Scaling = "zscore",
        weighting: Weighting = "samples",
        buffers: Buffers = "mean",
    ) -> None:
        super().__init__(weighting, buffers)
        check_choices(FedDAP.__init__, locals())
        off = "0 switches the term off"
        require_not_negative(off, lambda_dap=lambda_dap, lambda_inv=lambda_inv, lambda_drift=lambda_drift)
        require_positive(temperature=temperature, eps=eps)
        if not 0 <= smoothing < 1:
            raise ConfigError(f"smoothing: {smoothing} is not in [0, 1); 0 keeps the last batch alone")
        require_at_least_one("null never synchronises", sync_every=sync_every)
        require_at_least_one(embedding_dim=embedding_dim, spectral_dim=spectral_dim, spatial_dim=spatial_dim)
        require_at_least_one(class_dim=class_dim, hidden_sizes=min(hidden_sizes, default=None))
        require_at_least_one(num_clusters=num_clusters, anchor_warmup_rounds=anchor_warmup_rounds)
        if (clustering == "kmeans") == (num_clusters is None):
            remedy = "kmeans needs a number" if clustering == "kmeans" else "finch finds the number itself, so set null"
            raise ConfigError(f"num_clusters: {num_clusters} with clustering: {clustering}; {remedy}")
        self.temperature, self.lambda_dap = temperature, lambda_dap
        self.lambda_inv, self.lambda_drift = lambda_inv, lambda_drift
        self.sync_every, self.smoothing = sync_every, smoothing
        self.clustering, self.num_clusters = clustering, num_clusters
        self.embedding_dim, self.class_dim = embedding_dim, class_dim
        self.spectral_dim, self.spatial_dim = spectral_dim, spatial_dim
        self.hidden_sizes, self.activation, self.eps, self.gate = list(hidden_sizes), activation, eps, gate
        self.descriptor_convs, self.descriptor_source = descriptor_convs, descriptor_source
        self.detach_descriptors, self.drift_reduction = detach_descriptors, drift_reduction
        self.anchor_warmup_rounds, self.anchor_source = anchor_warmup_rounds, anchor_source
        self.cluster_weights, self.descriptor_scaling = cluster_weights, descriptor_scaling

    # Structure

    def adapt(self, task: Task) -> None:
        """Add the embedding head, the descriptor convolutions, the modulators and the gate as `task.model.feddap`;
        refuse a network without shallow and deep feature maps, which is none for segmentation.
        """
        network = network_of(task)
        maps = "embedding", "shallow", "deep"
        embedding, shallow, deep = (getattr(network, f"{name}_channels", 0) for name in maps)
        if not (embedding and shallow and deep) or task.label_kind != "pixel_classes":
            found = type(task).__name__
            raise ConfigError(f"FedDAP needs a segmentation task with shallow and deep features; {found} has none")
        count: int = task.num_classes  # type: ignore[assignment]
        dims = self.embedding_dim, self.spectral_dim, self.spatial_dim, self.class_dim
        eps, detach = self.eps, self.detach_descriptors
        layers = DAP(count, embedding, shallow, deep, *dims, self.hidden_sizes, self.activation, self.gate, eps, detach)
        network.add_module(CHILD, layers.to(**like(network)))

    def private_keys(self, task: Task) -> set[str]:
        """Modulators and gate, and the descriptor convolutions if they are local."""
        convs = ("spectral_conv", "spatial_conv") if self.descriptor_convs == "local" else ()
        return super().private_keys(task) | _keys(task, *ADAPTERS, *convs)

    def personal_keys(self, task: Task) -> set[str]:
        """None of its own: neither modulators nor gate take part in a prediction."""
        return super().private_keys(task)

    def init_server(self, task: Task, clients: Sequence[Client]) -> State:
        """No anchors, nobody described, nobody in a cluster."""
        layers = _layers(task)
        shape = (len(layers.spectral.classes), self.embedding_dim)
        count = len(clients)
        return {
            CLIENTS: client_ids(clients),
            ANCHORS: torch.zeros(shape, dtype=layers.head.weight.dtype),
            VALID: torch.zeros(shape[0], dtype=torch.bool),
            DESCRIPTORS: torch.zeros(count, layers.descriptor_dim, dtype=layers.head.weight.dtype),
            DESCRIBED: torch.zeros(count, dtype=torch.bool),
            CLUSTER: torch.full((count,), -1, dtype=torch.int64),
            PENDING: torch.zeros(count, dtype=torch.bool),
        }

    # Server to client

    def download(self, server: State, client_id: int) -> State:
        """The shared model and the anchors; just after a synchronisation also the gate and its cluster's modulators."""
        received = super().download(server, client_id) | select(server, (ANCHORS, VALID))
        row = rows_of(server[CLIENTS], [client_id])
        pending, cluster = torch.cat([server[PENDING][row].long(), server[CLUSTER][row]]).tolist()
        if pending:
            received |= under(server, GATE)
            if cluster >= 0:
                received |= {key: value[cluster] for key, value in under(server, MODULATORS).items()}
        return received

    # Client

    def on_local_start(self, local: Local) -> None:
        """Set out the anchors; with `statistics_pass` describe the data by the received model."""
        active = local.round > self.anchor_warmup_rounds
        local.scratch["anchors"], local.scratch["valid"] = local.received[ANCHORS], local.received[VALID] & active
        local.scratch[PIXELS] = ClassMeans(len(local.scratch["valid"]), local.client.num_samples, normalise=True)
        if self.descriptor_source == "statistics_pass":
            self._pass(local, lambda output, _: self._describe(local, *_layers(local.task).descriptors(output)))

    def loss(self, local: Local, batch: Batch, output: Output) -> dict[str, Tensor]:
        """The task's loss and the weighted terms `dap`, `anchor` and `drift`, from one forward pass of the batch."""
        layers, anchors, valid = _layers(local.task), local.scratch["anchors"], local.scratch["valid"]
        prototypes = layers(output, anchors)
        embedding = layers.embed(output.embedding)  # [B, D, h, w]
        labels = resize_labels(batch["mask"], embedding.shape[-2:])
        with full_precision(anchors):
            near = cosines(embedding, torch.cat([prototypes.dap, anchors]))  # [B, 2 C, h, w]
            supervised = supervised_labels(labels, valid)
            near_dap, near_anchors = near.chunk(2, dim=1)
            dap = cosine_cross_entropy(near_dap, supervised, valid, self.temperature)
            anchor = cosine_cross_entropy(near_anchors, supervised, valid, self.temperature)
            apart = drift(prototypes.branches, anchors)  # [3, C]
            of_class = apart.sum(0) if self.drift_reduction == "sum" else apart.mean(0)
            wandering = torch.where(valid, of_class, 0.0).sum() / valid.sum().clamp(min=1)
        self._observe(local, prototypes.gate, apart)
        if self.descriptor_source == "training_batches":
            self._describe(local, prototypes.spectral_descriptor, prototypes.spatial_descriptor)
        if self.anchor_source == "last_epoch":
            self._count(local, embedding, batch)
        return super().loss(local, batch, output) | {
            "dap": self.lambda_dap * dap,
            "anchor": self.lambda_inv * anchor,
            "drift": self.lambda_drift * wandering,
        }

    def on_local_end(self, local: Local) -> None:
        """Sum the pixels' embeddings by class, and log what gate and prototypes did: means over the steps."""
        if self.anchor_source == "after_training":
            embed = _layers(local.task).embed
            self._pass(local, lambda output, batch: self._count(local, embed(output.embedding), batch))
        # gate, then the drift of the three prototypes
        observed = local.scratch["observed"] / local.scratch["steps"]
        seen, *table = torch.cat([local.scratch["valid"][None].to(observed.dtype), observed]).tolist()
        names = getattr(local.task, "class_names", None) or range(len(seen))
        for label, row in zip(("gate", *(f"drift_{branch}" for branch in BRANCHES)), table, strict=True):
            values = {f"feddap/{label}/{name}": value for name, value in zip(names, row, strict=True)}
            local.log |= dict(compress(values.items(), seen))

    def upload(self, local: Local) -> State:
        """Sums, counts and the smoothed descriptor; in a round of synchronisation modulators and gate too."""
        pixels = local.scratch[PIXELS]
        state = {SUMS: pixels.sums, COUNTS: pixels.counts, DESCRIPTOR: local.memory[DESCRIPTOR]}
        if self.sync_every is not None and local.round % self.sync_every == 0:
            own = _keys(local.task, *ADAPTERS)
            state |= {SENT + key: value for key, value in local.task.model_state().items() if key in own}
        return state

    @torch.no_grad()
    def _pass(self, local: Local, use: Callable[[Output, Batch], None]) -> None:
        """Show the client's own data, not augmented, to the network in evaluation mode: batch norm stays as it is."""
        local.task.eval()
        for batch in local.batches(False):
            with local.fabric.autocast():
                use(local.task(batch["image"]), batch)
        local.task.train()

    def _count(self, local: Local, embedding: Tensor, batch: Batch) -> None:
        labels = resize_labels(batch["mask"], embedding.shape[-2:])
        local.scratch[PIXELS].add(embedding, labels, len(batch["image"]))

    def _describe(self, local: Local, *descriptors: Tensor) -> None:
        fresh = torch.cat(descriptors).detach()
        local.memory[DESCRIPTOR] = smooth(local.memory.get(DESCRIPTOR), fresh, self.smoothing)

    def _observe(self, local: Local, gate: Tensor, apart: Tensor) -> None:
        table = torch.cat([gate[None], apart]).detach().double()  # [4, C]
        local.scratch["observed"] = table + local.scratch.get("observed", 0.0)
        local.scratch["steps"] = local.scratch.get("steps", 0) + 1

    # Server

    def aggregate(self, server: State, uploads: Sequence[Upload]) -> State:
        """The averaged model, the new anchors and descriptors, and where modulators came up the synchronisation."""
        rows = rows_of(server[CLIENTS], uploads)
        state = super().aggregate(server, uploads)
        sums, counts = (torch.stack([upload.state[key] for upload in uploads]) for key in (SUMS, COUNTS))
        state[ANCHORS], state[VALID] = update_anchors(sums, counts, server[ANCHORS], server[VALID])
        fresh = torch.stack([upload.state[DESCRIPTOR] for upload in uploads]).to(server[DESCRIPTORS].dtype)
        state[DESCRIPTORS] = server[DESCRIPTORS].index_copy(0, rows, fresh)
        state[DESCRIBED] = server[DESCRIBED].index_fill(0, rows, True)
        state[PENDING] = server[PENDING].index_fill(0, rows, False)
        if any(key.startswith(SENT) for key in uploads[0].state):
            state |= self._synchronise(state, rows, uploads)
        for upload, cluster in zip(uploads, state[CLUSTER][rows].tolist(), strict=True):
            if cluster >= 0:
                upload.log["feddap/cluster"] = float(cluster)
        return state

    def cluster(self, descriptors: Tensor) -> Tensor:
        """Cluster of each participant, int64 [K], from scaled descriptors float64 [K, Q]."""
        if self.clustering == "finch":
            return finch(descriptors, "euclidean")[-1]
        assert self.num_clusters is not None
        return kmeans(descriptors, self.num_clusters, torch_stream("feddap", "kmeans", 0))

    def _synchronise(self, state: State, rows: Tensor, uploads: Sequence[Upload]) -> State:
        """Cluster the participants and average their modulators by cluster, their gates over all. Everybody gets the
        result in its next round; a client that was absent belongs to the cluster whose centre is nearest to its last
        descriptor.
        """
        descriptors = state[DESCRIPTORS].double()
        if self.descriptor_scaling != "none":
            descriptors = zscore(descriptors, descriptors[rows])
        if self.descriptor_scaling == "balanced":
            spectral, spatial = descriptors.tensor_split([2 * self.spectral_dim], dim=1)
            descriptors = torch.cat([spectral / spectral.shape[1] ** 0.5, spatial / spatial.shape[1] ** 0.5], dim=1)
        labels = self.cluster(descriptors[rows])
        nearest = nearest_cluster(descriptors, descriptors[rows], labels).index_copy(0, rows, labels)
        weights = num_samples(uploads)
        if self.cluster_weights == "uniform":
            weights = torch.ones_like(weights)
        clusters = [(labels == number).nonzero()[:, 0].tolist() for number in range(int(labels.max()) + 1)]
        synchronised = {CLUSTER: torch.where(state[DESCRIBED], nearest, -1), PENDING: torch.ones_like(state[PENDING])}
        for name in under(uploads[0].state, SENT):
            values = entries(uploads, SENT + name)
            if name.startswith(f"{MODEL}{CHILD}.gate."):
                synchronised[GATE + name] = weighted_sum(values, normalise(weights))
            else:
                means = [weighted_sum([values[k] for k in own], normalise(weights[own])) for own in clusters]
                synchronised[MODULATORS + name] = torch.stack(means)
        return synchronised


def _layers(task: Task) -> DAP:
    layers = network_of(task).get_submodule(CHILD)
    assert isinstance(layers, DAP)
    return layers


def _keys(task: Task, *parts: str) -> set[str]:
    layers = {part: _layers(task).get_submodule(part) for part in parts}
    return {f"{MODEL}{CHILD}.{part}.{name}" for part, layer in layers.items() for name in layer.state_dict()}
