"""CoTTA (Wang et al., *Continual Test-Time Domain Adaptation*, CVPR 2022)."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dem_apps.entropy import computed_in
from dem_apps.errors import InputError, number
from dem_apps.test_time_methods.copies import State, check_copies, in_float32, put_values
from dem_apps.test_time_methods.learner import Learner
from dem_apps.test_time_methods.method import (
    Method,
    check_dense,
    resized,
)


class CoTTA(Method):
    """A teacher, the moving average of the network, predicts; the network learns from it, and is partly restored.

    In this order: the teacher predicts; the network takes a step down the cross-entropy between the teacher's and its
    own prediction (Eq. 1); the teacher moves, parameters and buffers (Eq. 2); each learning number goes back to its
    first value with probability p (Eq. 7, 8). The teacher's prediction is returned, the mean of its logits over
    ``scales`` and mirroring (Eq. 3). The authors average only where the first network is unsure (Eq. 4); here every
    batch is. The loss is its own; ``objective_weight`` adds the chosen objective to it.

    Dropout is off here, so teacher and network begin with the same prediction, where the cross-entropy has no gradient:
    the network learns from the views that the teacher averages over. The authors' classifiers average over 32 random
    views of colour, place and noise; scales and mirroring are those of their segmentation.

    Args:
        momentum: of the teacher, 0.999.
        restore: p; 0.01 in the paper.
        scales: factors of the image's size that the teacher's logits are averaged over; the paper has 0.5 to 2 in steps
            of 0.25 for segmentation. ``()`` is the image as it is.
        mirror: average over the image and its mirror image as well.
        objective_weight: of the objective; 0 is CoTTA.
    """

    parameters = "all"
    teacher: nn.Module  #: the moving average, made before any batch

    def __init__(
        self,
        momentum: float = 0.999,
        restore: float = 0.01,
        scales: Sequence[float] = (),
        mirror: bool = True,
        objective_weight: float = 0.0,
    ) -> None:
        self.momentum = number("momentum", momentum, 0.0, 1.0)
        self.restore = number("restore", restore, 0.0, 1.0)
        self.scales = [number("scales", scale, 0.05, 20.0) for scale in scales]
        self.mirror = mirror
        self.objective_weight = number("objective_weight", objective_weight, 0.0)
        if not (mirror or self.scales or objective_weight):
            raise InputError(
                "method 'cotta': learns nothing without mirror, scales and objective_weight"
            )

    def begin(self, learner: Learner) -> None:
        """The teacher begins as a copy of the network."""
        self.teacher = copy.deepcopy(learner.network.model).requires_grad_(False)
        self.reset(learner)

    def learn(self, learner: Learner, images: Tensor, logits: Tensor, counted: Tensor) -> None:
        """A forward and a backward of the network; ``logits`` are the teacher's."""
        student = learner.logits(images)
        loss = learner.weighed(self._cross_entropy(student, logits, counted), logits, counted)
        if self.objective_weight:
            loss = loss + self.objective_weight * learner.loss(student, counted)
        learner.descend(loss)
        self._follow(learner)
        self._restore(learner)

    @torch.no_grad()
    def predict(self, learner: Learner, images: Tensor) -> Tensor:
        """The teacher's logits; a ValueError for a network whose copy would run the network itself."""
        check_copies(self.teacher)
        plain = learner.logits(images, self.teacher)
        if not (self.scales or self.mirror):
            return plain
        check_dense("cotta", images)
        views = []
        for scale in self.scales or [1.0]:
            sized = resized(images, [max(1, round(side * scale)) for side in images.shape[2:]])
            views.append(plain if sized is images else learner.logits(sized, self.teacher))
            if self.mirror:
                logits = learner.logits(sized.flip(3), self.teacher)
                views.append(logits.flip(3) if logits.ndim == 4 else logits)
        return torch.stack([resized(logits, plain.shape[2:]) for logits in views]).mean(0)

    def _cross_entropy(self, logits: Tensor, taught: Tensor, counted: Tensor) -> Tensor:
        """−Σ p_teacher log p per element, (B,) or (B, H, W)."""
        left_out = ~counted.unsqueeze(1)  # NaN there must not reach the gradient
        logits, taught = logits.masked_fill(left_out, 0.0), taught.masked_fill(left_out, 0.0)
        wide = computed_in(logits.dtype)
        p = taught.to(wide).softmax(1)
        # 0 · −inf is of forbidden classes
        return -(p * logits.to(wide).log_softmax(1)).where(p > 0, 0.0).sum(1)

    @torch.no_grad()
    def _follow(self, learner: Learner) -> None:
        """θ' ← m θ' + (1 − m) θ, of parameters that learn and of buffers; counters are taken over."""
        for name, weight in learner.network.weights.items():
            self._average[name].lerp_(weight, 1 - self.momentum)
        put_values(self.teacher, self._average)
        buffers = dict(learner.network.model.named_buffers())
        moved = {
            name: buffer.lerp(buffers[name], 1 - self.momentum)
            if buffer.is_floating_point()
            else buffers[name]
            for name, buffer in self.teacher.named_buffers()
        }
        put_values(self.teacher, moved)

    @torch.no_grad()
    def _restore(self, learner: Learner) -> None:
        """θ ← M θ₀ + (1 − M) θ with M of Bernoulli(p)."""
        if self.restore == 0.0:
            return
        for name, weight in learner.network.weights.items():
            draws = torch.rand(weight.shape, generator=learner.generator, device="cpu")
            back = (draws < self.restore).to(weight.device)
            weight.copy_(torch.where(back, learner.network.start[name], weight))
        learner.network.write()

    def predictor(self, learner: Learner) -> nn.Module:
        """The teacher."""
        return self.teacher

    @torch.no_grad()
    def reset(self, learner: Learner) -> None:
        """The teacher is the network again, which is reset already."""
        model = learner.network.model
        put_values(self.teacher, dict([*model.named_parameters(), *model.named_buffers()]))
        # moving parameters in float32: half precision rounds a thousandth of a difference away
        of_teacher = dict(self.teacher.named_parameters())
        self._average = in_float32({name: of_teacher[name] for name in learner.network.weights})

    def state_dict(self) -> State:
        """The teacher, with what it keeps in float32."""
        buffers = dict(self.teacher.named_buffers())  # those that are not persistent too
        return {"teacher": {**self.teacher.state_dict(), **buffers, **self._average}}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Continue from a :meth:`state_dict`."""
        put_values(self.teacher, state["teacher"])
        for name, average in self._average.items():
            average.copy_(state["teacher"][name])
