"""Apple's GPUs: nothing makes a float64 number there, and the results are the same."""

import pytest
import torch
from support.tiny_networks import adapter_of, batches, tiny
from support.without_float64 import without_float64

from dem_apps import OBJECTIVE_NAMES, build_objective
from dem_apps.test_time_methods import METHODS


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("how", ["mean", "balanced"])
@pytest.mark.parametrize("name", OBJECTIVE_NAMES)
def test_every_objective(name, how, backend):
    logits, counted = 3 * torch.randn(2, 5, 6, 7, generator=torch.Generator().manual_seed(0)), torch.ones(2, 6, 7) > 0
    counted[:, :2] = False

    def result():
        objective, z = build_objective(name, 5, backend=backend), logits.clone().requires_grad_()
        values = objective(z, dim=1, mask=counted, reduction=how)
        values.sum().backward()
        return [values.detach(), z.grad, *objective.buffers()]

    expected = result()
    with without_float64():
        found = result()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("method", METHODS)
def test_every_test_time_method(method):
    stream = [images.float() for images in batches()]
    source = {"source_images": [images.float() for images in batches(2, seed=9)]} if method == "eata" else {}

    def result(model):
        adapter = adapter_of(method, model, reduction="balanced", **source)
        return [adapter(images) for images in stream][-1]

    expected, model = result(tiny().float()), tiny().float()
    with without_float64():
        found = result(model)
    torch.testing.assert_close(found, expected)
