"""Finite numbers alone are written; half precision, forbidden classes, and input that is no batch of images."""

from functools import partial

import pytest
import torch
from support import cases, refuses, tiny_networks
from support.tiny_networks import CLASSES, LEARNING, assert_same, batches, moved, tiny
from support.without_float64 import without_float64
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dem_apps import OBJECTIVE_NAMES, build_objective
from dem_apps.errors import NotFiniteError
from dem_apps.test_time_methods import METHODS

HALF = (torch.bfloat16, torch.float16)
adapter_of = partial(tiny_networks.adapter_of, lr=0.01)


def assert_untouched(adapter, without):
    """Both go on to the same bits."""
    for images in batches(2, seed=5):
        assert torch.equal(adapter(images), without(images))
    for name, value in without.model.state_dict().items():
        assert torch.equal(adapter.model.state_dict()[name], value)


@pytest.mark.parametrize("method", LEARNING)
@cases(
    ("images", ""),
    ("gradient", "a gradient is NaN"),
    ("state", "a weight or the optimiser's state"),
    ("weights", "a weight or the optimiser's state"),
)
def test_what_a_step_would_write_stays_only_where_it_is_finite(spoils, said, method):
    adapter, without = (adapter_of(method, optimizer="adam") for _ in range(2))
    good, images = batches(2)
    adapter(good)
    without(good)
    assert adapter.optimizer is not None
    # a squared gradient of 1e500 is in Adam's memory only: its step is 0
    factor = {"gradient": torch.nan, "state": 1e250}.get(spoils, 1.0)
    hook = adapter.learning["norm.weight"].register_hook(lambda gradient: gradient * factor)
    adapter.optimizer.param_groups[0]["lr"] = torch.inf if spoils == "weights" else 0.01
    with pytest.raises(NotFiniteError, match=f"{said}.*no weight was changed"):
        adapter(images * (torch.nan if spoils == "images" else 1.0))
    hook.remove()
    adapter.optimizer.param_groups[0]["lr"] = 0.01
    assert_untouched(adapter, without)


def test_a_mistake_after_the_forward_undoes_it():
    adapter, without = (adapter_of("tent") for _ in range(2))
    refuses("mask: expected a bool", adapter, batches(1)[0], torch.ones(3, dtype=torch.bool))
    assert_untouched(adapter, without)


@pytest.mark.parametrize("dtype", HALF)
@cases(
    ("batch", "tent", {"optimizer": "sgd", "lr": 1e-3}),
    ("group", "tent", {"optimizer": "adam", "lr": 1e-3}),
    ("group", "sar", {"optimizer": "adamw", "lr": 1e-3, "rho": 0.0, "entropy_margin": 9.0}),
    (
        "batch",
        "cotta",
        {"parameters": "normalisation", "mirror": False, "momentum": 0.98, "restore": 0.0},
    ),
)
def test_half_precision_learns_as_float32(norm, method, arguments, dtype):
    def make(dtype):
        model = tiny(norm)
        nn.init.ones_(model.norm.weight)
        return adapter_of(method, model.to(dtype), objective="entropy", **arguments)

    full, half, resumed = make(torch.float32), make(dtype), make(dtype)
    for images in batches(60, seed=3):
        full(images.float())
        last = half(images.to(dtype))
    assert last.dtype == dtype
    apart = torch.finfo(dtype).eps
    for network in ("model", "predictor"):
        expected, actual = (
            getattr(each, network).norm.weight.detach().float() for each in (full, half)
        )
        most = float((expected - 1).abs().max())
        assert most > 2 * apart
        torch.testing.assert_close(actual, expected, rtol=0, atol=apart + 0.1 * most)
    resumed.load_state_dict(half.state_dict())
    for images in batches(2):
        assert torch.equal(resumed(images.to(dtype)), half(images.to(dtype)))


@pytest.mark.parametrize("dtype", HALF)
def test_one_autocast_around_all_batches_is_as_one_around_each(dtype):
    each, once = (adapter_of("tent", tiny("group").float(), parameters="all") for _ in range(2))
    given = [images.float() for images in batches(3)]
    expected = []
    for images in given:
        with torch.autocast("cpu", dtype=dtype):
            expected.append(each(images))
    with torch.autocast("cpu", dtype=dtype):
        with torch.no_grad():
            once.model(given[0])
        assert all(
            torch.equal(once(images), logits)
            for images, logits in zip(given, expected, strict=True)
        )


class Masked(nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.inner, self.fill = tiny(), fill

    def forward(self, images):
        allowed, logits = torch.arange(CLASSES) != 2, self.inner(images)
        return (
            logits[:, allowed]
            if self.fill is None
            else logits.where(allowed.view(1, -1, 1, 1), self.fill)
        )


@pytest.mark.parametrize("method", LEARNING)
def test_a_class_that_a_network_forbids_is_not_there(method):
    options = {"objective": "entropy"}
    if method in ("eta", "eata", "sar", "deyo"):
        options |= {"entropy_margin": 0.6}
    if method == "deyo":
        options["weight_margin"] = 0.5
    each = [adapter_of(method, Masked(fill), **options) for fill in (None, -torch.inf, -1e8)]
    for images in batches(3):
        for adapter in each:
            adapter(images)
    assert moved(each[0].model.inner, tiny())
    for adapter in each[1:]:
        assert_same(adapter.model.inner, each[0].model.inner, rtol=1e-6)


@cases(
    ([torch.zeros(2, 3, 8, 8), torch.zeros(2)], "got a list"),
    (torch.zeros(2, 3, 8, 8).numpy(), "got a ndarray"),
)
def test_what_is_no_batch_of_images_is_one_sentence(given, said):
    refuses(f"^images: expected a tensor of images .*{said}", adapter_of("tent"), given)
    refuses(
        f"^source_images: expected a tensor of images .*{said}",
        adapter_of,
        "eata",
        source_images=[given],
    )


@cases(
    (batches(1)[0], "expected batches of images, got one tensor"),
    (
        DataLoader(TensorDataset(batches(1)[0]), batch_size=8, drop_last=True),
        "holds no image",
    ),
)
def test_source_images_must_be_batches(given, said):
    model = tiny()
    refuses(f"source_images: {said}", adapter_of, "eata", model, source_images=given)
    assert all(value.requires_grad for value in model.parameters())


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("how", ["mean", "balanced"])
@pytest.mark.parametrize("name", OBJECTIVE_NAMES)
def test_every_objective(name, how, backend):
    logits, counted = (
        3 * torch.randn(2, 5, 6, 7, generator=torch.Generator().manual_seed(0)),
        torch.ones(2, 6, 7) > 0,
    )
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
    source = (
        {"source_images": [images.float() for images in batches(2, seed=9)]}
        if method == "eata"
        else {}
    )

    def result(model):
        adapter = adapter_of(method, model, lr=0.05, reduction="balanced", **source)
        return [adapter(images) for images in stream][-1]

    expected, model = result(tiny().float()), tiny().float()
    with without_float64():
        found = result(model)
    torch.testing.assert_close(found, expected)
