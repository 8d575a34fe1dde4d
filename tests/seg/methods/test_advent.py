from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dem_apps.errors import InputError
from seg.methods.advent import Adversary, build_discriminator, weighted_self_information

C = 5
WEIGHTS = {"main": 0.5, "aux": 0.25}


def logits_of(seed: int, requires_grad: bool = False) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {head: torch.randn(2, C, 32, 64, generator=generator, requires_grad=requires_grad) for head in WEIGHTS}


@pytest.fixture
def adversary() -> Adversary:
    torch.manual_seed(0)
    return Adversary(C, WEIGHTS, channels=4)


def test_self_information_adds_up_to_the_normalised_entropy() -> None:
    logits = 3 * logits_of(0)["main"]
    p = logits.double().softmax(1)
    entropy = -(p * p.log()).sum(1) / math.log(C)
    torch.testing.assert_close(weighted_self_information(logits).sum(1).double(), entropy, rtol=1e-5, atol=1e-6)


def test_self_information_of_certain_pixels_is_zero_and_finite() -> None:
    logits = torch.zeros(1, C, 2, 2)
    logits[:, 0] = 1e4
    assert torch.equal(weighted_self_information(logits), torch.zeros(1, C, 2, 2))


def test_discriminator_is_the_papers_five_convolutions() -> None:
    discriminator = build_discriminator(19, 64)
    convolutions = [layer for layer in discriminator if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [64, 128, 256, 512, 1]
    assert {(layer.kernel_size, layer.stride, layer.padding) for layer in convolutions} == {((4, 4), (2, 2), (1, 1))}
    slopes = [layer.negative_slope for layer in discriminator if isinstance(layer, nn.LeakyReLU)]
    assert slopes == [0.2] * 4
    assert discriminator(torch.zeros(1, 19, 64, 128)).shape == (1, 1, 2, 4)


def test_fooling_loss_is_the_cross_entropy_of_target_against_the_source_label(adversary: Adversary) -> None:
    logits = logits_of(1)
    total, values = adversary.fooling_loss(logits)
    expected = {
        head: F.softplus(adversary.discriminators[head](weighted_self_information(logits[head]))).mean()
        for head in WEIGHTS
    }  # -log(1 - sigmoid(v))
    torch.testing.assert_close(total, sum(WEIGHTS[head] * expected[head] for head in WEIGHTS))
    for head in WEIGHTS:
        torch.testing.assert_close(values[f"target/fooling_{head}"], expected[head])


def test_fooling_loss_teaches_the_network_alone(adversary: Adversary) -> None:
    logits = logits_of(1, requires_grad=True)
    adversary.fooling_loss(logits)[0].backward()
    assert all(float(values.grad.abs().sum()) > 0 for values in logits.values())
    assert all(parameter.grad is None for parameter in adversary.parameters())


def test_discriminator_loss_teaches_the_discriminators_alone(adversary: Adversary) -> None:
    source, target = logits_of(1, requires_grad=True), logits_of(2, requires_grad=True)
    adversary.discriminator_loss(source, target)[0].backward()
    assert all(values.grad is None for values in (*source.values(), *target.values()))
    assert all(float(parameter.grad.abs().sum()) > 0 for parameter in adversary.parameters())


def test_discriminator_loss_counts_each_domain_half(adversary: Adversary) -> None:
    source, target = logits_of(1), logits_of(2)
    total, values = adversary.discriminator_loss(source, target)
    expected = {}
    for head, discriminator in adversary.discriminators.items():
        on_source = F.softplus(discriminator(weighted_self_information(source[head]))).mean()
        on_target = F.softplus(-discriminator(weighted_self_information(target[head]))).mean()
        expected[head] = (on_source + on_target) / 2
        torch.testing.assert_close(values[f"discriminator/loss_{head}"], expected[head])
    torch.testing.assert_close(total, sum(expected.values()))


def test_discriminators_learn_to_tell_the_domains_apart(adversary: Adversary) -> None:
    source = {head: 8 * values for head, values in logits_of(1).items()}  # sure
    target = {head: 0.1 * values for head, values in logits_of(2).items()}  # unsure
    optimizer = torch.optim.Adam(adversary.parameters(), lr=1e-2)
    first = float(adversary.discriminator_loss(source, target)[0].detach())
    for _ in range(30):
        optimizer.zero_grad()
        loss = adversary.discriminator_loss(source, target)[0]
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.2 * first
    fooled = adversary.fooling_loss(target)[1]["target/fooling_main"]
    assert float(fooled) > 1.0  # of target maps, which now pass for target


@pytest.mark.parametrize("domain", ["source", "target"])
def test_images_smaller_than_a_region_are_refused_with_their_flag(adversary: Adversary, domain: str) -> None:
    large = logits_of(3)
    small = {head: values[..., :31, :] for head, values in large.items()}
    source, target = (small, large) if domain == "source" else (large, small)
    message = rf"the {domain} images are 64 × 31; give a larger --{domain}\.size"
    with pytest.raises(InputError, match=message):
        adversary.discriminator_loss(source, target)
    if domain == "target":
        with pytest.raises(InputError, match=message):
            adversary.fooling_loss(target)
