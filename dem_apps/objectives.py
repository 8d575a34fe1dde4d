"""The names of the objectives and what each is made of; the one place to add another."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

from dem_apps.entropy import DeltaSource, Norm, ObjectiveSpec
from dem_apps.errors import InputError, nearest
from dem_apps.objective import EntropyObjective


def build_objective(
    name: str, num_classes: int, backend: str = "auto", balance: float = 1.0, **options: Any
) -> EntropyObjective:
    """An entropy objective by name.

    >>> import torch
    >>> objective = build_objective("adadem", num_classes=19)
    >>> logits = torch.randn(2, 19, 8, 8, requires_grad=True)  # (B, C, H, W)
    >>> loss = objective(logits, dim=1)
    >>> loss.backward()
    >>> loss.shape, logits.grad.shape
    (torch.Size([]), torch.Size([2, 19, 8, 8]))
    >>> build_objective("dem", num_classes=2, tau=0.5)(torch.tensor([[1.0, 3.0]]).log())  # −9/10 log 3 + log 4
    tensor(0.3975)

    Args:
        name: ``entropy``, ``cadf``, ``dem`` (options ``tau``, ``alpha``), ``adadem`` (``momentum``, ``alpha``,
            ``norm``, ``delta``), ``adadem-norm`` (``alpha``, ``norm``, ``delta``) or ``adadem-mec``
            (``momentum``, ``alpha``).
        num_classes: C.
        backend: see :class:`dem_apps.objective.EntropyObjective`.
        balance: the exponent of ``reduction="balanced"``, see there.
        options: of the named objective.

    Raises:
        ValueError: an unknown name, option or value; the message names the nearest known one.
    """
    if name not in _BUILDERS:
        raise InputError(f"objective: '{name}' is not one of {', '.join(_BUILDERS)}{nearest(name, _BUILDERS)}")
    builder = _BUILDERS[name]
    known = objective_options(name)
    for option in options:
        if option not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise InputError(f"objective '{name}': unknown option '{option}'; {has}{nearest(option, known)}")
    terms, momentum = builder(**options)
    return EntropyObjective(terms, num_classes, momentum, backend, balance)


def objective_options(name: str) -> list[str]:
    """The options that ``build_objective(name, …)`` takes.

    >>> objective_options("dem")
    ['tau', 'alpha']
    """
    return list(inspect.signature(_BUILDERS[name]).parameters)


def _entropy() -> tuple[ObjectiveSpec, float]:
    """Shannon entropy, Eq. 5."""
    return ObjectiveSpec("gmc"), 0.1


def _cadf() -> tuple[ObjectiveSpec, float]:
    """CADF alone, Eq. 5."""
    return ObjectiveSpec("gmc", alpha=0.0), 0.1


def _dem(tau: float = 1.0, alpha: float = 1.0) -> tuple[ObjectiveSpec, float]:
    """DEM, Eq. 10."""
    tau, alpha = _number("tau", tau), _number("alpha", alpha)
    if tau <= 0:
        raise InputError(f"tau: expected a temperature above 0, got {tau}")
    if alpha > 0 and tau > 2 / alpha:
        warnings.warn(
            f"tau = {tau} is above 2/alpha = {2 / alpha:.3g}: outside Prop. A.1 the reward of the most probable "
            "class can be negative",
            UserWarning,
            stacklevel=3,
        )
    return ObjectiveSpec("gmc", tau=tau, alpha=alpha), 0.1


def _adadem(
    momentum: float = 0.1, alpha: float = 1.0, norm: Norm = "l1", delta: DeltaSource = "cadf"
) -> tuple[ObjectiveSpec, float]:
    """AdaDEM, Eq. 11."""
    return ObjectiveSpec("mec", alpha=_number("alpha", alpha), norm=_norm(norm), delta=_delta(delta)), momentum


def _adadem_norm(alpha: float = 1.0, norm: Norm = "l1", delta: DeltaSource = "cadf") -> tuple[ObjectiveSpec, float]:
    """AdaDEM without MEC, Algorithm 1. At α = 1 its value is 0 at every point; only its gradient means something."""
    return ObjectiveSpec("self", alpha=_number("alpha", alpha), norm=_norm(norm), delta=_delta(delta)), 0.1


def _adadem_mec(momentum: float = 0.1, alpha: float = 1.0) -> tuple[ObjectiveSpec, float]:
    """AdaDEM without the normalised reward, Algorithm 1."""
    return ObjectiveSpec("mec", alpha=_number("alpha", alpha)), momentum


_BUILDERS: dict[str, Callable[..., tuple[ObjectiveSpec, float]]] = {
    "entropy": _entropy,
    "cadf": _cadf,
    "dem": _dem,
    "adadem": _adadem,
    "adadem-norm": _adadem_norm,
    "adadem-mec": _adadem_mec,
}

OBJECTIVE_NAMES = tuple(_BUILDERS)


def _number(option: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise InputError(f"{option}: expected a number of at least 0, got {value!r}")
    return float(value)


def _norm(norm: str) -> Norm:
    if norm not in ("l1", "l2", "linf"):
        raise InputError(f"norm: '{norm}' is not one of l1, l2, linf")
    return norm  # type: ignore[return-value]


def _delta(delta: str) -> DeltaSource:
    if delta not in ("cadf", "entropy"):
        raise InputError(f"delta: '{delta}' is not one of cadf, entropy")
    return delta  # type: ignore[return-value]
