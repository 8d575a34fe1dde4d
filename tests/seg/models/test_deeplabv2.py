from __future__ import annotations

import pytest
import torch

from seg import build_model
from seg.models.deeplabv2 import AtrousHead


@pytest.mark.parametrize(
    ("encoder", "output_stride", "depth"),
    [("resnet18", 8, 5), ("resnet18", 16, 5), ("resnet18", 4, 3), ("resnet18", 4, 5), ("mobilenet_v2", 16, 5)],
)
def test_both_heads_have_the_feature_resolution(encoder, output_stride, depth):
    model = build_model("deeplabv2", encoder=encoder, num_classes=7, output_stride=output_stride, depth=depth).eval()
    logits = model(torch.randn(1, 3, 64, 96))
    assert set(logits) == {"main", "aux"}
    assert logits["main"].shape == (1, 7, 64 // output_stride, 96 // output_stride)
    assert logits["aux"].shape[1] == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output_stride": 7}, "output_stride: 7 is not one of 4, 8, 16"),
        ({"encoder": "mobilenet_v2", "output_stride": 4}, "needs a ResNet-like encoder"),
        ({"encoder": "resnet18", "weights": "imagnet"}, "imagnet"),
    ],
)
def test_a_wrong_choice_is_one_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_model(**{"encoder": "resnet18", "num_classes": 4, **arguments})


def test_the_head_is_the_sum_of_its_four_convolutions_in_value_and_accumulated_gradient():
    torch.manual_seed(0)
    head = AtrousHead(6, 3).double()
    features = torch.randn(2, 6, 20, 30, dtype=torch.float64, requires_grad=True)
    outgoing = torch.randn(2, 3, 20, 30, dtype=torch.float64)

    def convolutions(inputs):
        return torch.stack([branch(inputs) for branch in head.branches]).sum(0)

    results = []
    for forward in (head, convolutions):
        head.zero_grad()
        features.grad = None
        for scale in (1.0, 0.5):  # the second backward adds to the gradients of the first
            logits = forward(features)
            (scale * logits * outgoing).sum().backward()
        results.append([logits.detach(), features.grad, *(parameter.grad for parameter in head.parameters())])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


def test_the_heads_logits_are_float32_under_autocast():
    head = AtrousHead(6, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert head(torch.randn(1, 6, 8, 8)).dtype == torch.float32
