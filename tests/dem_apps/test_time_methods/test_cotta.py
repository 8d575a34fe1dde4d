"""CoTTA against a loop written from the paper."""

import copy

import pytest
import torch
from support.tiny_networks import CLASSES, assert_same, batches, moved, published, tented, tiny

LR, M, P = 0.05, 0.9, 0.1


def cross_entropy(teacher, logits):
    return -(teacher.softmax(1) * logits.log_softmax(1)).sum(1)


class PlainCoTTA:
    def __init__(self, model, seed):
        self.model = tented(model).requires_grad_(True)
        self.teacher, self.first = copy.deepcopy(self.model), copy.deepcopy(self.model)
        self.draws = torch.Generator().manual_seed(seed)
        self.steps = torch.optim.SGD(self.model.parameters(), LR, momentum=0.9)

    def step(self, images, taught):
        self.steps.zero_grad()
        cross_entropy(taught.detach(), self.model(images)).mean().backward()
        self.steps.step()
        with torch.no_grad():
            networks = (each.parameters() for each in (self.teacher, self.model, self.first))
            for slow, fast, first in zip(*networks, strict=True):
                slow.copy_(M * slow + (1 - M) * fast)
                mask = (torch.rand(fast.shape, generator=self.draws) < P).double()
                fast.copy_(first * mask + fast * (1 - mask))


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("dense", [True, False])
def test_cotta_is_the_papers(norm, dense):
    model = tiny(norm, dense)
    plain = PlainCoTTA(model, seed=4)
    adapter = published(model, "cotta", lr=LR, momentum=M, restore=P, seed=4)
    for images in batches(6):
        mirrored = plain.teacher(images.flip(3))
        taught = (plain.teacher(images) + (mirrored.flip(3) if dense else mirrored)) / 2
        torch.testing.assert_close(adapter(images), taught.detach(), rtol=1e-7, atol=1e-7)
        plain.step(images, taught)
    assert moved(model, tiny(norm, dense)) >= {
        "first.weight",
        "norm.weight",
        "norm.bias",
        "last.weight",
        "last.bias",
    }
    assert_same(model, plain.model, rtol=1e-7)
    assert_same(adapter._method.teacher, plain.teacher, rtol=1e-7)


def test_the_teacher_averages_over_mirroring_and_scales():
    model = tiny("group")
    plain = PlainCoTTA(model, seed=0)
    (images,) = batches(1)
    small = torch.nn.functional.interpolate(images, size=(4, 4), mode="bilinear", antialias=True)
    views = []
    for view in (images, small):
        for mirrored in (view, view.flip(3)):
            logits = plain.teacher(mirrored)
            logits = logits if mirrored is view else logits.flip(3)
            views.append(
                torch.nn.functional.interpolate(
                    logits, size=(8, 8), mode="bilinear", antialias=True
                )
            )
    taught = sum(views) / 4
    adapter = published(model, "cotta", lr=LR, momentum=M, restore=P, scales=(1, 0.5))
    torch.testing.assert_close(adapter(images), taught.detach(), rtol=1e-7, atol=1e-7)
    plain.step(images, taught)
    assert_same(model, plain.model, rtol=1e-7)


def test_balanced_mask_and_objective():
    model = tiny("group")
    expected = tented(model).requires_grad_(True)
    (images,) = batches(1)
    mask = torch.zeros(4, 8, 8, dtype=torch.bool)
    mask[:3, 2:] = True
    taught, logits = (
        (expected(images) + expected(images.flip(3)).flip(3)).detach() / 2,
        expected(images),
    )
    label, own = taught.argmax(1), logits.argmax(1)
    total = torch.zeros((), dtype=torch.float64)
    entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
    for weight, values, predicted in (
        (1.0, cross_entropy(taught, logits), label),
        (0.3, entropy, own),
    ):
        groups = [
            mask & (predicted == each)
            for each in range(CLASSES)
            if (mask & (predicted == each)).any()
        ]
        for group in groups:
            total = total + weight * values[group].mean() / len(groups)
    total.backward()
    torch.optim.SGD(expected.parameters(), LR).step()
    adapter = published(
        model, "cotta", lr=LR, reduction="balanced", restore=0.0, objective_weight=0.3
    )
    adapter(images, mask)
    assert_same(model, expected, rtol=1e-7)
    before = copy.deepcopy(model)
    adapter(images, torch.zeros_like(mask))
    assert not moved(model, before)
