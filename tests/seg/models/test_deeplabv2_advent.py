from __future__ import annotations

import numpy as np
import pytest
import torch

from seg import build_model
from seg.data.pixel_format import normalised
from seg.models.deeplabv2_advent import AdventDeepLabV2, BgrMinusMean

MEAN_BGR = np.array((104.00698793, 116.66876762, 122.67891434))


@pytest.fixture(scope="module")
def shapes_only():
    """The whole network without values: shapes cost nothing."""
    with torch.device("meta"):
        return AdventDeepLabV2(19).eval()


@pytest.mark.parametrize(("size", "features"), [((512, 1024), (65, 129)), ((720, 1280), (91, 161))])
def test_the_pool_rounds_up(shapes_only, size, features):
    logits = shapes_only(torch.empty(1, 3, *size, device="meta"))
    assert {head: tuple(value.shape) for head, value in logits.items()} == {
        "main": (1, 19, *features),
        "aux": (1, 19, *features),
    }


def test_images_become_bgr_minus_advents_mean():
    image = np.random.default_rng(0).integers(0, 256, (37, 41, 3), dtype=np.uint8)
    image[0, 0], image[0, 1] = 0, 255
    expected = image[:, :, ::-1].astype(np.float64) - MEAN_BGR
    got = BgrMinusMean()(normalised(image)[None])[0].permute(1, 2, 0).double().numpy()
    assert np.abs(got - expected).max() < 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"encoder": "resnet18"}, "not resnet18, 8 and 5"),
        ({"weights": "imagenet"}, r"no 'imagenet' weights for deeplabv2-advent; .*--model.start-from"),
    ],
)
def test_what_it_cannot_be_is_one_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_model("deeplabv2-advent", num_classes=7, **arguments)
