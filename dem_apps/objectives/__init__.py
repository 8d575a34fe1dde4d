"""The objectives by name; the one place that lists them.

Another one is a file beside these with a subclass of :class:`dem_apps.EntropyObjective`, and a line in the table.
"""

from __future__ import annotations

import inspect
from typing import Any

from dem_apps.errors import check_named
from dem_apps.objective import EntropyObjective
from dem_apps.objectives.decoupled import CADF, DEM, AdaDEM, AdaDEMMEC, AdaDEMNorm, Entropy
from dem_apps.objectives.info_max import InfoMax
from dem_apps.objectives.max_squares import MaxSquares
from dem_apps.objectives.robust_entropy import RobustEntropy

OBJECTIVES: dict[str, type[EntropyObjective]] = {
    "entropy": Entropy,
    "cadf": CADF,
    "dem": DEM,
    "adadem": AdaDEM,
    "adadem-norm": AdaDEMNorm,
    "adadem-mec": AdaDEMMEC,
    "max-squares": MaxSquares,
    "info-max": InfoMax,
    "robust-entropy": RobustEntropy,
}

OBJECTIVE_NAMES = tuple(OBJECTIVES)
#: Arguments that every objective has, and that are no options of one.
_COMMON = inspect.signature(EntropyObjective).parameters


def build_objective(
    name: str, num_classes: int, backend: str = "auto", balance: float = 1.0, least_share: float = 0.0, **options: Any
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
        name: of the table ``OBJECTIVES``.
        num_classes: C.
        backend: see :class:`dem_apps.EntropyObjective`.
        balance: the exponent of ``reduction="balanced"``, see there.
        least_share: predicted classes below this share of the elements weigh less under ``reduction="balanced"``, see
            :func:`dem_apps.reduction.class_weights`.
        options: of the named objective; the arguments of its class.

    Raises:
        ValueError: an unknown name, option or value; the message names the nearest known one.
    """
    check_named("objective", name, OBJECTIVES, objective_options, options)
    objective = OBJECTIVES[name](num_classes=num_classes, backend=backend, balance=balance, **options)
    return objective.with_least_share(least_share)


def objective_options(name: str) -> list[str]:
    """The options that ``build_objective(name, …)`` takes.

    >>> objective_options("dem")
    ['tau', 'alpha']
    """
    return [argument for argument in inspect.signature(OBJECTIVES[name]).parameters if argument not in _COMMON]
