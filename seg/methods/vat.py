"""Virtual adversarial training (VAT): a prediction stays as it is under the small change that would move it most.

Source: Miyato et al., Virtual Adversarial Training, TPAMI 2018. With ``--loss entropy`` it is their VAT + EntMin.
Shapes: B batch, C classes, H × W the images' size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.nn import functional as F

from seg.methods.head_objectives import HeadObjectives
from seg.methods.minent import MinEnt
from seg.methods.optimization import MicroBatch, Values, mean_over_pixels, valid_pixels
from seg.methods.settings import VATConfig
from seg.methods.views import generators
from seg.models.network import Predictor

#: Root mean square of ξ d. The authors' 1e-6 (of the L2 norm) is lost in float32, and less would be in bf16.
_XI = 0.1


class VAT(MinEnt):
    """KL divergence of the predictions of target images and of the same perturbed; the objective on the former.

    A perturbation is one of all heads, and moves their weighted sum. Perturbed images move no batch norm statistics.
    """

    def __init__(
        self, network: Predictor, num_classes: int, make_objectives: Callable[[], HeadObjectives], *,
        vat: VATConfig, weights: Mapping[str, float],
    ) -> None:  # fmt: skip
        super().__init__(network, num_classes, make_objectives)
        self.settings = vat
        self.weights = {head: weights[head] for head in network.heads}

    def target_loss(self, batch: MicroBatch) -> tuple[Tensor | None, Values]:
        """The divergences of the heads, and the objective."""
        device = self.network.accelerator.device
        images = batch.target["image"].to(device, non_blocking=True)
        valid = valid_pixels(batch.target, device)
        with _same_masks(device):
            clean, objective, values = self.on_target(images, valid)

        def distance(perturbed: Tensor) -> Tensor:
            with _same_masks(device):
                logits = self.network(perturbed, "neither")
            found = {head: mean_over_pixels(divergence(clean[head], logits[head]), valid) for head in self.weights}
            values.update({f"target/divergence_{head}": value.detach() for head, value in found.items()})
            return torch.stack([self.weights[head] * value for head, value in found.items()]).sum()

        random = [torch.randn(images.shape[1:], generator=draw) for draw in generators(batch.target["draw"], 1)]
        epsilon, iterations = self.settings.epsilon, self.settings.iterations
        direction = torch.stack(random).to(device)
        loss = distance(
            images + adversarial_perturbation(distance, images, direction, epsilon, iterations, valid=valid)
        )
        return (loss if objective is None else loss + objective), values


def divergence(fixed: Tensor, logits: Tensor) -> Tensor:
    """KL(p ‖ q) of the softmax p of ``fixed``, which gets no gradient, and q of ``logits``: (B, C, …) → (B, …) nats."""
    log_p, log_q = fixed.detach().log_softmax(1), logits.log_softmax(1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)


def adversarial_perturbation(
    distance: Callable[[Tensor], Tensor], images: Tensor, random: Tensor, epsilon: float, iterations: int = 1,
    xi: float = _XI, valid: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """r = ε g / ‖g‖ of each image, by power iterations: g is the gradient of ``distance(images + ξ d)`` by d.

    Args:
        distance: a scalar of perturbed images, such as the mean :func:`divergence` from the prediction of ``images``.
            Its network's weights get no gradient.
        images, random: (B, K, …), and the direction d of the first iteration.
        epsilon: root mean square of the values of r, in units of the images; their L2 norm, which is the authors' ε, is
            √(values per image) times that. So ε = 6 on 32 × 32 × 3 values in −1 to 1 is 0.108.
        iterations: how often d becomes g / ‖g‖, at the price of a forward and a backward.
        xi: root mean square of ξ d.
        valid: (B, …) bool; r is 0 where it is False, and these values count in no norm.
    """
    direction = random
    for _ in range(iterations):
        step = _scaled(direction, xi, valid).requires_grad_()
        # its size does not matter, and in half precision the gradient of a mean over many pixels would be 0
        (direction,) = torch.autograd.grad(images.numel() * distance(images + step), step)
    return _scaled(direction, epsilon, valid)


def _scaled(direction: Tensor, size: float, valid: Tensor | None) -> Tensor:
    """(B, K, …) with the root mean square ``size`` for each image, or 0 where it is 0 throughout."""
    counted = torch.ones_like(direction) if valid is None else valid[:, None].expand_as(direction)
    norm = size * counted.flatten(1).sum(1, keepdim=True).sqrt()
    return (norm * F.normalize((direction * counted).flatten(1), dim=1)).view(direction.shape)


def _same_masks(device: torch.device) -> AbstractContextManager[None]:
    """For forwards with the same dropout masks, so that the perturbation alone moves a prediction."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])
