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
from seg.methods.method import Method
from seg.methods.settings import VATConfig, VATWeights
from seg.methods.views import generators
from seg.models.predictor import Predictor
from seg.training.optimization import MicroBatch, Values, mean_over_pixels, valid_pixels

#: Root mean square of ξ d. The authors' 1e-6 (of the L2 norm) is lost in float32, and less would be in bf16.
_XI = 0.1


class VAT(Method):
    """KL divergence of the predictions of target images and of the same perturbed; the objective on the former.

    A perturbation is one of all heads, and moves their weighted sum. Perturbed images move no batch norm statistics.
    """

    def __init__(
        self,
        network: Predictor,
        num_classes: int,
        make_objectives: Callable[[], HeadObjectives],
        *,
        vat: VATConfig,
        weights: VATWeights,
    ) -> None:
        super().__init__(network, num_classes, make_objectives)
        self.settings = vat
        self.weights = {head: getattr(weights, f"vat_{head}") for head in network.heads}
        self.objectives = make_objectives().to(network.accelerator.device)
        self.modules = {"minent": self.objectives}

    def target_loss(self, batch: MicroBatch) -> tuple[Tensor | None, Values]:
        """The divergences of the heads and the objective."""
        device = self.network.accelerator.device
        images = batch.target["image"].to(device, non_blocking=True)
        valid = valid_pixels(batch.target, device)
        with _repeated_draws(device), torch.set_grad_enabled(bool(self.objectives.objectives)):
            clean = self.network(images, "target")
        objective, values = self.objectives(clean, valid)

        def distance(perturbed: Tensor) -> Tensor:
            return self._divergence(clean, perturbed, valid)[0]

        random = torch.stack(
            [torch.randn(images.shape[1:], generator=draw) for draw in generators(batch.target["draw"], 1)]
        )
        perturbation = adversarial_perturbation(
            distance, images, random.to(device), self.settings.epsilon, self.settings.iterations, valid=valid
        )
        loss, divergences = self._divergence(clean, images + perturbation, valid)
        values |= {name: value.detach() for name, value in divergences.items()}
        return (loss if objective is None else loss + objective), values

    def _divergence(self, clean: Mapping[str, Tensor], images: Tensor, valid: Tensor | None) -> tuple[Tensor, Values]:
        """The weighted sum over heads, and each head's."""
        with _repeated_draws(images.device):
            logits = self.network(images, "neither")
        values = {
            f"target/divergence_{head}": mean_over_pixels(divergence(clean[head], logits[head]), valid)
            for head in self.weights
        }
        weighted = [weight * value for weight, value in zip(self.weights.values(), values.values(), strict=True)]
        return torch.stack(weighted).sum(), values


def divergence(fixed: Tensor, logits: Tensor) -> Tensor:
    """KL(p ‖ q) of the softmax p of ``fixed``, which gets no gradient, and q of ``logits``: (B, C, …) → (B, …) nats."""
    log_p, log_q = fixed.detach().log_softmax(1), logits.log_softmax(1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)


def adversarial_perturbation(
    distance: Callable[[Tensor], Tensor],
    images: Tensor,
    random: Tensor,
    epsilon: float,
    iterations: int = 1,
    xi: float = _XI,
    valid: Tensor | None = None,
) -> Tensor:
    """r = ε g / ‖g‖ of each image, by power iterations: g is the gradient of ``distance(images + ξ d)`` by d.

    Args:
        distance: a scalar of perturbed images, such as the mean :func:`divergence` from the prediction of ``images``.
            Its network's weights get no gradient.
        images: (B, K, …).
        random: of the same shape, the direction d of the first iteration.
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


def _repeated_draws(device: torch.device) -> AbstractContextManager[None]:
    """For forwards that draw the same dropout masks, so that the perturbation alone moves a prediction."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])
