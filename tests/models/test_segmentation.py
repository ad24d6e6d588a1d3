"""Segmentation networks: shapes, the library's own forward pass, weights from a file, errors."""

import pytest
import segmentation_models_pytorch as smp
import torch
from torchvision.models import resnet18

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.models.segmentation import SegmentationNetwork
from fedrs_lightning.seeding import rng_stream

CASES = {  # architecture, encoder, options, (embedding, shallow, deep) as (channels, stride)
    "deeplabv3plus-resnet50": ("deeplabv3plus", "resnet50", {}, ((256, 4), (256, 4), (2048, 16))),
    "deeplabv3plus-resnet18-aspp": ("deeplabv3plus", "resnet18", {"deep": "aspp"}, ((256, 4), (64, 4), (256, 16))),
    "fpn-resnet34": ("fpn", "resnet34", {}, ((128, 4), (64, 4), (512, 32))),
    "unet-resnet18": ("unet", "resnet18", {}, ((16, 1), (64, 4), (512, 32))),
    "segformer-mit_b0": ("segformer", "mit_b0", {}, ((256, 4), (32, 4), (256, 32))),
    "narrow": ("deeplabv3plus", "resnet18", {"encoder_width": 8, "decoder_channels": 16}, ((16, 4), (8, 4), (64, 16))),
    "narrow-bottleneck": (
        "fpn",
        "resnet50",
        {"encoder_width": 8, "decoder_channels": 32},
        ((32, 4), (32, 4), (256, 32)),
    ),
}


@pytest.mark.parametrize(("architecture", "encoder", "options", "maps"), CASES.values(), ids=CASES)
def test_shapes_of_one_forward_pass(architecture, encoder, options, maps):
    network = SegmentationNetwork(architecture, encoder, 5, 4, **options)
    calls = []
    network.encoder.register_forward_hook(lambda *_: calls.append(1))
    output = network.eval()(torch.randn(2, 4, 64, 96))
    assert output.logits.shape == (2, 5, 64, 96)
    for tensor, (channels, stride) in zip((output.embedding, output.shallow, output.deep), maps, strict=True):
        assert tensor.shape == (2, channels, 64 // stride, 96 // stride)
    assert (network.embedding_channels, network.shallow_channels, network.deep_channels) == tuple(
        channels for channels, _ in maps
    )
    assert len(calls) == 1


@pytest.mark.parametrize("deep", ["encoder", "aspp"])
def test_logits_are_those_of_the_library(deep):
    with rng_stream(1, "model"):
        network = SegmentationNetwork("deeplabv3plus", "resnet18", 3, 3, deep=deep)
    with rng_stream(1, "model"):
        reference = smp.DeepLabV3Plus("resnet18", encoder_weights=None, in_channels=3, classes=3)
    assert network.state_dict().keys() == reference.state_dict().keys()
    assert all(torch.equal(value, reference.state_dict()[name]) for name, value in network.state_dict().items())
    image = torch.randn(2, 3, 64, 64)
    with rng_stream(2, "dropout"):
        logits = network(image).logits
    with rng_stream(2, "dropout"):
        expected = reference(image)
    assert torch.equal(logits, expected)


def test_the_head_reads_the_embedding():
    network = SegmentationNetwork("unet", "resnet18", 3, 2, encoder_width=8, decoder_channels=4).eval()
    output = network(torch.randn(1, 2, 32, 64))
    assert torch.equal(network.segmentation_head(output.embedding), output.logits)


def test_encoder_weights_come_from_a_local_file(tmp_path):
    source = resnet18(num_classes=7)
    torch.save(source.state_dict(), tmp_path / "encoder.pth")
    network = SegmentationNetwork("fpn", "resnet18", 3, 5, weights=tmp_path / "encoder.pth")
    encoder, expected = network.encoder.state_dict(), source.state_dict()
    assert network.weights_report.loaded == len(encoder)
    for name, value in encoder.items():
        wanted = expected[name]
        if name == "conv1.weight":
            wanted = (wanted.mean(1, keepdim=True) * (3 / 5)).expand(value.shape)
        torch.testing.assert_close(value, wanted, rtol=0, atol=0)


def test_a_transformer_takes_its_own_weights(tmp_path):
    source = SegmentationNetwork("segformer", "mit_b0", 3, 3).encoder.state_dict()
    torch.save(source | {"head.weight": torch.zeros(10, 256), "head.bias": torch.zeros(10)}, tmp_path / "mit.pth")
    network = SegmentationNetwork("segformer", "mit_b0", 4, 3, weights=tmp_path / "mit.pth")
    assert all(torch.equal(value, source[name]) for name, value in network.encoder.state_dict().items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"architecture": "pspnet"}, "architecture must be deeplabv3plus, fpn, unet or segformer, got 'pspnet'"),
        ({"encoder": "resnet101"}, "encoder must be .* or .*, got 'resnet101'"),
        ({"architecture": "segformer"}, "segformer goes with mit_b0, not with resnet18"),
        ({"encoder": "mit_b0"}, "unet goes with resnet18, resnet34 or resnet50, not with mit_b0"),
        ({"deep": "aspp"}, "unet has not; choose deep: encoder"),
        ({"in_channels": 0}, "in_channels: 0 is below 1"),
        ({"architecture": "fpn", "decoder_channels": 16}, "decoder_channels: 16, but fpn has 32 groups"),
        ({"decoder_channels": 0}, "decoder_channels: 0 is below 1"),
        ({"architecture": "segformer", "encoder": "mit_b0", "encoder_width": 16}, "mit_b0 has one width only"),
        ({"weights": "nowhere.pth"}, "no file nowhere.pth; nothing is downloaded"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    with pytest.raises(ConfigError, match=message):
        SegmentationNetwork(
            **({"architecture": "unet", "encoder": "resnet18", "num_classes": 3, "in_channels": 3} | arguments)
        )


def test_sides_must_be_multiples_of_the_stride():
    network = SegmentationNetwork("deeplabv3plus", "resnet18", 3, 3, encoder_width=8, decoder_channels=8)
    with pytest.raises(
        ConfigError, match=r"64 x 50 pixels do not fit deeplabv3plus.*multiples of 16; choose a crop size such as 48"
    ):
        network(torch.randn(2, 3, 64, 50))
