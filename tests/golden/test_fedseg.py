"""Golden numbers of FedSeg through its hooks and functions. What the cases call ignore index is the background."""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn

from fedrs_lightning.methods.fedseg import FedSeg, pixel_contrast
from fedrs_lightning.types import Client, Local, Output

from .test_golden import Network, cases


class Pixels(Network):
    """A segmentation task around a network that answers with given outputs."""

    label_kind = "pixel_classes"

    def __init__(self, num_classes, channels, outputs=()):
        super().__init__(nn.Module())
        self.model.embedding_channels, self.num_classes, self.ignore_index, self.outputs = (
            channels,
            num_classes,
            -1,
            iter(outputs),
        )
        self.register_parameter("anything", nn.Parameter(torch.zeros(1)))

    def forward(self, image):
        return next(self.outputs)

    def criterion(self, output, batch):
        return torch.zeros(())


class NoFabric:
    autocast = contextlib.nullcontext


def visit(method, task, batches=()):
    method.adapt(task)
    task.model.fedseg = nn.Identity()  # the cases give embeddings, not decoder outputs
    received = task.model_state()
    local = Local(
        Client(0, 1), 2, task, received, {}, 1, optimizer=None, fabric=NoFabric(), batches=lambda augment: iter(batches)
    )
    method.on_local_start(local)
    return local


@pytest.mark.parametrize(("case", "tolerance"), cases("fedseg", "modified_ce"))
def test_modified_cross_entropy(case, tolerance):
    inputs, expected = case["inputs"], case["outputs"]
    logits = torch.tensor(inputs["logits"], dtype=torch.float64).requires_grad_()
    labels = torch.tensor(inputs["labels"])
    method = FedSeg(background_index=case["params"]["ignore_index"], embedding_dim=2)
    local = visit(method, Pixels(case["params"]["num_classes"], 2))
    embedding = torch.ones(len(labels), 2, 2, 2)
    terms = method.loss(local, {"image": logits, "mask": labels}, Output(logits, embedding))
    terms["task"].backward()
    np.testing.assert_allclose(terms["task"].item(), expected["loss"], **tolerance["modified_ce"])
    np.testing.assert_allclose(logits.grad, expected["grad_logits"], **tolerance["modified_ce"])


@pytest.mark.parametrize("max_anchors", [None, 4096])  # either is no limit for these few pixels
@pytest.mark.parametrize(("case", "tolerance"), cases("fedseg", "pixel_contrast"))
def test_pixel_contrast(case, tolerance, max_anchors):
    inputs, expected = case["inputs"], case["outputs"]
    embedding = torch.tensor(inputs["embeddings"]).requires_grad_()
    labels, memory, held = (torch.tensor(inputs[name]) for name in ("labels", "memory", "memory_mask"))
    labels = torch.where(labels == case["params"]["ignore_index"], -1, labels).long()
    vectors, classes = memory[held > 0], (held > 0).nonzero()[:, 0]
    draws = torch.rand(labels.numel(), generator=torch.Generator().manual_seed(0))
    loss = pixel_contrast(
        embedding, labels, vectors, classes, len(memory), case["params"]["temperature"], max_anchors, draws
    )
    loss.backward()
    np.testing.assert_allclose(loss.item(), expected["loss"], **tolerance["pixel_contrast"])
    np.testing.assert_allclose(embedding.grad, expected["grad_embeddings"], **tolerance["pixel_contrast"])


@pytest.mark.parametrize(("case", "tolerance"), cases("fedseg", "class_memory"))
def test_class_memory(case, tolerance):
    """Through the hook, one image a batch."""
    images, expected = case["inputs"]["images"], case["outputs"]
    outputs = [Output(torch.tensor(image["logits"]), torch.tensor(image["emb"])) for image in images]
    outputs = [
        Output(o.logits.reshape(1, *o.logits.shape[-3:]), o.embedding.reshape(1, *o.embedding.shape[-3:]))
        for o in outputs
    ]
    batches = [
        {"image": output.logits, "mask": torch.tensor(image["labels"]).reshape(1, *output.logits.shape[-2:])}
        for image, output in zip(images, outputs, strict=True)
    ]
    channels = outputs[0].embedding.shape[1]
    method = FedSeg(
        background_index=case["params"]["ignore_index"], embedding_dim=channels, threshold=case["params"]["threshold"]
    )
    local = visit(method, Pixels(case["params"]["num_classes"], channels, outputs), batches)
    vectors, classes = local.scratch["fedseg/memory"]
    memory, held = torch.tensor(expected["memory_after_normalisation"]), torch.tensor(expected["memory_mask"]) > 0
    wanted = [
        memory[number, image] for image in range(len(images)) for number in range(len(memory)) if held[number, image]
    ]
    assert classes.tolist() == [
        number for image in range(len(images)) for number in range(len(memory)) if held[number, image]
    ]
    np.testing.assert_allclose(vectors, torch.stack(wanted), **tolerance["class_memory"])
