"""Promises of the adapter under every method: what learns, what stays, reset, resume, error sentences."""

from __future__ import annotations

import copy
import io
import pickle
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.tiny_networks import CLASSES, LEARNING, Tiny, adapter_of, assert_same_parameters, batches, moved, tiny
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dem_apps import AdaDEM, TestTimeAdapter
from dem_apps.errors import InputError
from dem_apps.test_time_methods import METHODS


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("method", METHODS)
def test_reset_is_bit_for_bit(method: str) -> None:
    adapter = adapter_of(method, batch_norm="moving" if method in LEARNING else None)
    start = values(adapter.model)
    first = [adapter(images) for images in batches()]
    if method in LEARNING:
        assert moved(adapter.model, tiny())
    adapter.reset()
    assert all(torch.equal(value, start[name]) for name, value in adapter.model.state_dict().items())
    again = [adapter(images) for images in batches()]
    assert all(map(torch.equal, first, again))  # optimiser, objective, draws and memory began anew as well


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_adapter_goes_on_to_the_same_bits(method: str) -> None:
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


@pytest.mark.parametrize("method", LEARNING)
def test_fixed_parameters_have_no_gradients_and_close_restores_the_flags(method: str) -> None:
    model = tiny(dropout=0.1)
    model.first.weight.requires_grad_(False)
    model.norm.eval()
    adapter = adapter_of(method, model, parameters=r"^norm\.weight$")
    assert list(adapter.learning) == ["norm.weight"]
    adapter(batches(1)[0])
    assert moved(model, tiny()) <= {"norm.weight"}
    assert [name for name, value in model.named_parameters() if value.requires_grad] == ["norm.weight"]
    adapter.close()
    assert model.training
    assert model.dropout.training
    assert not model.norm.training
    assert model.norm.track_running_stats
    asking = {name for name, value in model.named_parameters() if value.requires_grad}
    assert asking == {"first.bias", "norm.weight", "norm.bias", "last.weight", "last.bias"}


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(6), nn.SyncBatchNorm(6), nn.GroupNorm(3, 6), nn.LayerNorm([6, 8, 8])])
def test_normalisation_layers_of_any_kind_learn(norm: nn.Module) -> None:
    model = tiny()
    model.norm = norm.double()
    adapter = adapter_of("tent", model)
    assert list(adapter.learning) == ["norm.weight", "norm.bias"]
    adapter(batches(1)[0])
    assert not torch.equal(model.norm.weight, torch.ones_like(model.norm.weight))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"model": tiny("none")}, "nothing would learn with parameters='normalisation'"),
        ({"parameters": "(norm"}, "'\\(norm' is no regular expression"),
        ({"method": "tenet"}, "did you mean 'tent'"),
        ({"objective_options": {"momentun": 0.1}}, "did you mean 'momentum'"),
        ({"lr": -1.0}, "lr: expected a number of at least 0"),
        ({"alpha": 0.5}, "method 'tent': unknown option 'alpha'"),
        ({"method": "bn", "bn_alpha": 1.5}, "bn_alpha: expected a number from 0 to 1"),
        ({"method": "cotta", "mirror": False}, "nothing is learnt"),
        ({"objective": torch.nn.CrossEntropyLoss()}, "objective: expected a name such as 'adadem', or what build_obj"),
        ({"objective": AdaDEM(CLASSES), "num_classes": CLASSES + 1}, "num_classes: the objective that is given has"),
        ({"optimizer": torch.optim.LBFGS}, "a function that makes one which takes single steps, such as lambda"),
        (
            {"optimizer": lambda _: torch.optim.SGD(tiny().parameters())},
            "it moves parameters that the function",
        ),
        ({"optimizer": torch.optim.SGD([torch.ones(1)])}, "optimizer: expected one of sgd, adam, adamw, or a function"),
        ({"parameters": ["norm.weight"]}, r"parameters: '\['norm.weight'\]' is no regular expression"),
    ],
)
def test_mistakes_are_refused_before_any_image(arguments: dict[str, Any], sentence: str) -> None:
    arguments = {"objective": "adadem", **arguments}
    model = arguments.pop("model", None) or tiny()
    flags = [value.requires_grad for value in model.requires_grad_(True).parameters()]
    with pytest.raises(InputError, match=sentence):
        TestTimeAdapter(model, **arguments)
    assert [value.requires_grad for value in model.parameters()] == flags


class Ends(nn.Module):
    def __init__(self, end: Any) -> None:
        super().__init__()
        self.inner, self.end = tiny(), end

    def forward(self, images: Tensor) -> Any:
        return self.end(self.inner(images))


@pytest.mark.parametrize(
    "end",
    [
        lambda z: SimpleNamespace(logits=z),
        lambda z: {"logits": z},
        lambda z: {"main": z, "aux": z * 2},
        lambda z: {"out": z},
    ],
)
def test_logits_are_found_in_the_outputs_of_networks(end: Any) -> None:
    (images,) = batches(1)
    assert torch.equal(adapter_of("tent", Ends(end))(images), adapter_of("tent")(images))
    second = adapter_of("tent", Ends(lambda z: (None, z)), logits_of=lambda output: output[1])
    assert torch.equal(second(images), adapter_of("tent")(images))


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (lambda z: z.softmax(1), "sums to one over the classes, so it is probabilities"),
        (lambda z: z.bfloat16().softmax(1), "sums to one over the classes, so it is probabilities"),
        (lambda z: z.half().sigmoid(), "lies between 0 and 1 everywhere, so it is probabilities"),
        (lambda z: z[:, :1].sigmoid(), "lies between 0 and 1 everywhere, so it is probabilities"),
        (lambda z: (z, z), "no logits were found"),
        (lambda z: z.flatten(2), "expected logits \\(B, C\\) or \\(B, C, H, W\\)"),
        (lambda z: z[:, :1], "one logit per element.* give logits_of=lambda output: torch.cat"),
        (lambda z: z.repeat(1, 2, 1, 1), "num_classes: 5, but the network's logits have 10"),
    ],
)
def test_output_that_is_no_logits_is_refused(end: Any, sentence: str) -> None:
    model = Ends(end)
    with pytest.raises(InputError, match=sentence):
        adapter_of("tent", model, num_classes=CLASSES if "5, but" in sentence else None)(batches(1)[0])
    assert not moved(model.inner, tiny())
    if "probabilities" in sentence:
        with pytest.raises(InputError, match=sentence):
            adapter_of("bn", Ends(end))(batches(1)[0])


@pytest.mark.parametrize("method", METHODS)
def test_dropout_is_off_and_stored_statistics_stay(method: str) -> None:
    dropping, plain = tiny(dropout=0.9).train(), tiny()
    statistics = dropping.norm.running_mean.clone()
    adapter, expected = adapter_of(method, dropping), adapter_of(method, plain)
    for images in batches(2):
        dropping.train()  # a caller may do so between two batches
        assert torch.equal(adapter(images), expected(images))
    assert torch.equal(dropping.norm.running_mean, statistics)
    assert dropping.norm.num_batches_tracked == 0


def test_the_three_ways_of_batch_norm() -> None:
    (images,) = batches(1)
    features = tiny().first(images)
    by_batch = adapter_of("tent", batch_norm="batch", bn_alpha=1.0)(images)
    moving = adapter_of("tent", batch_norm="moving")
    assert torch.equal(moving(images), by_batch)
    mean = 0.9 * tiny().norm.running_mean + 0.1 * features.mean((0, 2, 3))
    torch.testing.assert_close(moving.model.norm.running_mean, mean)
    stored = adapter_of("tent", batch_norm="stored")
    assert torch.equal(stored(images), tiny().eval()(images))
    again = adapter_of("tent", batch_norm="moving", lr=0.0, predict="after")  # a forward that moves nothing
    assert torch.equal(again(images), by_batch)


@pytest.mark.parametrize("method", ["none", "bn"])
def test_what_minimises_nothing_needs_no_classes(method: str) -> None:
    (images,) = batches(1)
    assert torch.equal(adapter_of(method, Ends(lambda z: z[:, :1] - 9))(images), adapter_of(method)(images)[:, :1] - 9)


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_of_one_image(method: str) -> None:
    adapter = adapter_of(method)
    for images in batches(2, size=1):
        assert adapter(images).isfinite().all()
    assert bool(moved(adapter.model, tiny())) == (method in LEARNING)


@pytest.mark.parametrize("alpha", [None, 1.0])
def test_a_layer_with_a_single_value_keeps_its_stored_statistics(alpha: float | None) -> None:
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3), nn.Conv2d(3, CLASSES, 1)).double()
    nn.init.constant_(pooled[2].bias, -5.0)  # no probabilities by chance
    (image,) = batches(1, size=1)
    expected = pooled.eval()(image)
    assert torch.equal(adapter_of("tent", pooled, bn_alpha=alpha)(image), expected)
    with pytest.raises(InputError, match="at least two images at a time, or batch_norm='batch'"):
        adapter_of("tent", pooled, batch_norm="moving")(image)


def test_the_default_share_of_the_batch() -> None:
    (images,) = batches(1)
    assert torch.equal(adapter_of("bn")(images), adapter_of("bn", bn_alpha=0.1)(images))
    assert not torch.equal(adapter_of("bn")(images), adapter_of("bn", bn_alpha=0.3)(images))
    with pytest.raises(InputError, match="bn_alpha: batch norm uses the stored statistics"):
        TestTimeAdapter(tiny(), "tent", batch_norm="stored", bn_alpha=0.5)


@pytest.mark.parametrize("predict", ["before", "after"])
@pytest.mark.parametrize("method", METHODS)
def test_a_batch_moves_statistics_once(method: str, predict: str) -> None:
    adapter = adapter_of(method, batch_norm="moving", predict=predict)
    before = int(adapter.model.norm.num_batches_tracked)
    adapter(batches(1)[0])
    assert int(adapter.model.norm.num_batches_tracked) == before + 1


def test_a_batch_norm_that_is_not_called_keeps_its_statistics() -> None:
    model = Ends(lambda z: z)
    norm = model.inner.norm
    model.inner.norm = type("Forwarded", (nn.Module,), {"forward": lambda self, x: norm.forward(x)})()
    model.norm, before = norm, norm.running_mean.clone()
    adapter_of("tent", model, bn_alpha=1.0)(batches(1)[0])
    assert torch.equal(norm.running_mean, before)


def test_threads_take_turns() -> None:
    adapter, images = adapter_of("bn"), batches(1)[0]
    expected, stored = adapter(images), values(adapter.model)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(found, expected) for found in pool.map(adapter, [images] * 64))
    assert all(torch.equal(value, stored[name]) for name, value in adapter.model.state_dict().items())


@pytest.mark.parametrize("training", [True, False])
def test_a_given_objective_is_reset_to_what_it_was(training: bool) -> None:
    objective = AdaDEM(CLASSES)
    objective.class_marginals.copy_(torch.rand(CLASSES, CLASSES).softmax(1))
    given, (images,) = objective.class_marginals.clone(), batches(1)
    adapter = adapter_of("tent", objective=objective.train(training))
    adapter(images)
    assert torch.equal(objective.class_marginals, given) != training
    adapter.reset()
    assert torch.equal(objective.class_marginals, given)
    adapter.load_state_dict(adapter_of("tent", objective=copy.deepcopy(objective)).state_dict())
    assert torch.equal(objective.class_marginals, given)


def test_weights_that_are_loaded_meanwhile_are_not_mixed_with_the_first() -> None:
    adapter = adapter_of("tent")
    copied = pickle.loads(pickle.dumps(adapter))
    adapter.model.load_state_dict(tiny(seed=1).state_dict())
    with pytest.raises(InputError, match="weights that do not learn were written since the adapter was made"):
        adapter.reset()
    copied.reset()
    adapter.model.load_state_dict(tiny(seed=1).state_dict(), assign=True)
    with pytest.raises(InputError, match="what learns got no gradient; its parameters were replaced"):
        adapter(batches(1)[0])


def test_the_prediction_after_the_update() -> None:
    (images,) = batches(1)
    before, after = adapter_of("tent"), adapter_of("tent", predict="after")
    before(images)
    assert torch.equal(after(images), before(images))  # before's second batch is predicted by what the first has taught


def test_episodic_begins_anew_with_every_batch() -> None:
    episodic = adapter_of("tent", episodic=True, predict="after")
    alone = [adapter_of("tent", predict="after")(images) for images in batches()]
    assert all(torch.equal(episodic(images), expected) for images, expected in zip(batches(), alone, strict=True))


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_it_learns_under_no_grad(guard: Any) -> None:
    expected = adapter_of("tent")
    adapter = adapter_of("tent")
    with guard():
        for images in batches(2):
            adapter(images * 1.0)
    for images in batches(2):
        expected(images)
    assert_same_parameters(adapter.model, expected.model, rtol=0)


def test_states_of_other_adapters_are_refused() -> None:
    state = adapter_of("tent").state_dict()
    with pytest.raises(InputError, match="it is of method 'tent', and this adapter is 'none'"):
        adapter_of("none").load_state_dict(state)
    with pytest.raises(InputError, match="use the same model and options"):
        adapter_of("tent", parameters="all").load_state_dict(state)
    for argument, name in (("objective", "entropy"), ("optimizer", "adam")):
        other = adapter_of("tent", **{argument: name})
        other(batches(1)[0])
        other_state, mine = other.state_dict(), adapter_of("tent")
        with pytest.raises(InputError, match=f"it is of an adapter with another {argument}="):
            mine.load_state_dict(other_state)
        assert not moved(mine.model, tiny())


class WithGrid(Ends):
    """Has an attribute `modules`, as sacmehta/ESPNet's, and a buffer that forward makes for each size of images."""

    def __init__(self) -> None:
        super().__init__(lambda z: z)
        self.modules = [self.inner]

    def forward(self, images: Tensor) -> Tensor:
        if not hasattr(self, "grid") or self.grid.shape != images.shape[2:]:
            grid = torch.linspace(0, 1, images[0, 0].numel(), dtype=images.dtype)
            self._buffers["grid"] = grid.view(images.shape[2:])
        return self.inner(images + self.grid)


@pytest.mark.parametrize("method", METHODS)
def test_buffers_that_forward_makes(method: str) -> None:
    adapter, (first, second) = adapter_of(method, WithGrid()), batches(2)
    expected = [adapter(first), adapter(second)]
    adapter(nn.functional.interpolate(first, scale_factor=2))
    adapter.reset()
    assert torch.equal(adapter(first), expected[0])
    resumed = adapter_of(method, WithGrid())
    resumed.load_state_dict(adapter.state_dict())
    assert torch.equal(resumed(second), expected[1])


@pytest.mark.parametrize("method", METHODS)
def test_an_adapter_made_and_loaded_in_inference_mode(method: str) -> None:
    (first, second), model = batches(2), WithGrid().eval()
    expected = adapter_of(method, WithGrid())
    mask = torch.ones(first[:, 0].shape, dtype=torch.bool)
    with torch.inference_mode():
        model(first)
        source = {"source_images": [images * 1 for images in batches(2, seed=9)]} if method == "eata" else {}
        adapter = adapter_of(method, model, **source)
        assert torch.equal(adapter(first * 1, mask.clone()), expected(first, mask))
        adapter.load_state_dict(adapter.state_dict())
        assert torch.equal(adapter(second * 1), expected(second))
        adapter(nn.functional.interpolate(first, scale_factor=2))
        adapter.reset()
    expected.reset()
    assert torch.equal(adapter(first), expected(first))


def test_networks_that_torch_cannot_adapt() -> None:
    (images,) = batches(1)
    with torch.inference_mode():
        model, cached = tiny(), images[:1, :1] * 1
    with pytest.raises(InputError, match="its parameters were made under"):
        adapter_of("tent", model)
    with pytest.raises(InputError, match="it keeps tensors that were made under"):
        adapter_of("tent", Ends(lambda z: z * cached))(images)
    for method in ("bn", "tent"):
        with pytest.raises(InputError, match="it is a ScriptModule"):
            adapter_of(method, torch.jit.trace(tiny().eval(), images))
    detached = Ends(lambda z: z.detach())
    with pytest.raises(InputError, match="the logits do not depend on what learns"):
        adapter_of("tent", detached)(images)
    with pytest.raises(InputError, match="cannot run the first weights of a DataParallel; give"):
        adapter_of("cotta", nn.DataParallel(tiny()))
    teacher = adapter_of("cotta", Hooked(), batch_norm="stored")
    with pytest.raises(InputError, match="cotta's teacher is a copy of it, which predicts something else; a hook"):
        teacher(images)


class Hooked(nn.Module):
    """A hook that writes into the network that was there when it was made (isl-org/MiDaS#251)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.kept = tiny(), {}
        self.inner.norm.register_forward_hook(lambda layer, inputs, output: self.kept.update(last=output))
        self(batches(1, seed=5)[0])

    def forward(self, images: Tensor) -> Tensor:
        self.inner(images)
        return self.inner.last(self.kept["last"].relu())


class Unusual(Tiny):
    """Keeps features, calls a layer by name, has a buffer of one number, and can run a part again in the backward."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.double().load_state_dict(tiny().state_dict())
        self.checkpointed = checkpointed
        self.register_buffer("scale", torch.ones(1).expand(CLASSES), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        def features(seen: Tensor) -> Tensor:
            return self.norm(input=self.first(seen)).relu()

        self.kept = [checkpoint(features, images, use_reentrant=False) if self.checkpointed else features(images)]
        return self.last(self.kept[0]) * self.scale[:, None, None]


@pytest.mark.parametrize("bn_alpha", [None, 0.5, 1.0])
@pytest.mark.parametrize("method", METHODS)
def test_unusual_networks_adapt_as_plain_ones_do(method: str, bn_alpha: float | None) -> None:
    arguments = {"bn_alpha": bn_alpha, "batch_norm": "batch"} if bn_alpha else {}
    plain = adapter_of(method, tiny(), **arguments)
    for checkpointed in (False, True):
        adapter = adapter_of(method, Unusual(checkpointed).double(), **arguments)
        plain.reset()
        for images in batches(3):
            torch.testing.assert_close(adapter(images), plain(images), rtol=1e-9, atol=1e-9)
        adapter.reset()


class InPlace(Tiny):
    """Normalises its input where it lies (pytorch/vision#517), and has whole numbers among its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.double().load_state_dict(tiny().state_dict())
        self.whole = nn.Parameter(torch.ones(2, dtype=torch.uint8), requires_grad=False)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.mul_(2.0))


@pytest.mark.parametrize("method", METHODS)
def test_a_network_that_writes_into_its_input_gets_it_as_it_was(method: str) -> None:
    class Apart(InPlace):
        def forward(self, images: Tensor) -> Tensor:
            return Tiny.forward(self, images * 2.0)

    arguments = {"parameters": "all", "predict": "after"} if method in LEARNING else {}
    adapter, expected = adapter_of(method, InPlace(), **arguments), adapter_of(method, Apart(), **arguments)
    for images in batches(2):
        given = images.clone()
        assert torch.equal(adapter(given), expected(images))
        assert torch.equal(given, images)
