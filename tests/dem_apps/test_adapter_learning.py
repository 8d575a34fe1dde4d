"""Parameters that learn under an adapter, and mistakes in its arguments."""

import pytest
import torch
from support.refusals import refuses
from support.tiny_networks import CLASSES, LEARNING, Ends, adapter_of, batches, moved, tiny
from torch import nn

from dem_apps import AdaDEM, TestTimeAdapter


@pytest.mark.parametrize("method", LEARNING)
def test_fixed_parameters_have_no_gradients_and_close_restores_the_flags(method):
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
    assert torch.equal(adapter_of(method, Ends(lambda z: z[:, :1] - 9))(images), adapter_of(method)(images)[:, :1] - 9)


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
        ({"optimizer": torch.optim.SGD([torch.ones(1)])}, "optimizer: expected one of sgd, adam, adamw, or a function"),
        ({"parameters": ["norm.weight"]}, r"parameters: '\['norm.weight'\]' is no regular expression"),
    ],
)
def test_mistakes_are_refused_before_any_image(arguments, sentence):
    arguments = {"objective": "adadem", **arguments}
    model = arguments.pop("model", None) or tiny()
    flags = [value.requires_grad for value in model.requires_grad_(True).parameters()]
    refuses(sentence, TestTimeAdapter, model, **arguments)
    assert [value.requires_grad for value in model.parameters()] == flags
