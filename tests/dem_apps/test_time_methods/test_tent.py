"""Tent against a loop written from its paper; batch statistics against PyTorch's own."""

import copy

import pytest
import torch
from support import refuses
from support.paper_reference import Paper
from support.tiny_networks import (
    CLASSES,
    assert_same,
    batches,
    entropy_of,
    moved,
    published,
    tented,
    tiny,
)
from torch import nn

from dem_apps import TestTimeAdapter


@pytest.mark.parametrize("norm", ["batch", "group", "instance"])
@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_entropy_is_tent(norm, dense, optimizer):
    model = tiny(norm, dense, dropout=0.0)
    expected = tented(model)
    build = {
        "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, 0.05),
    }
    steps = build[optimizer](list(expected.norm.parameters()))
    adapter = published(model, method="tent", lr=0.05, optimizer=optimizer)
    for images in batches():
        logits = expected(images)
        loss = entropy_of(logits).mean()
        steps.zero_grad()
        loss.backward()
        steps.step()
        torch.testing.assert_close(adapter(images), logits.detach(), rtol=1e-9, atol=1e-9)
    assert_same(model, expected)
    assert moved(model, tiny(norm, dense)) == {"norm.weight", "norm.bias"}


@pytest.mark.parametrize("name", ["adadem", "dem", "info-max"])
@pytest.mark.parametrize("reduction", ["mean", "balanced"])
def test_objectives_by_their_own_papers(name, reduction):
    model = tiny()
    expected, paper = tented(model), Paper(name, CLASSES)
    steps = torch.optim.SGD(expected.norm.parameters(), 0.05, momentum=0.9)
    adapter = published(model, "tent", name, lr=0.05, reduction=reduction)
    for images in batches(3):
        steps.zero_grad()
        paper.loss(expected(images), reduction=reduction).backward()
        steps.step()
        adapter(images)
    assert_same(model, expected, rtol=1e-6)  # the class marginals are float32
    if name == "adadem":
        torch.testing.assert_close(
            adapter.objective.class_marginals.double(), paper.avg_pred, rtol=1e-6, atol=1e-7
        )


def test_a_mask_leaves_pixels_out_of_the_loss():
    model, mask = tiny("group"), torch.zeros(4, 8, 8, dtype=torch.bool)
    expected = tented(model)
    mask[:, 2:6, 1:] = True
    (images,) = batches(1)
    entropy_of(expected(images))[mask].mean().backward()
    torch.optim.SGD(expected.norm.parameters(), 0.05).step()
    adapter = published(model, lr=0.05)
    for wrong in (mask.float(), mask[:, 1:]):
        refuses("mask: expected a bool", adapter, images, wrong)
    adapter(images, mask)
    assert_same(model, expected)


def test_an_element_of_coarser_logits_counts_where_all_its_pixels_do():
    model = nn.Sequential(nn.AvgPool2d(2), tiny("group"))
    mask = torch.ones(4, 8, 8, dtype=torch.bool)
    mask[:, 0, :] = False  # half of the first row of elements
    coarse = torch.ones(4, 4, 4, dtype=torch.bool)
    coarse[:, 0] = False
    (images,) = batches(1)
    by_pixels, by_elements = (published(copy.deepcopy(model), lr=0.05) for _ in range(2))
    by_pixels(images, mask)
    by_elements(images, coarse)
    assert not moved(by_pixels.model, by_elements.model)
    assert moved(by_pixels.model, model)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_batch_statistics_are_mixed_with_the_stored_ones(alpha):
    model = tiny()
    (images,) = batches(1)
    features = model.first(images)
    mean = (1 - alpha) * model.norm.running_mean + alpha * features.mean((0, 2, 3))
    apart = (features.mean((0, 2, 3)) - model.norm.running_mean).square()
    variance = (1 - alpha) * model.norm.running_var + alpha * features.var((0, 2, 3), correction=0)
    variance += alpha * (1 - alpha) * apart
    normed = (features - mean[:, None, None]) / (variance + model.norm.eps).sqrt()[:, None, None]
    scaled = normed * model.norm.weight[:, None, None] + model.norm.bias[:, None, None]
    expected = model.last(scaled.relu())
    start = copy.deepcopy(model.state_dict())
    adapter = TestTimeAdapter(model, "bn", bn_alpha=alpha)
    for _ in range(2):
        torch.testing.assert_close(adapter(images), expected.detach(), rtol=1e-6, atol=1e-6)
    assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items())
    adapter.close()
    torch.testing.assert_close(
        model.eval()(images), TestTimeAdapter(model, "none")(images), rtol=0, atol=0
    )


def test_batch_statistics_need_batch_norm():
    refuses("no batch norm", published, tiny("group"), "bn")
