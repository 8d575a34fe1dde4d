"""VAT: its loss against the equations with gradients by differences, and what its perturbation promises."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from support.tiny_networks import CLASSES, TwoHeads, batches, tiny
from torch import Tensor

from seg.methods.head_objectives import HeadObjectives
from seg.methods.optimization import MicroBatch
from seg.methods.settings import VATConfig
from seg.methods.vat import VAT, adversarial_perturbation, divergence
from seg.methods.views import generators

WEIGHTS = {"main": 0.7, "aux": 0.2}


def method(network: TwoHeads, loss: str = "none", **settings: float) -> VAT:
    objectives = partial(HeadObjectives, loss, CLASSES, {"main": 0.3, "aux": 0.1}, "mean", {})
    own = {"vat": VATConfig(**settings), "weights": WEIGHTS}
    return VAT(network, CLASSES, objectives, **own)


def of_target(images: Tensor, **valid: Tensor) -> MicroBatch:
    return MicroBatch({}, {"image": images, "draw": torch.arange(len(images)) + 5, **valid})


def plain_divergence(network: TwoHeads, images: Tensor, perturbed: Tensor, valid: Tensor) -> Tensor:
    """The weighted sum over heads, pixel by pixel."""
    total = torch.zeros((), dtype=torch.float64)
    clean, moved = network(images), network(perturbed)
    for head, weight in WEIGHTS.items():
        for image, row, column in valid.nonzero().tolist():
            p, q = (logits[head][image, :, row, column].softmax(0) for logits in (clean, moved))
            total = total + weight * (p.detach() * (p.detach().log() - q.log())).sum() / valid.sum()
    return total


def plain_loss(network: TwoHeads, images: Tensor, valid: Tensor, epsilon: float, iterations: int) -> Tensor:
    """The paper's Algorithm 1, with gradients by central differences of the value."""

    def of_size(direction: Tensor, size: float) -> Tensor:
        """Each image's root mean square over valid values."""
        direction = direction * valid[:, None]
        return torch.stack([
            size * one * (3 * counted.sum() / one.square().sum()) ** 0.5
            for one, counted in zip(direction, valid, strict=True)
        ])  # fmt: skip

    d = torch.stack([torch.randn(images.shape[1:], generator=draw) for draw in generators(torch.arange(2) + 5, 1)])
    for _ in range(iterations):
        d, g = of_size(d.double(), 0.1), torch.zeros_like(images)
        for place in range(images.numel()):
            nudge = torch.zeros_like(images)
            nudge.view(-1)[place] = 1e-5
            with torch.no_grad():
                ends = [plain_divergence(network, images, images + d + sign * nudge, valid) for sign in (1, -1)]
            g.view(-1)[place] = (ends[0] - ends[1]) / 2e-5
        d = g
    return plain_divergence(network, images, images + of_size(d, epsilon), valid)


@pytest.mark.parametrize(
    ("iterations", "masked", "loss"), [(1, False, "none"), (2, False, "entropy"), (2, True, "none")]
)
def test_the_loss_is_that_of_the_equations(iterations: int, masked: bool, loss: str) -> None:
    network, images = TwoHeads(), batches(1, size=2)[0][..., :3, :3]
    valid = torch.ones(2, 3, 3, dtype=torch.bool)
    if masked:
        valid[0, 0] = valid[1, :, 1] = False
    vat = method(network, loss, epsilon=0.4, iterations=iterations)
    expected = plain_loss(network, images, valid, 0.4, iterations)
    loss, values = vat.target_loss(of_target(images, **({"valid": valid} if masked else {})))
    divergences = [weight * values[f"target/divergence_{head}"] for head, weight in WEIGHTS.items()]
    torch.testing.assert_close(sum(divergences), expected.detach(), rtol=1e-6, atol=0)
    on_clean_images, _ = vat.objectives(network(images))
    expected = expected if on_clean_images is None else expected + on_clean_images
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    for own, other in zip(network.gradients(loss), network.gradients(expected), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-9)


def test_a_dropout_mask_is_no_difference() -> None:
    loss, _ = method(TwoHeads(dropout=0.5), epsilon=1e-9).target_loss(of_target(batches(1, size=2)[0]))
    assert abs(float(loss.detach())) < 1e-15


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("dense", [False, True])
def test_the_perturbation_has_its_norm_and_moves_more_than_a_random_one(norm: str, dense: bool) -> None:
    network, images = tiny(norm, dense), batches(1, size=6)[0]
    clean = network(images)

    def distance(moved: Tensor) -> Tensor:
        return divergence(clean, network(moved)).mean()

    randoms = torch.randn(20, *images.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    randoms *= (0.05 / randoms.square().mean((2, 3, 4)).sqrt())[..., None, None, None]
    perturbation = adversarial_perturbation(distance, images, randoms[0], epsilon=0.05)
    # as the authors give it: the L2 norm of an image's 3 × 8 × 8 values
    torch.testing.assert_close(perturbation.flatten(1).norm(dim=1), torch.full((6,), 0.05 * 192**0.5).double())
    assert all(parameter.grad is None for parameter in network.parameters())
    with torch.no_grad():
        assert float(distance(images + perturbation)) > 2 * max(float(distance(images + each)) for each in randoms)
