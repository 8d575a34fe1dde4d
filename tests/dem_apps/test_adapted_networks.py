"""Networks that were changed on the object, that change under eval(), or that cannot be adapted, and odd images."""

from __future__ import annotations

import copy
import functools
import os
import threading
import time
import weakref
from typing import Any

import pytest
import torch
from support.tiny_networks import CLASSES, LEARNING, adapter_of, assert_same_parameters, batches, moved, tiny
from torch import Tensor, nn

from dem_apps.errors import InputError


def replaced(forward: Any, how: str, owner: nn.Module) -> Any:
    """As mixed precision, offloading and checkpointing (facebookresearch/fairscale#816) replace it on the object."""
    if how == "weakref":
        return functools.partial(lambda weak, images: type(owner).forward(weak(), images), weakref.ref(owner))
    if how == "autocast":
        return torch.autocast("cpu", enabled=False)(forward)
    if how == "partial":
        return functools.partial(lambda call, images: call(images), forward)

    @functools.wraps(forward)
    def wrapped(*given: Any) -> Any:
        return forward(*given)

    return wrapped


@pytest.mark.parametrize("how", ["autocast", "partial", "wraps", "weakref"])
@pytest.mark.parametrize("of", ["whole", "layer"])
def test_a_forward_that_was_replaced_on_the_object_is_not_shared(how: str, of: str) -> None:
    model = tiny()
    owner = model if of == "whole" else model.last
    owner.forward = replaced(replaced(owner.forward, how, owner), how, owner)
    adapter, plain = adapter_of("cotta", model), adapter_of("cotta")
    for images in batches():
        assert torch.equal(adapter(images), plain(images))
    assert_same_parameters(adapter.predictor, plain.predictor, rtol=0)
    (images,) = batches(1, seed=5)
    assert not torch.equal(adapter.predictor(images), model(images))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    twin = copy.deepcopy(adapter)
    assert torch.equal(twin(images), plain(images))
    assert moved(twin.model, model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Merging(nn.Conv2d):
    """Adds a low-rank part to its weight in eval(), as microsoft/LoRA's layers do."""

    def __init__(self) -> None:
        super().__init__(6, CLASSES, 1)
        self.down, self.up, self.merged = nn.Parameter(torch.ones(2, 6)), nn.Parameter(torch.ones(CLASSES, 2)), False

    def train(self, mode: bool = True) -> Merging:
        super().train(mode)
        if mode == self.merged:
            self.weight.data += (-1 if mode else 1) * (self.up.data @ self.down.data)[:, :, None, None]
            self.merged = not mode
        return self

    def forward(self, images: Tensor) -> Tensor:
        low = (self.up @ self.down)[:, :, None, None]
        return super().forward(images) + (0.0 if self.merged else nn.functional.conv2d(images, low))


class Frozen(nn.BatchNorm2d):
    """Stays in eval(), as the layers of many segmentation networks."""

    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)


def test_layers_that_write_their_weights_in_eval_are_refused_and_stay_as_they_were() -> None:
    model, (images,) = tiny(), batches(1)
    model.last = Merging().double()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=r"its layers write 'last\.weight' in eval\(\).* call model\.eval\(\) before"):
        adapter_of("tent", model)
    assert model.training
    assert not model.last.merged
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    adapter = adapter_of("none", model.eval())
    torch.testing.assert_close(adapter(images), model(images))
    model.norm = Frozen(6).double()
    assert adapter_of("tent", model.eval())(images).isfinite().all()


def exported() -> nn.Module:
    return torch.export.export(tiny().eval(), (batches(1)[0],)).module()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (exported, "model: it was exported, and its layers are operations"),
        (lambda: nn.Sequential(nn.LazyConv2d(4, 1), nn.BatchNorm2d(4)), "model: it has lazy layers without weights"),
        (lambda: tiny().to("meta"), "model: parameters are on the device meta"),
    ],
)
@pytest.mark.parametrize("method", ["none", "tent"])
def test_networks_without_layers_or_numbers_are_refused(method: str, make: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        adapter_of(method, make())


def test_a_network_made_of_a_graph_adapts_as_the_one_it_was_traced_from() -> None:
    traced = adapter_of("cotta", torch.fx.symbolic_trace(tiny()))
    plain = adapter_of("cotta")
    for images in batches():
        torch.testing.assert_close(traced(images), plain(images))


@pytest.mark.parametrize("method", LEARNING)
def test_the_graph_of_images_is_the_callers(method: str) -> None:
    leaf = batches(1)[0].requires_grad_()
    images = leaf * 2.0
    adapter, plain = adapter_of(method), adapter_of(method)
    adapter.start(images)
    plain.start(images.detach())
    assert torch.equal(adapter(images), plain(images.detach()))
    assert leaf.grad is None
    images.sum().backward()
    assert torch.equal(leaf.grad, torch.full_like(leaf, 2.0))


@pytest.mark.parametrize(
    "change",
    [lambda x: x[:, :1], lambda x: (50 * x).to(torch.uint8), lambda x: x.float(), lambda x: x[0]],
    ids=["one channel", "uint8", "float32", "no batch"],
)
@pytest.mark.parametrize("method", ["none", "tent"])
def test_images_that_the_network_does_not_take_are_one_sentence(method: str, change: Any) -> None:
    adapter, (images,) = adapter_of(method), batches(1)
    with pytest.raises(InputError, match=r"^images: the network does not take torch\.") as refused:
        adapter(change(images))
    assert "\n" not in str(refused.value)
    assert torch.equal(adapter(images), adapter_of(method)(images))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_child_adapts_that_was_forked_while_a_thread_adapts() -> None:
    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny()

        def forward(self, images: Tensor) -> Tensor:
            begun.set()
            time.sleep(0.2)
            return self.inner(images)

    begun, (images,) = threading.Event(), batches(1)
    adapter = adapter_of("tent", Slow())
    thread = threading.Thread(target=adapter, args=(images,))
    thread.start()
    assert begun.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(0 if adapter(images).isfinite().all() else 1)
    for _ in range(600):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.1)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
    thread.join()
    assert ended
    assert status == 0
    assert adapter(images).isfinite().all()
