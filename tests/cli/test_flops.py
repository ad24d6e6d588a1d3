"""`fedrs flops` against operations that hooks add up layer by layer."""

import json
from functools import partial
from pathlib import Path

import lightning as L
import pytest
import torch
from torch import nn

from fedrs_lightning.cli.flops import _side
from fedrs_lightning.cli.main import main
from fedrs_lightning.data import FederatedDataset
from fedrs_lightning.data.archives.bigearthnet.archive import BigEarthNet
from fedrs_lightning.engine.cost import measure, random_samples
from fedrs_lightning.methods import (
    FPL,
    MOON,
    Centralised,
    FedAvg,
    FedAWA,
    FedBN,
    FedDAP,
    FedDC,
    FedGPS,
    FedMAD,
    FedProto,
    FedProx,
    FedSeg,
    LocalOnly,
)
from fedrs_lightning.nn.modulation import Modulation
from fedrs_lightning.tasks import ClassificationTask, MultilabelTask, SegmentationTask

SIDE, BATCH, CLASSES = 16, 6, 5
FEDDAP = {
    "temperature": 0.1,
    "lambda_dap": 0.5,
    "lambda_inv": 0.5,
    "lambda_drift": 0.1,
    "sync_every": 2,
    "smoothing": 0.9,
}
FEDDAP |= {
    "clustering": "kmeans",
    "num_clusters": 2,
    "embedding_dim": 8,
    "spectral_dim": 4,
    "spatial_dim": 4,
    "class_dim": 4,
}
FEDDAP |= {"hidden_sizes": [8], "activation": "relu", "eps": 1e-5}


def classifier():
    return ClassificationTask("resnet18", CLASSES, 3, width=8, stem="small")


def segmenter():
    return SegmentationTask("deeplabv3plus", "resnet18", CLASSES, 3, "ce", encoder_width=8, decoder_channels=8)


def cost(task, method, side=SIDE, round=2, images=BATCH):
    fabric = L.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    return measure(task, method, fabric, random_samples(task, images, CLASSES, 3, side), BATCH, round)


def by_hooks(task, image):
    """Operations and entries of modulated maps of a prediction, added up layer by layer."""
    total = {"flops": 0, "modulated": 0}

    def note(module, inputs, output):
        if isinstance(module, nn.Conv2d):
            kernel = module.kernel_size[0] * module.kernel_size[1]
            total["flops"] += 2 * output.numel() * module.in_channels // module.groups * kernel
        elif isinstance(module, nn.Linear):
            total["flops"] += 2 * output.numel() * module.in_features
        elif isinstance(module, Modulation):
            total["modulated"] += output.numel()

    for module in task.model.modules():
        module.register_forward_hook(note)
    task.eval()
    task(image)
    return total["flops"], total["modulated"]


def test_classification():
    image = torch.rand(1, 3, SIDE, SIDE)
    flops, _ = by_hooks(classifier(), image)
    plain, task = cost(classifier(), FedAvg()), classifier()
    assert plain.forward == flops
    first = 2 * 8 * SIDE * SIDE * 3 * 9  # the image needs no gradient
    assert plain.forward_backward == 3 * flops - first
    assert plain.local_step == BATCH * plain.forward_backward
    assert plain.outside_steps == 0
    assert plain.parameters == plain.shared == sum(parameter.numel() for parameter in task.parameters())
    assert (
        plain.bytes_up
        == plain.bytes_down
        == sum(value.numel() * value.element_size() for value in task.model.state_dict().values())
    )

    bn = cost(classifier(), FedBN())
    assert bn.local_step == plain.local_step
    assert bn.private == sum(m.weight.numel() + m.bias.numel() for m in task.modules() if isinstance(m, nn.BatchNorm2d))
    assert bn.shared + bn.private == bn.parameters == plain.parameters

    method, modulated = FedMAD(num_layers=3), classifier()
    mad = cost(modulated, method)
    _, entries = by_hooks(modulated, image)
    assert entries > 0
    assert mad.forward == flops + 2 * entries
    assert mad.local_step == plain.local_step + BATCH * 6 * entries


def test_prototypes_cost_next_to_nothing():
    plain = cost(classifier(), FedAvg())
    for method in (FedProto(), FPL()):
        found = cost(classifier(), method)
        assert plain.local_step < found.local_step < 1.01 * plain.local_step
        assert plain.bytes_up < found.bytes_up < 1.02 * plain.bytes_up
    alone = cost(classifier(), FedProto(average_model=False))
    assert alone.bytes_up == CLASSES * (64 * 4 + 8)  # means and counts
    assert (alone.shared, alone.private) == (0, alone.parameters)


def test_segmentation_counts_heads_frozen_networks_and_passes():
    plain = cost(segmenter(), FedAvg(), side=32)
    first, second = (cost(segmenter(), FedSeg(embedding_dim=8), side=32, round=number) for number in (1, 2))
    assert first.forward == plain.forward
    assert plain.local_step < first.local_step < 1.2 * plain.local_step
    assert first.outside_steps == 0
    frozen = BATCH * plain.forward
    assert first.local_step + frozen < second.local_step < first.local_step + 1.2 * frozen
    assert plain.forward < second.outside_steps < 1.2 * plain.forward
    dap = cost(segmenter(), FedDAP(**FEDDAP), side=32)
    assert dap.private > 0
    assert dap.outside_steps > plain.forward
    assert dap.bytes_up > cost(segmenter(), FedDAP(**FEDDAP), side=32, round=1).bytes_up  # modulators go up in round 2


METHODS = [FedAvg, FedProx, FedBN, FedMAD, MOON, FedDC, FedAWA, FedGPS, FedProto, FPL, LocalOnly, Centralised]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_a_few_images_tell_of_a_whole_batch(method):
    """Exact where the work grows as the batch; what compares samples with one another grows otherwise, and is next to
    nothing.
    """
    whole, few = (cost(classifier(), method(), images=number) for number in (BATCH, 4))
    compares = method in (FedGPS, FedProto, FPL)
    assert few.local_step == pytest.approx(whole.local_step, rel=2e-3 if compares else 0)
    assert (few.forward, few.forward_backward, few.parameters) == (
        whole.forward,
        whole.forward_backward,
        whole.parameters,
    )
    assert (few.counted_on, few.batch_size) == (4, BATCH)
    if not compares:
        assert (few.bytes_up, few.bytes_down) == (whole.bytes_up, whole.bytes_down)


@pytest.mark.parametrize(
    "make",
    [FedAvg, partial(FedSeg, embedding_dim=8), partial(FedDAP, **FEDDAP), partial(FPL, num_pixels=50)],
    ids=["avg", "seg", "dap", "fpl"],
)
def test_a_few_crops_tell_of_a_whole_batch(make):
    whole, few = (cost(segmenter(), make(), side=32, images=number) for number in (BATCH, 4))
    assert few.local_step == pytest.approx(whole.local_step, rel=0 if make is FedAvg else 0.01)
    assert (few.forward, few.parameters, few.bytes_up) == (whole.forward, whole.parameters, whole.bytes_up)


@pytest.mark.parametrize("method", [FedAvg, FedMAD, FedGPS])
def test_several_labels(method):
    """The same network, whose loss counts nothing; FedGPS has outputs that no label belongs to."""
    found = cost(MultilabelTask("resnet18", CLASSES, 3, width=8, stem="small"), method())
    single = cost(classifier(), method())
    assert (found.forward, found.forward_backward) == (single.forward, single.forward_backward)
    assert found.local_step == pytest.approx(single.local_step, rel=2e-3)


def test_counting_leaves_random_streams_alone():
    task = classifier()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    cost(task, MOON())
    assert torch.equal(torch.rand(3), expected)


def test_every_result_has_the_figures(config, fit, stop, tmp_path):
    """The same from a complete run, from two ranks, and from a run that was interrupted and continued; no number of a
    run changes.
    """
    config["method"] = "FedMAD"
    config["schedule"]["num_rounds"] = 2
    config.write()
    whole = fit()
    stop(1)
    broken = fit(root=tmp_path / "broken")
    assert broken.code == 130
    resumed = fit(root=tmp_path / "broken")
    found = whole.store.result()["cost"]
    assert resumed.store.result()["cost"] == found
    assert resumed.digest == whole.digest
    task = ClassificationTask("resnet18", 10, 3, width=4, stem="small")
    fabric = L.Fabric(accelerator="cpu", devices=1)
    alone = measure(task, FedMAD(), fabric, random_samples(task, 4, 10, 3, 16), 16)
    assert found == alone.as_dict()
    assert whole.store.result()["bytes"] == {"up": 6 * found["bytes_up"], "down": 6 * found["bytes_down"]}


def test_the_table_in_the_docs_is_what_the_command_prints():
    """One row: FedMAD on the ResNet50 of EuroSAT. `make cost` prints all."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "cost.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.split("|")[2:-1]] for line in page.splitlines() if line.startswith("| `FedMAD`")
    ]
    task = ClassificationTask("resnet50", 10, 3)
    fabric = L.Fabric(accelerator="cpu", devices=1)
    found = measure(task, FedMAD(), fabric, random_samples(task, 2, 10, 3, 64), 512)
    expected = [f"{found.forward / 1e9:.4f}", f"{found.local_step / 1e12:.4f}", f"{found.parameters / 1e6:.2f}"]
    expected += [f"{found.private / 1e6:.2f}", f"{found.bytes_down / 1e6:.1f}", f"{found.bytes_up / 1e6:.1f}"]
    assert [rows[0][column] for column in (0, 2, 4, 5, 6, 7)] == expected


@pytest.fixture
def flops(config, tmp_path, capsys):
    """The command on the tiny experiment, whose folder of data is not there."""
    config["data"] |= {"root": str(tmp_path / "nowhere"), "image_size": SIDE}
    config.write()

    def run(*options):
        capsys.readouterr()
        code = main(["flops", "--config", str(config.path), *map(str, options)])
        return code, *capsys.readouterr()

    return run


def test_json_and_options_of_fit(flops, tmp_path):
    overlay = tmp_path / "mad.yaml"
    overlay.write_text("method: {class_path: FedMAD, init_args: {num_layers: 2}}\nrun: {label: two layers}\n")
    code, out, err = flops("--compare", f"FedAvg,FedBN,{overlay}", "--json", "--schedule.batch_size", 4)
    assert (code, err) == (0, "")
    rows = json.loads(out)
    assert [row["method"] for row in rows] == ["FedAvg", "FedBN", "two layers"]
    assert {row["batch_size"] for row in rows} == {4}
    assert rows[0]["image"] == {"channels": 3, "side": SIDE, "side_from": "data.image_size"}
    assert rows[0]["local_step"] == 4 * rows[0]["forward_backward"]


def test_table(flops):
    code, out, err = flops("--compare", "FedAvg,FedProto", "--side", 8)
    assert (code, err) == (0, "")
    assert "3 x 8 x 8 (--side)" in out
    assert next(line.split("│")[-2].strip() for line in out.splitlines() if line.startswith("│ Fed")) == "1.000"
    code, out, _ = flops("--method", "FedBN")
    assert code == 0
    assert "FedBN" in out
    assert "/ FedAvg" not in out


def test_images_are_as_large_as_they_are_stored(flops):
    code, out, _ = flops("--data.image_size", "null")
    assert code == 0
    assert "3 x 64 x 64 (as stored)" in out
    patches = FederatedDataset(BigEarthNet("nowhere"))
    assert _side(patches, None) == (120, "as stored")
    assert _side(FederatedDataset(BigEarthNet("nowhere"), image_size=32), None) == (32, "data.image_size")
    assert _side(patches, 8) == (8, "--side")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--side", 0), "--side"),
        (("--sied", 8), "--sied"),
        (("--compare", "FedAvk"), "FedAvk"),
        (("--compare", "FedSeg"), "FedSeg needs masks"),
        (("--compare", "FedDAP"), "--compare FedDAP: method: FedDAP needs masks"),
        (("--compare", "FedAvg,FedDAP"), "give the file instead of the name, such as experiments/feddap/compound.yaml"),
    ],
)
def test_mistakes_are_one_line(flops, options, message):
    code, out, err = flops(*options)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("fedrs flops: ")
    assert message in err


def test_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["flops", "--help"])
    assert "--compare" in capsys.readouterr().out
