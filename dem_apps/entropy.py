"""The equations of *Decoupled Entropy Minimization* (Ma, Li, Xiang; NeurIPS 2025), as pure functions on logits.

One element (a pixel, an action) has logits z over C classes and p = softmax(z). Every function takes logits of any
shape with the classes on ``dim`` and returns one value per element in nats, or one per logit where it says so.
Computation is in float32, or float64 for float64 logits.

``class_mask`` is a boolean tensor that broadcasts to the logits and is True where a class is forbidden, as for a masked
action. Such a class has probability 0 and takes no part in any sum, whatever its logit. :func:`forbidden_classes` reads
it from logits of −inf.

Equation numbers are the paper's. The state of objectives is in :mod:`dem_apps.objective`.

The examples have two classes and p = (1/4, 3/4), so that every number can be checked by hand:

>>> z = torch.tensor([1.0, 3.0]).log()
>>> z
tensor([0.0000, 1.0986])
>>> probabilities(z)
tensor([0.2500, 0.7500])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from dem_apps.reduction import sums_in

#: A boolean tensor, or None where nothing is masked.
Mask = Tensor | None
Norm = Literal["l1", "l2", "linf"]
Calibrator = Literal["gmc", "mec", "self"]
DeltaSource = Literal["cadf", "entropy"]

#: δ of the whole entropy vanishes at one-hot and uniform predictions. δ of CADF is at least 1 (L1), 1/√C (L2) or 1/C
#: (L∞) and needs no such floor.
ENTROPY_DELTA_FLOOR = torch.finfo(torch.float32).eps

#: A logit at or below it is no score but a mask, as −1e8 in public code; in float16 it is the lowest number, −65504.
#: Half of −1e8, since a score may have been added to it.
FORBIDDEN_BELOW = -5e7


@dataclass(frozen=True)
class ObjectiveSpec:
    """A member of the family; every combination is one value per element.

    The members share the form −(1/δ) (Σ p_τᵢ zᵢ − calibration).
    """

    #: ``gmc`` is α log Σ exp zᵢ (Eq. 8). ``mec`` is α Σ MECₖᵢ zᵢ (Eq. 11).
    #: ``self`` is α Σ stop(pᵢ) zᵢ, with the gradient of GMC (Eq. 7).
    calibrator: Calibrator
    tau: float = 1.0  #: temperature τ of CADF (Eq. 9)
    alpha: float = 1.0  #: weight α of the calibrator
    norm: Norm | None = None  #: of δ, or None for δ = 1
    #: whose reward δ measures (the paper's AdaDEM-V takes the whole entropy's)
    delta: DeltaSource = "cadf"


def forbidden_classes(logits: Tensor, dim: int = -1) -> Tensor:
    """Return the class mask that the logits imply.

    It is True at −inf and at large negative numbers, see :data:`FORBIDDEN_BELOW`. Where all classes
    have such numbers they are no mask, because the largest logit is far above a mask.

    >>> forbidden_classes(torch.tensor([0.0, -1e4, -1e8, -torch.inf]))
    tensor([False, False,  True,  True])
    """
    below, logits = forbidden_below(logits.dtype), _wide(logits.detach())
    far = logits - logits.amax(dim, keepdim=True) <= below / 2
    return logits.isneginf() | ((logits <= below) & far)


def are_ordinary(logits: Tensor) -> bool:
    """Check that no logit forbids a class and none is NaN or infinite.

    The answer is False where the values cannot be read (:func:`can_branch_on`).
    """
    if not can_branch_on(logits):
        return False
    if not logits.numel():
        return True
    lowest, highest = logits.detach().aminmax()
    return bool((lowest > forbidden_below(logits.dtype)) & (highest < torch.inf))


def probabilities(
    logits: Tensor, dim: int = -1, tau: float = 1.0, class_mask: Mask = None
) -> Tensor:
    """p_τ = softmax(z/τ), shape of the logits (Eq. 9)."""
    return (_filled(logits, class_mask, -torch.inf) / tau).softmax(dim)


def cadf(logits: Tensor, dim: int = -1, tau: float = 1.0, class_mask: Mask = None) -> Tensor:
    """Cluster Aggregation Driving Factor, T_τ = −Σ p_τᵢ zᵢ (Eq. 5, Eq. 9).

    >>> cadf(torch.tensor([1.0, 3.0]).log())  # −3/4 log 3
    tensor(-0.8240)
    """
    factor = -(probabilities(logits, dim, tau, class_mask) * _filled(logits, class_mask)).sum(dim)
    if class_mask is None and can_branch_on(logits) and factor.isnan().any():  # 0 · −inf
        return cadf(logits, dim, tau, forbidden_classes(logits, dim))
    return factor


def gmc(logits: Tensor, dim: int = -1, alpha: float = 1.0, class_mask: Mask = None) -> Tensor:
    """Gradient Mitigation Calibrator, Q_α = α log Σ exp zᵢ (Eq. 5, Eq. 8).

    >>> gmc(torch.tensor([1.0, 3.0]).log())  # log 4
    tensor(1.3863)
    """
    return alpha * _filled(logits, class_mask, -torch.inf).logsumexp(dim)


def dem(
    logits: Tensor,
    dim: int = -1,
    tau: float = 1.0,
    alpha: float = 1.0,
    class_mask: Mask = None,
) -> Tensor:
    """Decoupled Entropy Minimization, T_τ + Q_α (Eq. 10). DEM(1, 1) is the entropy, DEM(1, 0) is CADF.

    >>> dem(torch.tensor([1.0, 3.0]).log(), tau=0.5, alpha=1.5)  # p_τ = (1/10, 9/10): −9/10 log 3 + 3/2 log 4
    tensor(1.0907)
    """
    # T and Q grow with a constant added to the logits and mostly cancel, so the maximum is taken out first. It is
    # constant for the gradient, and its part of the value, (α − 1) max z, is added again exactly.
    top = _top(logits, dim, class_mask)
    centred = _wide(logits) - top
    return (
        cadf(centred, dim, tau, class_mask)
        + gmc(centred, dim, alpha, class_mask)
        + (alpha - 1.0) * top.squeeze(dim)
    )


def shannon_entropy(logits: Tensor, dim: int = -1, class_mask: Mask = None) -> Tensor:
    """H = −Σ pᵢ log pᵢ = T + Q, from 0 to log C (Eq. 5).

    >>> shannon_entropy(torch.tensor([1.0, 3.0]).log())  # −3/4 log 3 + log 4
    tensor(0.5623)
    >>> shannon_entropy(torch.zeros(2, 4))  # uniform: log 4
    tensor([1.3863, 1.3863])
    """
    return dem(logits, dim, class_mask=class_mask)


def cadf_reward(logits: Tensor, dim: int = -1, class_mask: Mask = None) -> Tensor:
    """R_T = −∂T/∂zᵢ = pᵢ (zᵢ + T + 1), shape of the logits; sums to 1 over the classes (Eq. 6).

    >>> cadf_reward(torch.tensor([1.0, 3.0]).log())  # T = −0.8240
    tensor([0.0440, 0.9560])
    """
    p = probabilities(logits, dim, class_mask=class_mask)
    return p * (_surplus(logits, p, dim, class_mask) + 1)


def entropy_reward(logits: Tensor, dim: int = -1, class_mask: Mask = None) -> Tensor:
    """−∂H/∂zᵢ = R_T + R_Q = pᵢ (zᵢ + T) with R_Q = −pᵢ (Eq. 6), shape of the logits; sums to 0 over the classes.

    At certain predictions the reward of the leading class goes to 0, and CADF's goes to 1.

    >>> sure = torch.tensor([0.0, 20.0])
    >>> entropy_reward(sure)[1] < 1e-6, cadf_reward(sure)[1] > 1 - 1e-6
    (tensor(True), tensor(True))
    """
    p = probabilities(logits, dim, class_mask=class_mask)
    return p * _surplus(logits, p, dim, class_mask)


def reward_norm(
    logits: Tensor,
    dim: int = -1,
    norm: Norm = "l1",
    of: DeltaSource = "cadf",
    class_mask: Mask = None,
) -> Tensor:
    """δ, the norm of the reward R_T (Sec. 3.3), or of R_T + R_Q with ``of="entropy"``; no gradient.

    >>> z = torch.tensor([1.0, 9.0]).log()
    >>> cadf_reward(z), reward_norm(z)  # 1 where no reward is negative, else above 1
    (tensor([-0.0978,  1.0978]), tensor(1.1955))
    """
    order = {"l1": 1, "l2": 2, "linf": torch.inf}[norm]
    logits = logits.detach()
    reward = cadf_reward if of == "cadf" else entropy_reward
    delta: Tensor = torch.linalg.vector_norm(reward(logits, dim, class_mask), ord=order, dim=dim)
    return delta if of == "cadf" else delta.clamp_min(ENTROPY_DELTA_FLOOR)


def calibrated_cadf(
    logits: Tensor,
    calibration: Tensor,
    delta: Tensor | float,
    dim: int = -1,
    class_mask: Mask = None,
    total: float | None = None,
) -> Tensor:
    """−(1/δ) Σ (pᵢ − calibrationᵢ) zᵢ: AdaDEM where the calibration is a row of MEC (Eq. 11, Algorithm 1).

    Calibration, the logits' shape, and δ, a value per element or 1.0, are held constant. For AdaDEM-Norm the
    calibration is the probabilities themselves. ``total`` is Σ calibrationᵢ, where it is known better than by summing.

    >>> calibrated_cadf(torch.tensor([1.0, 3.0]).log(), torch.tensor([0.5, 0.5]), delta=1.0)  # −(3/4 − 1/2) log 3
    tensor(-0.2747)
    """
    filled = _filled(logits, class_mask)
    difference = probabilities(logits, dim, class_mask=class_mask) - calibration
    # The weights nearly sum to 0, so the element's maximum can be taken out of the logits without changing the
    # gradient; its part of the value is added again exactly.
    top = _top(logits, dim, class_mask)
    excess = ((calibration.sum(dim) if total is None else total) - 1.0) * top.squeeze(dim)
    return (excess - (difference * (filled - top)).sum(dim)) / delta


def class_sums(
    probabilities_nc: Tensor, predicted_n: Tensor, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Sum p and count the elements per predicted class.

    Sums and not means, because sums from several chunks or processes can be added.

    Returns:
        the sums (C, C), row k over the elements predicted as k, and the numbers of elements (C,).
        Their dtype is :func:`dem_apps.reduction.sums_in`.
    """
    wide = sums_in(probabilities_nc)
    sums = probabilities_nc.new_zeros(num_classes, num_classes, dtype=wide)
    sums.index_add_(0, predicted_n, probabilities_nc.to(wide))
    return sums, torch.bincount(predicted_n, minlength=num_classes).to(wide)


def updated_class_marginals(
    marginals: Tensor, sums: Tensor, counts: Tensor, momentum: float
) -> Tensor:
    """Row k becomes (1 − π) row + π mean p over the elements predicted as k; absent classes keep theirs (Sec. 3.3).

    >>> p = torch.tensor([[0.9, 0.1], [0.7, 0.3]])  # two elements, both predicted as class 0
    >>> sums, counts = class_sums(p, p.argmax(1), num_classes=2)
    >>> updated_class_marginals(torch.full((2, 2), 0.5), sums, counts, momentum=0.1)  # 0.9 · 0.5 + 0.1 · 0.8
    tensor([[0.5300, 0.4700],
            [0.5000, 0.5000]])
    """
    means = sums / counts.clamp_min(1).unsqueeze(1)
    moved = (1.0 - momentum) * marginals + momentum * means.to(marginals.dtype)
    return torch.where((counts > 0).unsqueeze(1), moved, marginals)


def marginal_entropy_calibrator(
    marginals: Tensor, predicted: Tensor, dim: int = -1, class_mask: Mask = None
) -> Tensor:
    """MECₖ for each element's predicted class k, with the classes back on ``dim`` (Sec. 3.3); no gradient.

    With forbidden classes a row is restricted to the allowed ones and renormalised: a forbidden class's logit may be
    −1e8, and any weight on it would dominate the loss.
    """
    rows = marginals.detach()[predicted].movedim(-1, dim)
    if class_mask is None:
        return rows
    rows = rows.masked_fill(class_mask, 0.0)
    return rows / rows.sum(dim, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which logits of ``dtype`` are computed: float64 for itself, float32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def can_branch_on(tensor: Tensor) -> bool:
    """Check that values may decide what is computed next.

    They may not where the call is traced, transformed or differentiated in forward mode.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False
    try:
        tensor.data_ptr()
    except RuntimeError:  # torch.func wraps tensors, and a wrapper has no memory
        return False
    return forward_ad.unpack_dual(tensor).tangent is None


def forbidden_below(dtype: torch.dtype) -> float:
    """Return :data:`FORBIDDEN_BELOW` in that dtype."""
    return max(FORBIDDEN_BELOW, torch.finfo(dtype).min)


def _wide(logits: Tensor) -> Tensor:
    return logits.to(computed_in(logits.dtype))


def _filled(logits: Tensor, class_mask: Mask, value: float = 0.0) -> Tensor:
    """Logits, float32 or wider, with a value at forbidden classes."""
    logits = _wide(logits)
    return logits if class_mask is None else logits.masked_fill(class_mask, value)


def _surplus(logits: Tensor, p: Tensor, dim: int, class_mask: Mask) -> Tensor:
    """zᵢ + T, from logits whose maximum is taken out: neither depends on a constant added to all of them."""
    centred = _filled(_wide(logits) - _top(logits, dim, class_mask), class_mask)
    return centred - (p * centred).sum(dim, keepdim=True)


def _top(logits: Tensor, dim: int, class_mask: Mask) -> Tensor:
    """The largest allowed logit of each element, without gradient."""
    return _filled(logits.detach(), class_mask, -torch.inf).amax(dim, keepdim=True)
