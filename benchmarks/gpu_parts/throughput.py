"""Images a second of local steps, evaluation and loader, each beside a loop that has the same kernels and nothing else.

The bare loop trains the engine's own network, optimiser and precision on images that lie on the device already, without
augmentation, and waits for the device once at its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from fedrs_lightning.engine.engine import Engine
from fedrs_lightning.engine.settings import FabricSettings, Schedule
from fedrs_lightning.methods import FedAvg, FedDAP
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.tasks import ClassificationTask, SegmentationTask, Task
from gpu_parts.federations import DEVIATION, MEAN, federation
from gpu_parts.sheet import ROOT, Setting, Sheet
from gpu_parts.timing import Timings

STEPS, EVALUATION = 0.9, 0.85
"""Goals of the rates over those of the bare loop. The loop has its images in place and does not augment them."""

LOADER = 2.0
"""Goal of the loader's rate over that of the steps, which it must never hold up."""

PRECISIONS: dict[str, tuple[str, bool, str]] = {  # precision, TF32, deterministic
    "float32": ("32-true", False, "warn"),
    "TF32": ("32-true", True, "warn"),
    "bfloat16": ("bf16-mixed", True, "warn"),
    "bfloat16, any kernels": ("bf16-mixed", True, "false"),
}
ROUNDS = 3


def throughput(setting: Setting, sheet: Sheet) -> None:
    """ResNet-50 on images of 64 x 64 in batches of 128."""
    quick = setting.quick
    batch, side, clients, images, test = (8, 32, 2, 16, 16) if quick else (128, 64, 8, 2560, 5120)
    make = partial(ClassificationTask, *(("resnet18", 10, 3, 8) if quick else ("resnet50", 10, 3)))
    data = federation([images] * clients, test, side)
    schedule = Schedule(ROUNDS, batch_size=batch, eval_batch_size=4 * batch)
    for name, numbers in PRECISIONS.items():
        engine, timing = _measure(setting, make, FedAvg(), data, schedule, *numbers)
        bare = _bare(setting, engine, schedule)
        trained, evaluated = _rates(timing, clients * images, test)
        title = "local steps, " + name
        sheet.row(title, trained, "images/s")
        sheet.row(title + ", over a bare loop", trained / bare["steps"], **setting.goal(at_least=STEPS))
        title, rate = "evaluation, " + name, evaluated / bare["evaluation"]
        sheet.row(title, evaluated, "images/s")
        sheet.row(title + ", over a bare loop", rate, **setting.goal(at_least=EVALUATION))
        sheet.detail(name, {"bare loop": bare, "timing": timing})
    loaded = _loader(setting, engine, images)
    sheet.row("loader alone", loaded, "images/s")
    sheet.row("loader over local steps, bfloat16", loaded / trained, **setting.goal(at_least=LOADER))


def feddap(setting: Setting, sheet: Sheet) -> None:
    """DeepLabV3+ with ResNet-50 on crops of 512 x 512 in batches of 8, with FedAvg and with FedDAP."""
    quick = setting.quick
    batch, side, clients, images, test = (2, 32, 2, 4, 4) if quick else (8, 512, 4, 48, 16)
    small = {"encoder_width": 8, "decoder_channels": 8}
    make = partial(
        SegmentationTask, "deeplabv3plus", "resnet18" if quick else "resnet50", 6, 3, "ce", **small if quick else {}
    )
    values = yaml.safe_load((ROOT / "experiments/feddap/parts/feddap.yaml").read_text())["init_args"]
    data = federation([images] * clients, test, side, classes=6, masks=True)
    schedule = Schedule(ROUNDS, batch_size=batch, eval_batch_size=2 * batch)
    plain: dict[str, float] = {}
    for method in (FedAvg(), FedDAP(**values)):
        name = type(method).__name__
        for words in ("TF32", "bfloat16"):  # in full float32 these crops would take too long
            engine, timing = _measure(setting, make, method, data, schedule, *PRECISIONS[words])
            trained, _ = _rates(timing, clients * images, test)
            title = f"local steps of {name}, {words}"
            sheet.row(title, trained, "crops/s")
            sheet.detail(title, {"timing": timing})
            if setting.cuda:
                sheet.row(title + ", peak memory", torch.cuda.max_memory_allocated() / 2**30, "GiB")
            if name == "FedAvg":
                plain[words] = trained
                bare = _bare(setting, engine, schedule)
                sheet.row(title + ", over a bare loop", trained / bare["steps"], **setting.goal(at_least=STEPS))
            else:
                sheet.row(title + ", over FedAvg", trained / plain[words])


def _measure(
    setting: Setting,
    make: Callable[[], Task],
    method: FedAvg,
    data: Any,
    schedule: Schedule,
    precision: str,
    tf32: bool,
    deterministic: str,
) -> tuple[Engine, list[dict[str, float]]]:
    """An engine that has run, and the timing of its rounds."""
    products = {"matmul_precision": "high" if tf32 else "highest"}
    offered = "matmul_precision" in FabricSettings.__dataclass_fields__
    clock = Timings()
    fabric = setting.fabric(
        callbacks=[clock], precision=precision, deterministic=deterministic, **products if offered else {}
    )
    if setting.cuda:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    with rng_stream(0, "model"):
        task = make()
    if setting.cuda:
        torch.cuda.reset_peak_memory_stats()
    with setting.scratch() as folder:
        engine = Engine(fabric, task, method, data, schedule, seed=0, path=Path(folder), channels_last=True)
        engine.fit()
    return engine, clock.rounds


def _rates(timing: list[dict[str, float]], images: int, test: int) -> tuple[float, float]:
    """Images a second of training and evaluation, in the fastest round after the first."""
    later = timing[1:]
    return images / min(one["train"] for one in later), test / min(one["evaluate"] for one in later)


def _bare(setting: Setting, engine: Engine, schedule: Schedule) -> dict[str, float]:
    """Images a second of the engine's network, optimiser and precision on one batch that lies on the device."""
    task, fabric = engine.task, engine.fabric
    source = engine.federation.source
    taken = source.gather(torch.arange(schedule.eval_batch_size) % len(source))
    images = taken.pop("image").to(fabric.device).contiguous(memory_format=torch.channels_last)
    labels = {name: values.to(fabric.device).long() for name, values in taken.items()}
    size, steps = schedule.batch_size, 3 if setting.quick else 40

    def pixels(count: int) -> Tensor:
        return images[:count].float().mul_(1 / 255 / DEVIATION).sub_(MEAN / DEVIATION)

    def train(count: int) -> None:
        task.train()
        optimizer = task.configure_optimizers()
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            with fabric.autocast():
                loss = task.criterion(task(pixels(size)), {name: values[:size] for name, values in labels.items()})
            loss.backward()
            optimizer.step()

    @torch.inference_mode()
    def evaluate(count: int) -> None:
        task.eval()
        right = torch.zeros((), device=fabric.device, dtype=torch.int64)
        for _ in range(count):
            with fabric.autocast():
                logits = task(pixels(len(images))).logits
            right += (logits.argmax(1) == next(iter(labels.values()))).sum()
        right.item()

    def rate(work: Callable[[int], None], count: int, images: int) -> float:
        work(2)
        setting.wait()
        start = time.perf_counter()
        work(count)
        setting.wait()
        return count * images / (time.perf_counter() - start)

    return {"steps": rate(train, steps, size), "evaluation": rate(evaluate, max(2, steps // 4), len(images))}


def _loader(setting: Setting, engine: Engine, images: int) -> float:
    """Images a second of an epoch of every client, as training gets it."""
    found = 0.0
    for number in range(2):
        setting.wait()
        start = time.perf_counter()
        for client in engine.clients:
            for _ in engine.loader.epoch(client.id, number + 1, 0):
                pass
        setting.wait()
        found = len(engine.clients) * images / (time.perf_counter() - start)
    return found
