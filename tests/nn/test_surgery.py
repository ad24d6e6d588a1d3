"""State keys by layer type."""

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.models import resnet50

from fedrs_lightning.nn.modulation import Modulation, insert_modulation
from fedrs_lightning.nn.surgery import attach, buffer_keys, keys_of, parameter_keys


class Network(nn.Module):
    """A batch norm called otherwise, a layer registered twice, a nested one, a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 1), nn.SyncBatchNorm(4))
        self.again = self.stem[1]
        self.plain = nn.BatchNorm1d(4, affine=False, track_running_stats=False)
        self.bn_lookalike = nn.Linear(4, 4)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.register_buffer("counter", torch.zeros((), dtype=torch.int64))


ENTRIES = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]


def test_all_265_batch_norm_entries_of_a_resnet50():
    model = resnet50()
    keys = keys_of(model, _BatchNorm)
    by_hand = [
        f"model/{name}"
        for name in model.state_dict()
        if ".bn" in name or name.startswith("bn1") or ".downsample.1." in name
    ]
    assert len(keys) == 265
    assert keys == set(by_hand)
    assert keys_of(model, nn.Conv2d, nn.Linear) == {f"model/{name}" for name in model.state_dict()} - keys


def test_duplicates_nesting_and_unsaved_buffers():
    model = Network()
    attach(model.stem[1], "modulation", Modulation(4), "input")
    keys = keys_of(model, _BatchNorm)
    assert keys == {f"model/{name}.{entry}" for name in ("stem.1", "again") for entry in ENTRIES}
    assert keys_of(model, Modulation) == {
        f"model/{name}.modulation.{entry}" for name in ("stem.1", "again") for entry in ("gamma", "beta")
    }
    assert parameter_keys(model) | buffer_keys(model) == {f"model/{name}" for name in model.state_dict()}
    assert not parameter_keys(model) & buffer_keys(model)
    assert "model/scratch" not in buffer_keys(model)
    assert keys_of(model.stem[1], _BatchNorm) == {f"model/{entry}" for entry in ENTRIES}


def test_a_task_and_its_network_have_the_same_keys():
    class Holder(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = resnet50()
            self.loss_norm = nn.BatchNorm1d(3)  # outside the network: does not travel

    holder = Holder()
    insert_modulation(holder.model, 2)
    assert keys_of(holder, _BatchNorm, Modulation) == keys_of(holder.model, _BatchNorm, Modulation)
    assert len(keys_of(holder, _BatchNorm, Modulation)) == 265 + 4


def test_attach_acts_on_input_or_output_and_refuses_a_taken_name():
    double, host = nn.Linear(2, 2, bias=False), nn.ReLU()
    nn.init.constant_(double.weight, 0.0)
    double.weight.data.fill_diagonal_(-2.0)
    x = torch.tensor([[1.0, -1.0]])
    attach(host, "before", double, "input")
    assert host(x).tolist() == [[0.0, 2.0]]
    attach(host, "after", double, "output")
    assert host(x).tolist() == [[0.0, -4.0]]
    with pytest.raises(ValueError, match="already has a 'after'"):
        attach(host, "after", double, "output")
