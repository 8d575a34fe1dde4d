"""AdvEnt: self-information, the discriminator, sizes of images; its losses are compared in tests/seg/test_step.py."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dem_apps.errors import InputError
from seg.methods.advent import Adversary, build_discriminator, weighted_self_information

C = 5
WEIGHTS = {"main": 0.5, "aux": 0.25}


def logits_of(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {head: torch.randn(2, C, 32, 64, generator=generator) for head in WEIGHTS}


def test_self_information_adds_up_to_the_normalised_entropy() -> None:
    logits = 3 * logits_of(0)["main"]
    logits[0, :, 0, 0] = torch.tensor([1e4, *[0.0] * (C - 1)])  # certain: 0, and finite
    p = logits.double().softmax(1)
    entropy = torch.special.entr(p).sum(1) / math.log(C)
    torch.testing.assert_close(weighted_self_information(logits).sum(1).double(), entropy, rtol=1e-5, atol=1e-6)


def test_discriminator_is_the_papers_five_convolutions() -> None:
    discriminator = build_discriminator(19, 64)
    convolutions = [layer for layer in discriminator if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [64, 128, 256, 512, 1]
    assert {(layer.kernel_size, layer.stride, layer.padding) for layer in convolutions} == {((4, 4), (2, 2), (1, 1))}
    slopes = [layer.negative_slope for layer in discriminator if isinstance(layer, nn.LeakyReLU)]
    assert slopes == [0.2] * 4
    assert discriminator(torch.zeros(1, 19, 64, 128)).shape == (1, 1, 2, 4)


@pytest.mark.parametrize("domain", ["source", "target"])
def test_images_smaller_than_a_region_are_refused_with_their_flag(domain: str) -> None:
    adversary = Adversary(C, WEIGHTS, channels=4)
    large = logits_of(3)
    small = {head: values[..., :31, :] for head, values in large.items()}
    source, target = (small, large) if domain == "source" else (large, small)
    message = rf"the {domain} images are 64 × 31; give a larger --{domain}\.size"
    with pytest.raises(InputError, match=message):
        adversary.discriminator_loss(source, target)
    if domain == "target":
        with pytest.raises(InputError, match=message):
            adversary.fooling_loss(target)
