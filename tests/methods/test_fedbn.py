"""FedBN: which entries stay on the client."""

import pytest
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods.fedbn import FedBN
from fedrs_lightning.nn.surgery import buffer_keys, keys_of, parameter_keys
from fedrs_lightning.tasks.classification import ClassificationTask


@pytest.fixture(scope="module")
def task():
    return ClassificationTask("resnet50", num_classes=3, in_channels=3, width=4)


def test_all_265_batch_norm_entries_of_a_resnet50_stay(task):
    private = FedBN().private_keys(task)
    assert len(private) == 265
    assert private == keys_of(task, _BatchNorm)
    assert FedBN().sent_keys(task) == keys_of(task, nn.Conv2d, nn.Linear)


def test_by_name_misses_the_skip_paths(task):
    missed = FedBN().private_keys(task) - FedBN(select="by_name").private_keys(task)
    assert len(missed) == 20
    assert all("downsample.1" in key for key in missed)


def test_statistics_or_affine_only(task):
    statistics, affine = FedBN("statistics_only").private_keys(task), FedBN("affine_only").private_keys(task)
    assert (len(statistics), len(affine)) == (3 * 53, 2 * 53)
    assert statistics == buffer_keys(task)
    assert affine == keys_of(task, _BatchNorm) & parameter_keys(task)
    assert FedBN("affine_only", buffers="keep_server").sent_keys(task) == keys_of(task, nn.Conv2d, nn.Linear)


def test_other_norms_and_a_network_without_any():
    task = ClassificationTask("resnet18", num_classes=3, in_channels=3, width=4)
    for name, child in list(task.model.named_modules()):
        if isinstance(child, nn.BatchNorm2d):
            parent, _, leaf = name.rpartition(".")
            setattr(task.model.get_submodule(parent), leaf, nn.GroupNorm(2, child.num_features))
    with pytest.raises(ConfigError, match=r"FedBN: the network has no entries .* would keep private"):
        FedBN().adapt(task)
    method = FedBN(norms=["batch", "group"])
    method.adapt(task)
    assert method.private_keys(task) == keys_of(task, nn.GroupNorm)
    assert len(method.private_keys(task)) == 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": "none"}, "what must be all, statistics_only or affine_only, got 'none'"),
        ({"select": "by_guess"}, "select must be by_type or by_name, got 'by_guess'"),
        ({"norms": ["spectral"]}, "norms must be batch, instance, group or layer, got 'spectral'"),
    ],
)
def test_errors_name_the_option(options, message):
    with pytest.raises(ConfigError, match=message):
        FedBN(**options)
