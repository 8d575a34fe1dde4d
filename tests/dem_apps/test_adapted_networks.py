"""Networks and images of every kind: adapted right, or named in a sentence."""

import copy
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
    batches,
    moved,
    tiny,
)
from torch import nn
from torch.ao import quantization
from torch.utils.checkpoint import checkpoint

from dem_apps import TestTimeAdapter
from dem_apps.errors import InputError
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


def test_two_logits_between_0_and_1_are_logits():
    model = Ends(lambda z: torch.tensor([[0.9, 0.3]]) + 0 * z.mean())
    assert adapter_of("none", model)(batches(1)[0][:1]).shape == (1, 2)


def test_batch_norm_that_is_called_by_keyword():
    class ByKeyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(3).double()

        def forward(self, images):
            return self.norm(input=images)

    (images,) = batches(1)
    assert adapter_of("bn", ByKeyword())(images).shape == images.shape


@cases(
    (lambda z: z.softmax(1), "sums to one over the classes, so it is probabilities"),
    (lambda z: z.bfloat16().softmax(1), "sums to one over the classes, so it is probabilities"),
    (lambda z: z.half().sigmoid(), "lies between 0 and 1 everywhere, so it is probabilities"),
    (lambda z: z[:, :1].sigmoid(), "lies between 0 and 1 everywhere, so it is probabilities"),
    (lambda z: (z, z), "no logits were found"),
    (lambda z: z.flatten(2), "expected logits \\(B, C\\) or \\(B, C, H, W\\)"),
    (lambda z: z.long(), "expected logits .* of torch.int64"),
    (lambda z: z[:, :1], "one logit per element.* give logits_of=lambda output: torch.cat"),
    (lambda z: z.repeat(1, 2, 1, 1), "num_classes: is 5, but the network's logits have 10"),
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


def test_networks_that_are_not_served():
    (images,) = batches(1)
    for method in ("bn", "tent"):
        refuses("ScriptModule", adapter_of, method, torch.jit.trace(tiny().eval(), images))
    detached = Ends(lambda z: z.detach())
    refuses("what learns got no gradient", adapter_of("tent", detached), images)


class Checkpointed(Tiny):
    """Keeps features, and can run a part again in the backward."""

    def forward(self, images):
        def features(seen):
            return self.norm(self.first(seen)).relu()

        self.kept = checkpoint(features, images, use_reentrant=False)
        return self.last(self.kept)


@pytest.mark.parametrize("bn_alpha", [None, 0.5])
@pytest.mark.parametrize("method", METHODS)
def test_a_checkpointed_network_adapts_as_a_plain_one_does(method, bn_alpha):
    arguments = {"bn_alpha": bn_alpha, "batch_norm": "batch"} if bn_alpha else {}
    model = Checkpointed().double()
    model.load_state_dict(tiny().state_dict())
    plain, adapter = adapter_of(method, **arguments), adapter_of(method, model, **arguments)
    for images in batches(3):
        torch.testing.assert_close(adapter(images), plain(images), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("of", ["whole", "layer"])
def test_a_forward_that_was_replaced_on_the_object(of):
    """A copy would run the network itself, so cotta refuses it."""
    model, (images,) = tiny(), batches(1)
    owner = model if of == "whole" else model.last
    first = owner.forward
    owner.forward = lambda seen: first(seen)
    refuses("^model: the forward of a layer was replaced", adapter_of("cotta", model), images)
    adapter = adapter_of("tent", model)
    twin = copy.deepcopy(adapter)
    assert torch.equal(adapter(images), adapter_of("tent")(images))
    if of == "whole":
        refuses("^model: what learns got no gradient", twin, images)


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


def test_too_little_memory_is_no_fault_of_the_images():
    adapter, (images,) = adapter_of("tent"), batches(1)
    adapter.model.register_forward_pre_hook(lambda *_: torch.empty(1 << 60))
    with pytest.raises(RuntimeError, match="memory") as caught:
        adapter(images)
    assert not isinstance(caught.value, InputError)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("parameters", ["normalisation", "all"])
def test_a_quantised_module_behind_what_learns_is_named(parameters):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 3)).eval()
    network = quantization.quantize_dynamic(layers, {nn.Linear})
    adapter = TestTimeAdapter(network, parameters=parameters)
    sentence = r"^model: its module '2' is quantised \(Linear\); .* so use the float network$"
    refuses(sentence, adapter, 10 * torch.randn(2, 3, 2, 2))
    # in front of what learns it is welcome
    first = nn.Sequential(network[0], network[2], nn.BatchNorm1d(3))
    assert list(TestTimeAdapter(first).learning) == ["2.weight", "2.bias"]


@pytest.mark.filterwarnings("ignore")
def test_a_network_of_quantised_modules_is_refused_when_the_adapter_is_made():
    layers = nn.Sequential(quantization.QuantStub(), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
    layers.qconfig = quantization.get_default_qconfig("fbgemm")
    prepared = quantization.prepare(layers)
    prepared(torch.rand(2, 3, 4, 4))
    network = quantization.convert(prepared)
    refuses(r"its module '2' is quantised \(BatchNorm2d\)", TestTimeAdapter, network)
    refuses(r"its module '0' is quantised", TestTimeAdapter, network[:2], parameters="all")
