"""Pictures at the end of a run, drawn on rank 0 into the run directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedrs_lightning.data.rasters.class_tables import ISPRS, LOVEDA, LOVEDA_COLOURS
from fedrs_lightning.results import diagnostics
from fedrs_lightning.results.plots import plot_clients, plot_curves, plot_weights

if TYPE_CHECKING:
    from fedrs_lightning.data import FederatedDataset, Federation
    from fedrs_lightning.engine.engine import Engine
    from fedrs_lightning.results.run import Run
    from fedrs_lightning.results.store import RunStore

CROPS_PER_DOMAIN = 2


def draw(engine: Engine, run: Run, data: FederatedDataset) -> list[Path]:
    """Draw whatever this run has something to show for; returns the files."""
    store, federation = run.store, engine.federation
    folder, classes = store.path / "pictures", list(data.class_names)
    drawn: list[Path | None] = [plot_curves([store], store.path / "curves.png")]
    drawn += [plot_clients([store], folder / "clients.png"), plot_weights(store, folder / "weights.png")]
    drawn += [diagnostics.plot_loss_terms(store, folder / "loss.png")]
    titles = {f"drift_{kind}": f"cosine drift from the anchor, {kind}" for kind in ("spec", "spa", "dap")}
    for name, title in ({"gate": "gate weight (1 spectral, 0 spatial)"} | titles).items():
        limits = (0.0, 1.0) if name == "gate" else None
        out = folder / f"{name}.png"
        drawn.append(diagnostics.plot_by_class(store, f"feddap/{name}", title, classes, out, limits=limits))
    drawn.append(_confusion(store, classes, folder))
    drawn.append(_descriptors(engine, federation, folder))
    if "mask" in federation.source.gather(federation.clients[0].train[:1]):
        drawn.append(_predictions(engine, data, federation, folder))
    return [path for path in drawn if path is not None]


def _confusion(store: RunStore, classes: list[str], folder: Path) -> Path | None:
    last = store.rounds()[-1]
    protocol = (store.result() or {}).get("headline", {}).get("protocol", "")
    counts = last.get("counts", {}).get(protocol, {}).get("confmat")
    if counts is None:
        return None
    title = f"round {last['round']}, {protocol}, counts of all clients summed"
    return diagnostics.plot_confusion(np.array(counts), classes, folder / "confusion.png", title)


def _descriptors(engine: Engine, federation: Federation, folder: Path) -> Path | None:
    """Descriptors that a method keeps on the server as `<method>/descriptors`, beside what each line is of."""
    for key, table in engine.server.items():
        method, _, name = key.partition("/")
        if name != "descriptors":
            continue
        parts = ("clients", "described", "cluster")
        ids, known, cluster = (engine.server[f"{method}/{part}"].tolist() for part in parts)
        vectors = {client: table[row].numpy() for row, client in enumerate(ids) if known[row]}
        if len(vectors) > 1:
            domains = {client.id: client.domain for client in federation.clients}
            clusters, out = dict(zip(ids, cluster, strict=True)), folder / "descriptors.png"
            return diagnostics.plot_descriptors(vectors, clusters, domains, out)
    return None


def _predictions(engine: Engine, data: FederatedDataset, federation: Federation, folder: Path) -> Path | None:
    chosen: list[int] = []
    names: list[str] = []
    for client in {client.domain: client for client in federation.clients}.values():
        if client.test is None or not len(client.test):
            continue
        places = np.linspace(0, len(client.test) - 1, CROPS_PER_DOMAIN + 2)[1:-1].round().astype(int)
        crops = [int(client.test[place]) for place in dict.fromkeys(places.tolist())]
        chosen += crops
        names += [federation.sample_ids[crop] for crop in crops]
    if not chosen:
        return None
    raw = federation.source.gather(np.array(chosen))
    engine.composer.install(engine.method.download(engine.server, federation.clients[0].id), {})
    engine.task.eval()
    predicted = []
    with torch.no_grad():
        for _, batch in engine.loader.ordered(np.array(chosen), engine.schedule.eval_batch_size):
            with engine.fabric.autocast():
                predicted.append(engine.task(batch["image"]).logits.argmax(1).cpu())
    image = raw["image"][:, :3] if raw["image"].shape[1] >= 3 else raw["image"][:, :1].expand(-1, 3, -1, -1)
    content = (image.float().cpu().numpy(), raw["mask"].cpu().numpy(), torch.cat(predicted).numpy())
    classes, out = data.class_names, folder / "predictions.png"
    return diagnostics.plot_predictions(*content, classes, palette(classes), names, out)


def palette(classes: Sequence[str]) -> np.ndarray:
    """The colours that people know for these classes, or evenly told apart ones; uint8 [C, 3]."""
    import matplotlib as mpl

    known = dict(zip(ISPRS.names, ISPRS.colours, strict=True)), dict(zip(LOVEDA.names, LOVEDA_COLOURS, strict=True))
    for table in known:
        if set(classes) <= set(table):
            return np.array([table[name] for name in classes], dtype=np.uint8)
    colours = [mpl.colormaps["tab20"](index % 20)[:3] for index in range(len(classes))]
    return (255 * np.array(colours)).round().astype(np.uint8)
