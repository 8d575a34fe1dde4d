"""Networks and images of every kind: adapted right, or named in a sentence."""

import copy
import functools
import weakref
from types import SimpleNamespace

import pytest
import torch
from support import cases, refuses
from support.tiny_networks import (
    CLASSES,
    LEARNING,
    Ends,
    Tiny,
    adapter_of,
    assert_same,
    batches,
    moved,
    tiny,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

from dem_apps.test_time_methods import METHODS


@cases(
    lambda z: SimpleNamespace(logits=z),
    lambda z: {"logits": z},
    lambda z: {"main": z, "aux": z * 2},
    lambda z: {"out": z},
)
def test_logits_are_found_in_the_outputs_of_networks(end):
    (images,) = batches(1)
    assert torch.equal(adapter_of("tent", Ends(end))(images), adapter_of("tent")(images))
    second = adapter_of("tent", Ends(lambda z: (None, z)), logits_of=lambda output: output[1])
    assert torch.equal(second(images), adapter_of("tent")(images))


@cases(
    (lambda z: z.softmax(1), "sums to one over the classes, so it is probabilities"),
    (lambda z: z.bfloat16().softmax(1), "sums to one over the classes, so it is probabilities"),
    (lambda z: z.half().sigmoid(), "lies between 0 and 1 everywhere, so it is probabilities"),
    (lambda z: z[:, :1].sigmoid(), "lies between 0 and 1 everywhere, so it is probabilities"),
    (lambda z: (z, z), "no logits were found"),
    (lambda z: z.flatten(2), "expected logits \\(B, C\\) or \\(B, C, H, W\\)"),
    (lambda z: z[:, :1], "one logit per element.* give logits_of=lambda output: torch.cat"),
    (lambda z: z.repeat(1, 2, 1, 1), "num_classes: 5, but the network's logits have 10"),
)
def test_output_that_is_no_logits_is_refused(end, sentence):
    model = Ends(end)
    refuses(
        sentence,
        adapter_of("tent", model, num_classes=CLASSES if "5, but" in sentence else None),
        batches(1)[0],
    )
    assert not moved(model.inner, tiny())
    if "probabilities" in sentence:
        refuses(sentence, adapter_of("bn", Ends(end)), batches(1)[0])


class Hooked(nn.Module):
    """A hook that writes into the network that was there when it was made (isl-org/MiDaS#251)."""

    def __init__(self):
        super().__init__()
        self.inner, self.kept = tiny(), {}
        self.inner.norm.register_forward_hook(
            lambda layer, inputs, output: self.kept.update(last=output)
        )
        self(batches(1, seed=5)[0])

    def forward(self, images):
        self.inner(images)
        return self.inner.last(self.kept["last"].relu())


def test_networks_that_torch_cannot_adapt():
    (images,) = batches(1)
    with torch.inference_mode():
        model, cached = tiny(), images[:1, :1] * 1
    refuses("its parameters were made under", adapter_of, "tent", model)
    refuses(
        "it keeps tensors that were made under",
        adapter_of("tent", Ends(lambda z: z * cached)),
        images,
    )
    for method in ("bn", "tent"):
        refuses("it is a ScriptModule", adapter_of, method, torch.jit.trace(tiny().eval(), images))
    detached = Ends(lambda z: z.detach())
    refuses("the logits do not depend on what learns", adapter_of("tent", detached), images)
    teacher = adapter_of("cotta", Hooked(), batch_norm="stored")
    refuses(
        "cotta's teacher is a copy of it, which predicts something else; a hook", teacher, images
    )


class Unusual(Tiny):
    """Keeps features, calls a layer by name, has a buffer of one number, and can run a part again in the backward."""

    def __init__(self, checkpointed):
        super().__init__()
        self.double().load_state_dict(tiny().state_dict())
        self.checkpointed = checkpointed
        self.register_buffer("scale", torch.ones(1).expand(CLASSES), persistent=False)

    def forward(self, images):
        def features(seen):
            return self.norm(input=self.first(seen)).relu()

        self.kept = [
            checkpoint(features, images, use_reentrant=False)
            if self.checkpointed
            else features(images)
        ]
        return self.last(self.kept[0]) * self.scale[:, None, None]


@pytest.mark.parametrize("bn_alpha", [None, 0.5])
@pytest.mark.parametrize("method", METHODS)
def test_unusual_networks_adapt_as_plain_ones_do(method, bn_alpha):
    arguments = {"bn_alpha": bn_alpha, "batch_norm": "batch"} if bn_alpha else {}
    plain = adapter_of(method, tiny(), **arguments)
    for checkpointed in (False, True):
        adapter = adapter_of(method, Unusual(checkpointed).double(), **arguments)
        plain.reset()
        for images in batches(3):
            torch.testing.assert_close(adapter(images), plain(images), rtol=1e-9, atol=1e-9)
        adapter.reset()


def replaced(forward, how, owner):
    """As mixed precision, offloading and checkpointing (facebookresearch/fairscale#816) replace it on the object."""
    if how == "weakref":
        return functools.partial(
            lambda weak, images: type(owner).forward(weak(), images), weakref.ref(owner)
        )

    @functools.wraps(forward)
    def wrapped(*given):
        return forward(*given)

    return wrapped


@pytest.mark.parametrize("how", ["wraps", "weakref"])
@pytest.mark.parametrize("of", ["whole", "layer"])
def test_a_forward_that_was_replaced_on_the_object_is_not_shared(how, of):
    model = tiny()
    owner = model if of == "whole" else model.last
    owner.forward = replaced(replaced(owner.forward, how, owner), how, owner)
    adapter, plain = adapter_of("cotta", model), adapter_of("cotta")
    for images in batches():
        assert torch.equal(adapter(images), plain(images))
    assert_same(adapter.predictor, plain.predictor, rtol=0)
    (images,) = batches(1, seed=5)
    assert not torch.equal(adapter.predictor(images), model(images))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    twin = copy.deepcopy(adapter)
    assert torch.equal(twin(images), plain(images))
    assert moved(twin.model, model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Merging(nn.Conv2d):
    """Adds to its weight in eval(), as microsoft/LoRA's layers do."""

    merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.merged:
            self.weight.data += -1 if mode else 1
            self.merged = not mode
        return self


class Frozen(nn.BatchNorm2d):
    """Stays in eval(), as the layers of many segmentation networks."""

    def train(self, mode=True):
        return super().train(False)


def test_layers_that_write_their_weights_in_eval_are_refused_and_stay_as_they_were():
    model, (images,) = tiny(), batches(1)
    model.last = Merging(6, CLASSES, 1).double()
    before = copy.deepcopy(model.state_dict())
    refuses(
        r"its layers write 'last\.weight' in eval\(\).* call model\.eval\(\) before",
        adapter_of,
        "tent",
        model,
    )
    assert model.training
    assert not model.last.merged
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    adapter = adapter_of("none", model.eval())
    torch.testing.assert_close(adapter(images), model(images))
    model.norm = Frozen(6).double()
    assert adapter_of("tent", model.eval())(images).isfinite().all()


def exported():
    return torch.export.export(tiny().eval(), (batches(1)[0],)).module()


@cases(
    (exported, "model: it was exported, and its layers are operations"),
    (
        lambda: nn.Sequential(nn.LazyConv2d(4, 1), nn.BatchNorm2d(4)),
        "model: it has lazy layers without weights",
    ),
    (lambda: tiny().to("meta"), "model: parameters are on the device meta"),
)
@pytest.mark.parametrize("method", ["none", "tent"])
def test_networks_without_layers_or_numbers_are_refused(make, said, method):
    refuses(said, adapter_of, method, make())


@pytest.mark.parametrize("method", LEARNING)
def test_the_graph_of_images_is_the_callers(method):
    leaf = batches(1)[0].requires_grad_()
    images = leaf * 2.0
    adapter, plain = adapter_of(method), adapter_of(method)
    adapter.start(images)
    plain.start(images.detach())
    assert torch.equal(adapter(images), plain(images.detach()))
    assert leaf.grad is None
    images.sum().backward()
    assert torch.equal(leaf.grad, torch.full_like(leaf, 2.0))


@cases(lambda x: x[:, :1], lambda x: (50 * x).to(torch.uint8), lambda x: x.float(), lambda x: x[0])
@pytest.mark.parametrize("method", ["none", "tent"])
def test_images_that_the_network_does_not_take_are_one_sentence(change, method):
    adapter, (images,) = adapter_of(method), batches(1)
    refuses(r"^images: the network does not take torch\.", adapter, change(images))
    assert torch.equal(adapter(images), adapter_of(method)(images))
