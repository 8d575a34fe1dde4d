"""Adversarial entropy (AdvEnt): a discriminator per head tells source from target by their self-information maps.

Source: Vu et al., ADVENT, CVPR 2019, Sec. 3.3: the network is trained so that maps of target images pass for source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dem_apps.entropy import Mask, computed_in
from dem_apps.errors import InputError
from seg.methods.minent import MinEnt
from seg.methods.optimization import (
    Loss,
    Means,
    MicroBatch,
    MicroBatches,
    Summed,
    update,
    weighted_sum,
)
from seg.methods.settings import DiscriminatorConfig, Weights
from seg.models.network import HeadLogits

_SOURCE, _TARGET = 0.0, 1.0
#: Five convolutions of stride 2 leave one region of this many pixels.
_SMALLEST_SIDE = 32


@dataclass(eq=False)
class AdvEnt(MinEnt):
    """The objective and the fooling loss on target; after the network's step the discriminators make theirs."""

    discriminator: DiscriminatorConfig
    weights: Weights  #: of the fooling loss per head

    def __post_init__(self) -> None:
        super().__post_init__()
        lr = self.discriminator.lr
        self.adversary = Adversary(self.num_classes, self.weights, self.discriminator.channels)
        self.adversary.to(self.network.accelerator.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        group = {"params": list(self.adversary.parameters()), "base_lr": lr}
        adam = torch.optim.Adam([group], lr, betas=(0.9, 0.99))
        self.optimizer = self.network.accelerator.prepare_optimizer(adam)
        self.modules["adversary"] = self.adversary
        self.optimizers["adversary_optimizer"] = self.optimizer
        #: arguments of the discriminators' loss, of each micro-batch of the step
        self._maps = list[dict[str, Any]]()

    def after_source(self, logits: HeadLogits) -> None:
        """Keep the source maps for the discriminators' step."""
        self._maps.append({"source": logits})

    def target_loss(self, batch: MicroBatch) -> Loss:
        """The objective and the fooling loss, which share a forward."""
        logits = self.network(batch.target["image"], "target")
        valid = batch.target.get("valid")
        self._maps[-1] |= {
            "target": {head: values.detach() for head, values in logits.items()},
            "valid_source": batch.source.get("valid"),
            "valid_target": valid,
        }
        objective, values = self.objectives(logits, valid)
        with self.network.accelerator.autocast():
            fooling, losses = self.adversary.fooling_loss(logits, valid)
        return fooling if objective is None else objective + fooling, values | losses

    def after_step(self, batches: MicroBatches, step: int) -> Means:
        """The discriminators' step: with fp16 each optimiser undoes the loss scale its gradients were made with."""
        accelerator = self.network.accelerator
        self.optimizer.zero_grad()
        logged = []
        for maps in self._maps:
            with accelerator.autocast():
                loss, losses = self.adversary.discriminator_loss(**maps)
            accelerator.backward(loss / len(batches))
            logged.append(losses)
        self._maps.clear()
        return update(self.adversary, self.optimizer, logged, batches, step)


class Adversary(nn.Module):
    """The discriminators of the heads and their two losses; ``weights`` are of the fooling loss per head."""

    def __init__(self, num_classes: int, weights: Weights, channels: int) -> None:
        super().__init__()
        self.weights = weights
        self.discriminators = nn.ModuleDict(
            {head: build_discriminator(num_classes, channels) for head in weights}
        )

    def fooling_loss(self, logits: HeadLogits, valid: Mask = None) -> Summed:
        """Fooling loss of the network: target maps classified as source. Discriminators get no gradient.

        Args:
            logits: (B, C, H, W) per head.
            valid: (B, H, W), where the images hold data; elsewhere the map is 0.

        Returns:
            The weighted sum over heads, and the losses to log.

        Raises:
            InputError: images too small to judge a region of.
        """
        self.requires_grad_(False)
        losses = {
            head: _loss(judge, logits[head], "target", valid, _SOURCE)
            for head, judge in self.discriminators.items()
        }
        self.requires_grad_(True)
        return weighted_sum(losses, self.weights, "target/fooling")

    def discriminator_loss(
        self,
        source: HeadLogits,
        target: HeadLogits,
        valid_source: Mask = None,
        valid_target: Mask = None,
    ) -> Summed:
        """Loss of the discriminators: source 0, target 1, each domain counts half. The network gets no gradient.

        Args:
            source: (B, C, H, W) logits per head.
            target: the same for target images.
            valid_source: (B, H, W), where the source images hold data.
            valid_target: the same for target images.

        Returns:
            The sum over heads, and the losses per head to log.
        """
        losses = {}
        for head, judge in self.discriminators.items():
            on_source = _loss(judge, source[head].detach(), "source", valid_source, _SOURCE)
            on_target = _loss(judge, target[head].detach(), "target", valid_target, _TARGET)
            losses[head] = (on_source + on_target) / 2
        return weighted_sum(losses, dict.fromkeys(losses, 1.0), "discriminator/loss")


def build_discriminator(num_classes: int, channels: int) -> nn.Sequential:
    """Build a discriminator of five 4×4 convolutions of stride 2.

    It maps (B, C, H, W) to (B, 1, H/32, W/32), a verdict per region before the sigmoid.
    """
    layers: list[nn.Module] = []
    before = num_classes
    for width in (channels, 2 * channels, 4 * channels, 8 * channels):
        convolution = nn.Conv2d(before, width, 4, stride=2, padding=1)
        layers += [convolution, nn.LeakyReLU(0.2, inplace=True)]
        before = width
    return nn.Sequential(*layers, nn.Conv2d(before, 1, 4, stride=2, padding=1))


def weighted_self_information(logits: Tensor) -> Tensor:
    """Return −p log p / log C of logits (B, C, H, W), in the same shape.

    It is the entropy before the sum over classes.
    """
    log_p = F.log_softmax(logits.to(computed_in(logits.dtype)), dim=1)
    return -log_p.exp() * log_p / math.log(logits.shape[1])


def _loss(
    judge: nn.Module,
    logits: Tensor,
    domain: str,
    valid: Mask,
    label: float,
) -> Tensor:
    """Return the cross-entropy of a discriminator's verdicts on the images of a domain.

    Args:
        judge: the discriminator.
        logits: (B, C, H, W).
        domain: of the images, for the error.
        valid: (B, H, W), where the images hold data; elsewhere the map is 0, as at a certain pixel.
        label: the verdict that costs nothing.

    Raises:
        InputError: the images are smaller than a region.
    """
    height, width = logits.shape[-2:]
    if min(height, width) < _SMALLEST_SIDE:
        raise InputError(
            f"--method advent: discriminators judge regions of {_SMALLEST_SIDE} × {_SMALLEST_SIDE} pixels, and the "
            f"{domain} images are {width} × {height}; give a larger --{domain}.size, or another method"
        )
    judged = weighted_self_information(logits)
    verdict = judge(judged if valid is None else judged * valid[:, None])
    verdict = verdict.to(computed_in(verdict.dtype))
    return F.binary_cross_entropy_with_logits(verdict, torch.full_like(verdict, label))
