"""Parameters that learn under an adapter, statistics by which batch norm normalises, and mistakes in its arguments."""

import pytest
import torch
from support import cases, refuses
from support.tiny_networks import CLASSES, LEARNING, Ends, adapter_of, batches, moved, tiny
from torch import nn

from dem_apps import TestTimeAdapter
from dem_apps.test_time_methods import METHODS


@pytest.mark.parametrize("method", LEARNING)
def test_fixed_parameters_have_no_gradients_and_close_restores_the_flags(method):
    model = tiny(dropout=0.1)
    model.first.weight.requires_grad_(False)
    model.norm.eval()
    adapter = adapter_of(method, model, parameters=r"^norm\.weight$")
    assert list(adapter.learning) == ["norm.weight"]
    adapter(batches(1)[0])
    assert moved(model, tiny()) <= {"norm.weight"}
    assert [name for name, value in model.named_parameters() if value.requires_grad] == [
        "norm.weight"
    ]
    adapter.close()
    assert model.training
    assert model.dropout.training
    assert not model.norm.training
    assert model.norm.track_running_stats
    asking = {name for name, value in model.named_parameters() if value.requires_grad}
    assert asking == {"first.bias", "norm.weight", "norm.bias", "last.weight", "last.bias"}


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(6), nn.SyncBatchNorm(6), nn.GroupNorm(3, 6), nn.LayerNorm([6, 8, 8])]
)
def test_normalisation_layers_of_any_kind_learn(norm):
    model = tiny()
    model.norm = norm.double()
    adapter = adapter_of("tent", model)
    assert list(adapter.learning) == ["norm.weight", "norm.bias"]
    adapter(batches(1)[0])
    assert not torch.equal(model.norm.weight, torch.ones_like(model.norm.weight))


@pytest.mark.parametrize("method", ["none", "bn"])
def test_what_minimises_nothing_needs_no_classes(method):
    (images,) = batches(1)
    assert torch.equal(
        adapter_of(method, Ends(lambda z: z[:, :1] - 9))(images),
        adapter_of(method)(images)[:, :1] - 9,
    )


@cases(
    ({"model": tiny("none")}, "nothing would learn with parameters='normalisation'"),
    ({"parameters": "(norm"}, "'\\(norm' is no regular expression"),
    ({"method": "tenet"}, "did you mean 'tent'"),
    ({"lr": -1.0}, "lr: expected a number of at least 0"),
    ({"alpha": 0.5}, "method 'tent': unknown option 'alpha'"),
    ({"method": "bn", "bn_alpha": 1.5}, "bn_alpha: expected a number from 0 to 1"),
    ({"method": "cotta", "mirror": False}, "learns nothing"),
    ({"objective": torch.nn.CrossEntropyLoss()}, "objective: .* is not one of entropy"),
    (
        {"optimizer": torch.optim.SGD([torch.ones(1)])},
        "optimizer: expected one of sgd, adam, adamw, or a function",
    ),
    ({"optimizer": lambda _parameters: None}, "optimizer: expected an optimiser of torch"),
    ({"parameters": ["norm.weight"]}, r"parameters: '\['norm.weight'\]' is no regular expression"),
)
def test_mistakes_are_refused_before_any_image(arguments, sentence):
    arguments = {"objective": "adadem", **arguments}
    model = arguments.pop("model", None) or tiny()
    flags = [value.requires_grad for value in model.requires_grad_(True).parameters()]
    refuses(sentence, TestTimeAdapter, model, **arguments)
    assert [value.requires_grad for value in model.parameters()] == flags


def test_a_class_of_optimisers_has_the_rate():
    (group,) = TestTimeAdapter(tiny(), lr=0.25, optimizer=torch.optim.SGD).optimizer.param_groups
    assert group["lr"] == 0.25


@pytest.mark.parametrize("method", METHODS)
def test_dropout_is_off_and_stored_statistics_stay(method):
    dropping, plain = tiny(dropout=0.9).train(), tiny()
    statistics = dropping.norm.running_mean.clone()
    adapter, expected = adapter_of(method, dropping), adapter_of(method, plain)
    for images in batches(2):
        dropping.train()  # a caller may do so between two batches
        assert torch.equal(adapter(images), expected(images))
    assert torch.equal(dropping.norm.running_mean, statistics)
    assert dropping.norm.num_batches_tracked == 0


def test_the_default_share_of_the_batch_and_stored_statistics():
    (images,) = batches(1)
    assert torch.equal(adapter_of("tent", batch_norm="stored")(images), tiny().eval()(images))
    assert torch.equal(adapter_of("bn")(images), adapter_of("bn", bn_alpha=0.1)(images))
    assert not torch.equal(adapter_of("bn")(images), adapter_of("bn", bn_alpha=0.3)(images))
    refuses(
        "batch norm uses the stored statistics",
        TestTimeAdapter,
        tiny(),
        "tent",
        batch_norm="stored",
        bn_alpha=0.5,
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_of_one_image(method):
    adapter = adapter_of(method)
    for images in batches(2, size=1):
        assert adapter(images).isfinite().all()
    assert bool(moved(adapter.model, tiny())) == (method in LEARNING)


@pytest.mark.parametrize("alpha", [None, 1.0])
def test_a_layer_with_a_single_value_keeps_its_stored_statistics(alpha):
    pooled = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3), nn.Conv2d(3, CLASSES, 1)
    ).double()
    nn.init.constant_(pooled[2].bias, -5.0)  # no probabilities by chance
    (image,) = batches(1, size=1)
    expected = pooled.eval()(image)
    assert torch.equal(adapter_of("tent", pooled, bn_alpha=alpha)(image), expected)
    pooled[1] = nn.BatchNorm2d(3, track_running_stats=False).double()
    refuses("^images: .*more than 1 value per channel", adapter_of("tent", pooled), image)
