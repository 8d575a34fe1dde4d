"""By which statistics batch norm normalises under an adapter, and what moves them."""

import pytest
import torch
from support.refusals import refuses
from support.tiny_networks import CLASSES, LEARNING, adapter_of, batches, moved, tiny
from torch import nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import InputError
from dem_apps.test_time_methods import METHODS


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
    with pytest.raises(InputError, match="bn_alpha: batch norm uses the stored statistics"):
        TestTimeAdapter(tiny(), "tent", batch_norm="stored", bn_alpha=0.5)


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_of_one_image(method):
    adapter = adapter_of(method)
    for images in batches(2, size=1):
        assert adapter(images).isfinite().all()
    assert bool(moved(adapter.model, tiny())) == (method in LEARNING)


@pytest.mark.parametrize("alpha", [None, 1.0])
def test_a_layer_with_a_single_value_keeps_its_stored_statistics(alpha):
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3), nn.Conv2d(3, CLASSES, 1)).double()
    nn.init.constant_(pooled[2].bias, -5.0)  # no probabilities by chance
    (image,) = batches(1, size=1)
    expected = pooled.eval()(image)
    assert torch.equal(adapter_of("tent", pooled, bn_alpha=alpha)(image), expected)
    pooled[1] = nn.BatchNorm2d(3, track_running_stats=False).double()
    refuses("at least two at a time", adapter_of("tent", pooled), image)
