"""SAR (Niu et al., *Towards Stable Test-Time Adaptation in Dynamic Wild World*, ICLR 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dem_apps.test_time_methods.learner import Learner
from dem_apps.test_time_methods.method import Method, fitted_mask
from dem_apps.test_time_methods.options import number, number_or_none, one_of
from dem_apps.test_time_methods.selection import FILTER_BY, margin, units

_KEEPS = ("nothing", "momentum", "both")


class SAR(Method):
    """Tent on what has entropy below E₀, by the gradient at the sharpest weights nearby (Eq. 2–4).

    The weights climb by ρ along the normalised gradient, the same batch is run there and filtered once more, and its
    gradient moves the weights that were before. When the moving average of the entropy that was learnt from falls below
    e₀, everything goes back to how it began (Sec. 4.2). A batch of which nothing is kept costs no backward and moves
    nothing. An objective with a memory sees each batch once.

    Two things differ from the authors' code on purpose. There momentum and average stay as they were after such a
    return, so that the first step is that of the weights just left, and returns follow until the average has risen;
    here both begin anew, as Algorithm 1 has it of the average, and ``returning_keeps`` has theirs. And layers are left
    out by ``skip``, not by fixed names: ``skip=r"layer4"`` is theirs for a ResNet.

    Args:
        filter_by: what is judged, each ``element`` (a pixel) or each ``image`` by its pixels' mean entropy.
        entropy_margin: E₀ in nats; None is 0.4 log C. The authors' code has 0.4 log 1000 whatever C is.
        rho: ρ, the length of the climb.
        reset_below: e₀ in nats; the paper's 0.2 is meant for the 1000 classes of ImageNet, and a segmentation network
            may be surer than that from the start. None never goes back.
        returning_keeps: what does not go back with the weights: ``nothing``, the optimiser's ``momentum``, or momentum
            and the average, ``both``, as in the authors' code.
    """

    memory = ("mean_entropy",)

    def __init__(
        self,
        filter_by: str = "element",
        entropy_margin: float | None = None,
        rho: float = 0.05,
        reset_below: float | None = 0.2,
        returning_keeps: str = "nothing",
    ) -> None:
        self.filter_by = one_of("filter_by", filter_by, FILTER_BY)
        self.entropy_margin = number_or_none("entropy_margin", entropy_margin, 0.0)
        self.rho = number("rho", rho, 0.0)
        self.reset_below = number_or_none("reset_below", reset_below, 0.0)
        self.returning_keeps = one_of("returning_keeps", returning_keeps, _KEEPS)
        self.mean_entropy: float | None = None

    def step(self, learner: Learner, images: Tensor, mask: Tensor | None) -> Tensor:
        """Two forwards and two backwards, as far as anything is kept."""
        logits = learner.logits(images)
        counted = fitted_mask(mask, images, logits)
        judged = units(logits, counted, self.filter_by)
        e0 = margin(self.entropy_margin, 0.4, logits.shape[1])
        kept = judged.counted & (judged.entropy < e0)
        if not bool(kept.any()):
            return logits
        learner.backward(learner.loss(logits, judged.kept_elements(kept)))
        with _climbed(learner, self.rho):
            second = learner.logits(images)
            judged = units(second, counted, self.filter_by)
            kept = kept & (judged.entropy < e0)
            if bool(kept.any()):
                learner.backward(learner.loss(second, judged.kept_elements(kept), observe=False))
        if bool(kept.any()):
            learner.apply()
            self._watch(learner, judged.entropy[kept].mean().item())
        return logits

    def _watch(self, learner: Learner, entropy: float) -> None:
        """Follow the entropy, and begin anew where it has collapsed."""
        self.mean_entropy = entropy if self.mean_entropy is None else 0.9 * self.mean_entropy + 0.1 * entropy
        if self.reset_below is not None and self.mean_entropy < self.reset_below:
            learner.reset(optimizer=self.returning_keeps == "nothing")
            if self.returning_keeps != "both":
                self.mean_entropy = None


@contextmanager
def _climbed(learner: Learner, rho: float) -> Iterator[None]:
    """For a while the weights stand ρ further along their gradient; afterwards where they stood, bit for bit."""
    climbing = [parameter for parameter in learner.network.learning.values() if parameter.grad is not None]
    before = [parameter.detach().clone() for parameter in climbing]
    with torch.no_grad():
        gradients = [parameter.grad for parameter in climbing if parameter.grad is not None]
        length = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for parameter, gradient in zip(climbing, gradients, strict=True):
            parameter.add_(gradient * (rho / (length + 1e-12)))
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(climbing, before, strict=True):
                parameter.copy_(value)
