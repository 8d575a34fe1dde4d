"""The family of *Decoupled Entropy Minimization*: entropy, CADF, DEM and AdaDEM.

Source: Ma, Li, Xiang: Decoupled Entropy Minimization, NeurIPS 2025.

The equations are in :mod:`dem_apps.entropy`. All members are cases of one form, :class:`ObjectiveSpec`, and share the
one-pass forms of :mod:`dem_apps.fused`.
"""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor

from dem_apps import entropy
from dem_apps.entropy import Calibrator, DeltaSource, Mask, Norm, ObjectiveSpec
from dem_apps.errors import number, one_of, warn
from dem_apps.fused.numpy_objective import KernelObjective, NumpyForm, by_equations, has_kernel_for
from dem_apps.objective import EntropyObjective
from dem_apps.reduction import Batch, sums_in

#: The largest τ, 1/τ and α; beyond it float32 would overflow.
_LARGEST = 1e6


class DecoupledObjective(EntropyObjective):
    """A member of the family by its parts; the classes below are the paper's members.

    State: with the calibrator MEC the buffer ``class_marginals`` (C, C), whose row k is the mean prediction over
    elements predicted as k. It is float32, is in ``state_dict`` and moves once per call, before the loss uses it, in
    ``train()`` mode only. NaN probabilities do not move it. It begins at 1/C, or where :meth:`start` has set it: then
    the buffer ``start_sums`` (C, C), the sums of p that it started from, is in ``state_dict`` too.

    Args:
        spec: which member.
        momentum: π, the weight of the batch in the class marginals' moving average (Sec. 3.3).
        num_classes, backend, balance: see :class:`dem_apps.EntropyObjective`.

    >>> objective = DecoupledObjective(ObjectiveSpec("mec", norm="l1"), num_classes=2)  # AdaDEM
    >>> loss = objective(torch.tensor([[9.0, 0.0], [8.0, 0.0]]))  # all predicted as class 0: its row moves
    >>> objective.class_marginals
    tensor([[0.5500, 0.4500],
            [0.5000, 0.5000]])
    """

    class_marginals: Tensor
    start_sums: Tensor | None

    def __init__(
        self,
        spec: ObjectiveSpec,
        num_classes: int,
        momentum: float = 0.1,
        backend: str = "auto",
        balance: float = 1.0,
    ) -> None:
        super().__init__(num_classes, backend, balance)
        self.spec = spec
        self.momentum = number("momentum", momentum, 0.0, 1.0)
        self.needs_class_sums = spec.calibrator == "mec"
        self.register_buffer("start_sums", None)
        if self.needs_class_sums:
            uniform = torch.full((num_classes, num_classes), 1.0 / num_classes, dtype=torch.float32)
            self.register_buffer("class_marginals", uniform)

    def values(self, logits: Tensor, dim: int, class_mask: Mask, batch: Batch) -> Tensor:
        """T_τ + Q_α (Eq. 10), or −(1/δ) Σ (pᵢ − α calibrationᵢ) zᵢ (Eq. 11), as ``spec`` says."""
        spec = self.spec
        if spec.calibrator == "gmc":
            return entropy.dem(logits, dim, spec.tau, spec.alpha, class_mask)
        if spec.calibrator == "mec":
            calibration = entropy.marginal_entropy_calibrator(
                self.class_marginals, batch.predicted, dim, class_mask
            )
        else:
            calibration = entropy.probabilities(logits.detach(), dim, class_mask=class_mask)
        calibration = calibration.to(entropy.computed_in(logits.dtype))
        delta = (
            1.0
            if spec.norm is None
            else entropy.reward_norm(logits, dim, spec.norm, spec.delta, class_mask)
        )
        # each row sums to 1 but for rounding, which large logits would make visible
        return entropy.calibrated_cadf(
            logits, spec.alpha * calibration, delta, dim, class_mask, total=spec.alpha
        )

    def observe(self, sums: Tensor, counts: Tensor) -> None:
        """Move the class marginals towards the batch."""
        moved = entropy.updated_class_marginals(self.class_marginals, sums, counts, self.momentum)
        # NaN would stay in them; the loss of this batch is NaN in any case
        self.class_marginals.copy_(torch.where(sums.isfinite().all(), moved, self.class_marginals))

    def begin(self, sums: Tensor, further: bool) -> None:
        """Row k of the class marginals becomes the mean of p over the elements predicted as k."""
        if self.needs_class_sums:
            before = self.start_sums if further else None
            self.start_sums = sums if before is None else before + sums.to(before)
            self.reset()

    def reset(self) -> None:
        """Set the class marginals back to what :meth:`start` made them.

        Without a start every row is uniform, 1/C.
        """
        if self.start_sums is not None:
            numbers = self.start_sums.sum(1, keepdim=True)  # of elements, since each p sums to 1
            self.class_marginals.copy_(
                torch.where(numbers > 0, self.start_sums / numbers, 1.0 / self.num_classes)
            )
        elif self.needs_class_sums:
            self.class_marginals.fill_(1.0 / self.num_classes)

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """Called by ``load_state_dict``. Whether there was a start is part of the state."""
        if f"{prefix}class_marginals" in state and self.needs_class_sums:
            zeros = torch.zeros_like(self.class_marginals, dtype=sums_in(self.class_marginals))
            self.start_sums = zeros if f"{prefix}start_sums" in state else None
        super()._load_from_state_dict(state, prefix, *rest)

    def fused_spec(self) -> ObjectiveSpec | None:
        """Return the parts, or None for a subclass with an equation of its own.

        Such a subclass has no fast form.
        """
        return self.spec if type(self).values is DecoupledObjective.values else None

    def numpy_form(self) -> NumpyForm | None:
        """Return the objective on numpy arrays, which shares the class marginals' memory.

        It is None where :meth:`fused_spec` is, where :meth:`observe` is a subclass's own, and
        where there is no kernel for so many classes.
        """
        changed = self.fused_spec() is None or type(self).observe is not DecoupledObjective.observe
        if changed or not has_kernel_for(self.num_classes):
            return None
        marginals = self.class_marginals.numpy() if self.needs_class_sums else None
        return KernelObjective(self.spec, self.momentum, marginals, by_equations(self))

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"{self.spec}, momentum={self.momentum}, {super().extra_repr()}"


class Entropy(DecoupledObjective):
    """Shannon entropy H (Eq. 5), from 0 to log C.

    >>> Entropy(num_classes=2)(torch.tensor([[1.0, 3.0]]).log())  # −3/4 log 3 + log 4
    tensor(0.5623)
    """

    divided_by_log_c = True

    def __init__(self, num_classes: int, backend: str = "auto", balance: float = 1.0) -> None:
        super().__init__(ObjectiveSpec("gmc"), num_classes, backend=backend, balance=balance)


class CADF(DecoupledObjective):
    """The Cluster Aggregation Driving Factor alone, T (Eq. 5).

    >>> CADF(num_classes=2)(torch.tensor([[1.0, 3.0]]).log())  # −3/4 log 3
    tensor(-0.8240)
    """

    divided_by_log_c = True

    def __init__(self, num_classes: int, backend: str = "auto", balance: float = 1.0) -> None:
        super().__init__(
            ObjectiveSpec("gmc", alpha=0.0), num_classes, backend=backend, balance=balance
        )


class DEM(DecoupledObjective):
    """T_τ + Q_α (Eq. 10): CADF with a temperature, and GMC with a weight.

    Args:
        tau: τ, from 1e-6 to 1e6. Above 2/α, outside Prop. A.1, it gives a warning.
        alpha: α, from 0 to 1e6.
        num_classes, backend, balance: see :class:`dem_apps.EntropyObjective`.

    >>> DEM(num_classes=2, tau=0.5)(torch.tensor([[1.0, 3.0]]).log())  # −9/10 log 3 + log 4
    tensor(0.3975)
    """

    divided_by_log_c = True

    def __init__(
        self,
        num_classes: int,
        tau: float = 1.0,
        alpha: float = 1.0,
        backend: str = "auto",
        balance: float = 1.0,
    ) -> None:
        tau = number("tau", tau, 1 / _LARGEST, _LARGEST)
        alpha = number("alpha", alpha, 0.0, _LARGEST)
        if alpha > 0 and tau > 2 / alpha:
            warn(
                f"tau = {tau} is above 2/alpha = {2 / alpha:.3g}: outside Prop. A.1 the reward of the most probable "
                "class can be negative"
            )
        super().__init__(
            ObjectiveSpec("gmc", tau=tau, alpha=alpha),
            num_classes,
            backend=backend,
            balance=balance,
        )


class AdaDEM(DecoupledObjective):
    """−(1/δ) Σ (pᵢ − α MECₖᵢ) zᵢ (Eq. 11): the reward normalised, and calibrated by the class marginals.

    Args:
        momentum: π, from 0 to 1.
        alpha: α, from 0 to 1e6.
        norm: that makes δ: ``l1``, ``l2`` or ``linf``.
        delta: whose reward δ measures: ``cadf``, or ``entropy`` (the paper's AdaDEM-V).
        num_classes, backend, balance: see :class:`dem_apps.EntropyObjective`.

    >>> AdaDEM(num_classes=2, momentum=0.0)(torch.tensor([[1.0, 9.0]]).log())  # −(9/10 − 1/2) log 9 / 1.1955
    tensor(-0.7352)
    """

    def __init__(
        self,
        num_classes: int,
        momentum: float = 0.1,
        alpha: float = 1.0,
        norm: Norm = "l1",
        delta: DeltaSource = "cadf",
        backend: str = "auto",
        balance: float = 1.0,
    ) -> None:
        super().__init__(
            _normalised("mec", alpha, norm, delta), num_classes, momentum, backend, balance
        )


class AdaDEMNorm(DecoupledObjective):
    """AdaDEM without MEC (Algorithm 1). At α = 1 its value is always 0; only its gradient matters.

    Args: see :class:`AdaDEM`.

    >>> AdaDEMNorm(num_classes=2, alpha=0.5)(torch.tensor([[1.0, 3.0]]).log())  # −(3/4 − 3/8) log 3
    tensor(-0.4120)
    """

    def __init__(
        self,
        num_classes: int,
        alpha: float = 1.0,
        norm: Norm = "l1",
        delta: DeltaSource = "cadf",
        backend: str = "auto",
        balance: float = 1.0,
    ) -> None:
        super().__init__(
            _normalised("self", alpha, norm, delta), num_classes, backend=backend, balance=balance
        )


class AdaDEMMEC(DecoupledObjective):
    """AdaDEM without the normalised reward (Algorithm 1).

    Args: see :class:`AdaDEM`.

    >>> AdaDEMMEC(num_classes=2, momentum=0.0)(torch.tensor([[1.0, 3.0]]).log())  # −(3/4 − 1/2) log 3
    tensor(-0.2747)
    """

    def __init__(
        self,
        num_classes: int,
        momentum: float = 0.1,
        alpha: float = 1.0,
        backend: str = "auto",
        balance: float = 1.0,
    ) -> None:
        spec = ObjectiveSpec("mec", alpha=number("alpha", alpha, 0.0, _LARGEST))
        super().__init__(spec, num_classes, momentum, backend, balance)


def _normalised(
    calibrator: Calibrator, alpha: float, norm: Norm, delta: DeltaSource
) -> ObjectiveSpec:
    """A member with a normalised reward, of checked options."""
    one_of("norm", norm, get_args(Norm))
    one_of("delta", delta, get_args(DeltaSource))
    return ObjectiveSpec(
        calibrator, alpha=number("alpha", alpha, 0.0, _LARGEST), norm=norm, delta=delta
    )
