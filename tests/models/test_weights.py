"""Local weight files: what is taken, adapted, left out and refused."""

import hashlib
import pickle

import pytest
import torch
from safetensors.torch import save_file

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.models.classification import ResNet


def network(**arguments):
    return ResNet(**({"backbone": "resnet18", "num_classes": 6, "in_channels": 3, "width": 8} | arguments))


@pytest.fixture(scope="module")
def state():
    model = network()
    model(torch.randn(4, 3, 32, 32))  # statistics and counters that differ from fresh ones
    return model.state_dict()


def agree(model, state, without=()):
    own = model.state_dict()
    return all(torch.equal(own[name], state[name]) for name in own if name not in without)


@pytest.mark.parametrize("prefix", ["", "model/", "module.", "model."])
@pytest.mark.parametrize("kind", ["safetensors", "torch", "torch_nested"])
def test_every_entry_is_taken(tmp_path, state, prefix, kind):
    named = {prefix + name: value for name, value in state.items()}
    path = tmp_path / ("weights.safetensors" if kind == "safetensors" else "weights.pt")
    if kind == "safetensors":
        save_file(named, path)
    else:
        torch.save({"state_dict": named, "epoch": 3} if kind == "torch_nested" else named, path)
    model = network(weights=path)
    assert agree(model, state)
    report = model.weights_report
    assert (report.loaded, report.adapted, report.kept_initial) == (len(state), {}, {})
    assert report.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_state_of_ours_may_hold_other_namespaces(tmp_path, state):
    save_file(
        {f"model/{name}": value for name, value in state.items()} | {"fedawa/logits": torch.ones(3)},
        tmp_path / "s.safetensors",
    )
    assert agree(network(weights=tmp_path / "s.safetensors"), state)


def test_another_number_of_classes_keeps_the_classifier_random(tmp_path, state):
    torch.save(state, tmp_path / "w.pt")
    model = network(num_classes=4, weights=tmp_path / "w.pt")
    assert agree(model, state, without={"fc.weight", "fc.bias"})
    assert model.weights_report.kept_initial == dict.fromkeys(
        ("fc.bias", "fc.weight"), "the file's classifier has 6 classes"
    )


def test_files_without_classifier_and_without_counters(tmp_path, state):
    kept = {
        name: value
        for name, value in state.items()
        if not name.startswith("fc.") and not name.endswith("num_batches_tracked")
    }
    torch.save(kept, tmp_path / "w.pt")
    model = network(weights=tmp_path / "w.pt")
    assert agree(model, state, without=state.keys() - kept.keys())
    assert set(model.weights_report.kept_initial) == state.keys() - kept.keys()
    assert model.weights_report.loaded == len(kept)


def test_the_stem_gives_the_same_response_to_grey_images(tmp_path, state):
    torch.save(state, tmp_path / "w.pt")
    model = network(in_channels=10, weights=tmp_path / "w.pt")
    grey = torch.rand(2, 1, 16, 16)
    three = torch.nn.functional.conv2d(grey.expand(-1, 3, -1, -1), state["conv1.weight"], stride=2, padding=3)
    torch.testing.assert_close(model.conv1(grey.expand(-1, 10, -1, -1)), three)
    assert model.conv1.weight.detach().unique(dim=1).shape[1] == 1
    assert model.weights_report.adapted == {"conv1.weight": "mean of 3 bands times 3/10"}
    assert agree(model, state, without={"conv1.weight"})


def test_the_stem_may_stay_random(tmp_path, state):
    torch.save(state, tmp_path / "w.pt")
    torch.manual_seed(1)
    fresh = network(in_channels=4).conv1.weight
    torch.manual_seed(1)
    model = network(in_channels=4, weights=tmp_path / "w.pt", band_init="random")
    assert torch.equal(model.conv1.weight, fresh)
    assert "conv1.weight" in model.weights_report.kept_initial


def test_what_does_not_fit_is_refused(tmp_path, state):
    torch.save(state, tmp_path / "w.pt")
    for arguments, message in (
        ({"backbone": "resnet34"}, r"lacks \d+ entries of this ResNet, first layer1.2"),
        (
            {"width": 16},
            r"in another shape \d+ entries of this ResNet, first conv1.weight \(\[8, 3, 7, 7\], not \[16, 3, 7, 7\]\)",
        ),
        ({"stem": "small"}, "in another shape 1 entries"),
        ({"in_channels": 4, "stem": "small"}, "in another shape 1 entries"),
        ({"band_init": "zeros"}, "band_init must be mean or random, got 'zeros'"),
    ):
        with pytest.raises(ConfigError, match=message):
            network(**arguments, weights=tmp_path / "w.pt")
    torch.save(network(backbone="resnet34").state_dict(), tmp_path / "deeper.pt")
    with pytest.raises(ConfigError, match=r"has, and the network has not, \d+ entries"):
        network(weights=tmp_path / "deeper.pt")


class _Payload:
    def __reduce__(self):
        return (print, ("unpickled",))


def test_unreadable_files_are_one_line_errors_and_run_no_code(tmp_path, capsys):
    with pytest.raises(ConfigError, match="nothing is downloaded"):
        network(weights=tmp_path / "absent.pt")
    (tmp_path / "noise.pt").write_bytes(b"not a checkpoint")
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "noise.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00not json at all")
    (tmp_path / "code.pt").write_bytes(pickle.dumps({"conv1.weight": _Payload()}, protocol=2))
    torch.save({"conv1.weight": _Payload()}, tmp_path / "code_zip.pt")
    for name in ("noise.pt", "empty.pt", "noise.safetensors", "code.pt", "code_zip.pt"):
        with pytest.raises(ConfigError, match=f"{name} is neither safetensors nor a plain torch state dict") as error:
            network(weights=tmp_path / name)
        assert "\n" not in str(error.value)
    assert "unpickled" not in capsys.readouterr().out
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    with pytest.raises(ConfigError, match="does not hold a state dict"):
        network(weights=tmp_path / "list.pt")
    torch.save({"encoder.stem": torch.ones(2)}, tmp_path / "other.pt")
    with pytest.raises(ConfigError, match=r"no entry 'conv1.weight'; it begins with encoder\.stem"):
        network(weights=tmp_path / "other.pt")
