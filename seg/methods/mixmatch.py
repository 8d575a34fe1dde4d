"""MixMatch: guessed labels of target images, mixed with source images and their labels.

Source: Berthelot et al., MixMatch, NeurIPS 2019, Algorithm 1, with a label for every pixel.
Shapes: B batch, N = B source images and K views of B target images, C classes, H × W the images' size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from scipy.special import betaincinv
from torch import Tensor
from torch.nn import functional as F

from seg.data.labels import IGNORE_INDEX
from seg.methods.head_objectives import HeadObjectives
from seg.methods.minent import MinEnt
from seg.methods.optimization import MicroBatch, Values, mean_over_pixels, valid_pixels
from seg.methods.settings import MixMatchConfig
from seg.methods.views import check_sizes, generators, recoloured
from seg.models.network import Predictor

#: Of the draws of one sample: how much of it stays, which images are mixed, and one more for each view.
_SHARE, _ORDER, _VIEW = range(3)


class MixMatch(MinEnt):
    """Cross-entropy on mixed source images, squared error to the guesses on mixed target images, and the objective.

    The objective counts on the first view of each target image, whose forward the guess needs anyway. Mixed images
    move no batch norm statistics, the views do as target images. The step's own cross-entropy on source images that are
    not mixed, which MixMatch does without, is 0 with ``--weights.seg-main 0 --weights.seg-aux 0``. Each of several
    processes mixes the images of its own.
    """

    def __init__(
        self, network: Predictor, num_classes: int, make_objectives: Callable[[], HeadObjectives], *,
        mixmatch: MixMatchConfig, weights: Mapping[str, float],
    ) -> None:  # fmt: skip
        super().__init__(network, num_classes, make_objectives)
        self.settings = mixmatch
        self.num_classes = num_classes
        self.weights = {head: weights[head] for head in network.heads}

    def target_loss(self, batch: MicroBatch) -> tuple[Tensor | None, Values]:
        """The weighted sum over heads, and the objective."""
        check_sizes(batch, "--method mixmatch: source and target images are mixed")
        device, count = self.network.accelerator.device, self.settings.views
        source, target = (part["image"].to(device, non_blocking=True) for part in batch)
        label, valid = batch.source["label"].to(device, non_blocking=True), valid_pixels(batch.target, device)
        draws = [generators(batch.target["draw"], _VIEW + view) for view in range(count)]
        views = [recoloured(target, draw, self.network.pixels) for draw in draws]
        first, objective, values = self.on_target(views[0], valid)
        with torch.no_grad():
            logits = [first, *(self.network(view, "target") for view in views[1:])]
            mean = torch.stack([each["main"].softmax(1) for each in logits]).mean(0)
        guess, labelled = sharpened(mean, self.settings.temperature), label != IGNORE_INDEX
        one_hot = F.one_hot(label.where(labelled, 0), self.num_classes).movedim(-1, 1)
        labels = torch.cat([one_hot.to(guess.dtype), *[guess] * count])
        known = torch.cat([labelled, *[torch.ones_like(labelled) if valid is None else valid] * count])
        share, partner = self._drawn(batch)
        share, partner = share.to(source.dtype).to(device), partner.to(device)  # which may have no float64
        labels, known = mixed_up(labels, share, partner), known & known[partner]
        mixed = self.network(mixed_up(torch.cat([source, *views]), share, partner), "neither")
        losses = [] if objective is None else [objective]
        for head, weight in self.weights.items():
            cross_entropy, squared_error = mixed_losses(mixed[head], labels, len(source), known)
            losses.append(weight * (cross_entropy + self.settings.guess_weight * squared_error))
            values[f"mixed/cross_entropy_{head}"] = cross_entropy.detach()
            values[f"mixed/squared_error_{head}"] = squared_error.detach()
        return torch.stack(losses).sum(), values

    def _drawn(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """The share that each image keeps, and the number of the one that it is mixed with: (N,) each."""
        counts = (1, self.settings.views)  # of a source image, of the views of a target image
        uniform = torch.cat([
            torch.stack([torch.rand(count, generator=draw) for draw in generators(part["draw"], _SHARE)], 1).flatten()
            for part, count in zip(batch, counts, strict=True)
        ])  # fmt: skip
        (order,) = generators(batch.target["draw"][:1], _ORDER)
        return larger_shares(uniform, self.settings.alpha), torch.randperm(len(uniform), generator=order)


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """p ** (1 / T), divided by the sum over classes, of (B, C, …) probabilities."""
    return (probabilities.log() / temperature).softmax(1)


def larger_shares(uniform: Tensor, alpha: float) -> Tensor:
    """λ' = max(λ, 1 − λ), λ ~ Beta(α, α), from numbers drawn evenly from 0 to 1; float64 of the same shape."""
    drawn = torch.as_tensor(betaincinv(alpha, alpha, uniform.double().numpy()))
    return drawn.maximum(1 - drawn)


def mixed_up(images: Tensor, share: Tensor, partner: Tensor) -> Tensor:
    """MixUp: (N, …) images, or labels, of which each keeps its ``share`` (N,) and the rest is its ``partner``, (N,)."""
    return images[partner].lerp(images, share.to(images.dtype).view(-1, *[1] * (images.dim() - 1)))


def mixed_losses(logits: Tensor, labels: Tensor, labelled: int, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the first ``labelled`` images, and squared error of the softmax of the others; nats, 0 to 2 / C.

    Of (N, C, …) logits and probabilities as labels; means over pixels that are ``known`` (N, …), and over classes.
    """
    here, there = (None, None) if known is None else (known[:labelled], known[labelled:])
    cross_entropy = F.cross_entropy(logits[:labelled], labels[:labelled], reduction="none")
    squared_error = (logits[labelled:].softmax(1) - labels[labelled:]).square().mean(1)
    return mean_over_pixels(cross_entropy, here), mean_over_pixels(squared_error, there)
