"""Settings that change how, not what: precision, memory format, compilation."""

from functools import partial

import lightning as L
import pytest
import torch

from fedrs_lightning.cli.process import run_settings
from fedrs_lightning.data.batches.loading import Loading
from fedrs_lightning.engine.ranks.strategy import set_kernels
from fedrs_lightning.engine.settings import FabricSettings
from fedrs_lightning.methods import FedMAD
from fedrs_lightning.tasks import ClassificationTask

from .conftest import CLASSES, make_engine


def test_channels_last_trains_close_to_contiguous(tiny_run):
    # eight channels: with fewer, oneDNN's AVX2 kernel of a strided 1x1 convolution writes outside its memory
    wide = partial(ClassificationTask, "resnet18", CLASSES, 3, width=8, stem="small")
    plain, last = (
        tiny_run(FedMAD, num_rounds=1, make_task=wide, options={"channels_last": last}) for last in (False, True)
    )
    for key, value in plain.server.items():
        torch.testing.assert_close(last.server[key], value, rtol=2e-2, atol=2e-2)


def test_loading_ahead_changes_no_bit(tiny_run):
    plain, ahead = (
        tiny_run(FedMAD, num_rounds=1),
        tiny_run(FedMAD, num_rounds=1, options={"loading": Loading(prefetch=2)}),
    )
    assert plain.digest == ahead.digest
    assert plain.history[0]["metrics"] == ahead.history[0]["metrics"]


def test_a_residence_that_cannot_be_is_said(tmp_path):
    fabric = L.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    with pytest.warns(UserWarning, match="fabric.residence=ram: the samples come from no pack"):
        make_engine(fabric, FedMAD(), tmp_path, num_rounds=1, options={"loading": Loading("ram")})


def test_bfloat16_runs_the_network_in_bfloat16(tmp_path):
    fabric = L.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    fabric.launch()
    engine = make_engine(fabric, FedMAD(), tmp_path, num_rounds=1)
    seen = []
    engine.task.model.layer1.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    engine.fit()
    assert set(seen) == {torch.bfloat16}
    assert all(value.dtype != torch.bfloat16 for value in engine.server.values())


@pytest.mark.parametrize(
    ("options", "kernels"),
    [
        ({}, ("highest", False, False, True, False)),
        ({"deterministic": "warn"}, ("highest", False, False, True, True)),
        ({"deterministic": "false", "matmul_precision": "high"}, ("high", True, True, False, False)),
        ({"matmul_precision": "medium"}, ("medium", True, False, True, False)),
    ],
)
def test_kernels_of_a_gpu_are_as_exact_and_repeatable_as_asked_for(options, kernels, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with run_settings():  # puts everything back
        set_kernels(FabricSettings(**options))
        cudnn = torch.backends.cudnn
        set_now = (torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark)
        strict = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    assert (*set_now, *strict) == kernels
    assert not torch.are_deterministic_algorithms_enabled()
    assert (torch.get_float32_matmul_precision(), cudnn.benchmark) == ("highest", False)
