"""SAR (Niu et al., *Towards Stable Test-Time Adaptation in Dynamic Wild World*, ICLR 2023)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from dem_apps.errors import number
from dem_apps.test_time_methods.learner import Learner
from dem_apps.test_time_methods.method import Method, number_or_none
from dem_apps.test_time_methods.selection import Units, margin, units

#: The paper's e₀ of 0.2 as a part of log C at its 1000 classes.
_RESET_SHARE = 0.2 / math.log(1000)


class SAR(Method):
    """Tent on predictions with entropy below E₀, by the gradient at the sharpest weights nearby (Eq. 2–4).

    The weights climb by ρ along the normalised gradient, the same batch is run there and filtered once more, and its
    gradient moves the original weights. When the moving average of the entropy learnt from falls below e₀, the weights
    are reset (Sec. 4.2). A batch of which nothing is kept moves nothing. The objective's buffers move once per batch.

    Two things differ from the authors' code. There momentum and average survive a reset, so that the next step is that
    of the weights just left, and resets follow until the average has risen; here both begin again, as the average does
    in Algorithm 1. And layers are left out by ``parameters``; theirs leave out ``layer4`` of a
    ResNet by its name.

    Args:
        entropy_margin: E₀ in nats; None is 0.4 log C. The authors' code has 0.4 log 1000 for
            every C.
        rho: ρ, the length of the climb.
        reset_below: e₀ in nats; None is the paper's 0.2 at 1000 classes and falls with log C, since a network of few
            classes may be below 0.2 from the start. 0 never resets.
    """

    memory = ("mean_entropy",)

    def __init__(
        self,
        entropy_margin: float | None = None,
        rho: float = 0.05,
        reset_below: float | None = None,
    ) -> None:
        self.entropy_margin = number_or_none("entropy_margin", entropy_margin)
        self.rho = number("rho", rho, 0.0)
        self.reset_below = number_or_none("reset_below", reset_below)
        self.mean_entropy: float | None = None

    def learn(self, learner: Learner, images: Tensor, logits: Tensor, counted: Tensor) -> None:
        """A second forward and two backwards, if anything is kept."""
        judged, selected = self._reliable(logits, counted)
        if not selected.any():
            return
        learner.backward(learner.loss(logits, selected))
        with _climbed(learner, self.rho):
            second = learner.logits(images)
            judged, still = self._reliable(second, counted)
            selected = selected & still
            if selected.any():
                learner.backward(learner.loss(second, selected, observe=False))
        if selected.any():
            learner.apply()
            entropy = judged.entropy[selected].mean().item()
            if self.mean_entropy is not None:
                entropy = 0.9 * self.mean_entropy + 0.1 * entropy
            self.mean_entropy = entropy
            # it has collapsed
            if entropy < margin(self.reset_below, _RESET_SHARE, judged):
                learner.reset()
                self.mean_entropy = None

    def _reliable(self, logits: Tensor, counted: Tensor) -> tuple[Units, Tensor]:
        """The judged units, and which of them are below E₀."""
        judged = units(logits, counted)
        return judged, judged.below(margin(self.entropy_margin, 0.4, judged))


@contextmanager
def _climbed(learner: Learner, rho: float) -> Iterator[None]:
    """Inside, the weights are ρ further along their gradient; afterwards as before, bit for bit."""
    weights = learner.network.weights.values()
    climbing = {weight: weight.grad for weight in weights if weight.grad is not None}
    before = [weight.detach().clone() for weight in climbing]
    with torch.no_grad():
        length = get_total_norm(list(climbing.values()))
        for weight, gradient in climbing.items():
            weight.add_(gradient * (rho / (length + 1e-12)))
    learner.network.write()
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, value in zip(climbing, before, strict=True):
                weight.copy_(value)
        learner.network.write()
