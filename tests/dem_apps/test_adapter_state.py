"""An adapter's state: reset, resume, modes of gradients, what it refuses to load."""

import copy
import io

import pytest
import torch
from support import refuses
from support.tiny_networks import (
    CLASSES,
    LEARNING,
    Tiny,
    adapter_of,
    assert_same,
    batches,
    moved,
    tiny,
)

from dem_apps.test_time_methods import METHODS


def values(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("method", METHODS)
def test_reset_is_bit_for_bit(method):
    adapter = adapter_of(method)
    start = values(adapter.model)
    first = [adapter(images) for images in batches()]
    if method in LEARNING:
        assert moved(adapter.model, tiny())
    adapter.reset()
    assert all(
        torch.equal(value, start[name]) for name, value in adapter.model.state_dict().items()
    )
    again = [adapter(images) for images in batches()]
    # optimiser, objective, draws and memory began anew as well
    assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_adapter_goes_on_to_the_same_bits(method):
    unbroken, begun = adapter_of(method), adapter_of(method)
    for images in batches()[:2]:
        unbroken(images)
        begun(images)
    file = io.BytesIO()
    torch.save(begun.state_dict(), file)
    file.seek(0)
    resumed = adapter_of(method)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for images in batches()[2:]:
        assert torch.equal(unbroken(images), resumed(images))
    assert not moved(unbroken.model, resumed.model)
    resumed.reset()
    assert not moved(resumed.model, tiny())


class Centred(Tiny):
    """Subtracts a moving mean that it keeps in a buffer outside of its state dict."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(CLASSES), persistent=False)

    def forward(self, images):
        logits = super().forward(images)
        with torch.no_grad():
            self.mean.lerp_(logits.mean((0, 2, 3)), 0.5)
        return logits - self.mean[:, None, None]


@pytest.mark.parametrize("method", ["tent", "cotta"])
def test_buffers_that_are_not_persistent_are_part_of_the_state(method):
    model = Centred().double()
    adapter, other = (adapter_of(method, copy.deepcopy(model)) for _ in range(2))
    first = [adapter(images) for images in batches(2)]
    state = copy.deepcopy(adapter.state_dict())
    adapter.reset()
    assert all(
        torch.equal(adapter(images), before)
        for images, before in zip(batches(2), first, strict=True)
    )
    other.load_state_dict(state)
    assert torch.equal(other(batches(3)[2]), adapter(batches(3)[2]))


def test_states_of_other_adapters_are_refused():
    state = adapter_of("tent").state_dict()
    refuses(
        "belongs to method 'tent', and this adapter has method 'none'",
        adapter_of("none").load_state_dict,
        state,
    )
    refuses(
        "use the same model and options",
        adapter_of("tent", parameters="all").load_state_dict,
        state,
    )
    (images,) = batches(1)
    for options in ({"objective": "entropy"}, {"optimizer": "adam"}):
        other = adapter_of("tent", **options)
        other(images)
        weight = other.model.norm.weight.detach().clone()
        refuses(
            "^state: is of objective and optimiser adadem and SGD", other.load_state_dict, state
        )
        assert torch.equal(other.model.norm.weight, weight)


def test_a_closed_adapter_takes_no_images():
    adapter, (images,) = adapter_of("tent"), batches(1)
    adapter.close()
    refuses("^adapter: is closed", adapter, images)
    refuses("^adapter: is closed", adapter.start, images)


def test_parameters_that_were_replaced_are_one_sentence():
    adapter = adapter_of("tent")
    adapter.model.load_state_dict(tiny(seed=1).state_dict(), assign=True)
    refuses("what learns got no gradient", adapter, batches(1)[0])


def test_the_prediction_after_the_update():
    (images,) = batches(1)
    before, after = adapter_of("tent"), adapter_of("tent", predict="after")
    before(images)
    # before's second batch is predicted by what the first has taught
    assert torch.equal(after(images), before(images))


def test_episodic_begins_anew_with_every_batch():
    episodic = adapter_of("tent", episodic=True, predict="after")
    alone = [adapter_of("tent", predict="after")(images) for images in batches()]
    assert all(
        torch.equal(episodic(images), expected)
        for images, expected in zip(batches(), alone, strict=True)
    )


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_it_learns_under_no_grad(guard):
    expected, adapter = adapter_of("tent"), adapter_of("tent")
    with guard():
        for images in batches(2):
            adapter(images * 1.0)
    for images in batches(2):
        expected(images)
    assert_same(adapter.model, expected.model, rtol=0)


@pytest.mark.parametrize("method", METHODS)
def test_an_adapter_made_and_loaded_in_inference_mode(method):
    (first, second), model = batches(2), tiny()
    expected = adapter_of(method)
    mask = torch.ones(first[:, 0].shape, dtype=torch.bool)
    with torch.inference_mode():
        source = (
            {"source_images": [images * 1 for images in batches(2, seed=9)]}
            if method == "eata"
            else {}
        )
        adapter = adapter_of(method, model, **source)
        assert torch.equal(adapter(first * 1, mask.clone()), expected(first, mask))
        adapter.load_state_dict(adapter.state_dict())
        assert torch.equal(adapter(second * 1), expected(second))
        adapter.reset()
    expected.reset()
    assert torch.equal(adapter(first), expected(first))
