"""The objectives by name; the one place that lists them.

Another one is a file beside these with a subclass of :class:`dem_apps.EntropyObjective`, and a line in the table.
"""

from __future__ import annotations

import inspect
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from dem_apps.errors import check_named

if TYPE_CHECKING:
    from dem_apps.objective import EntropyObjective

#: Name → module and class, which is imported when it is built: the names are known without torch.
OBJECTIVES = {
    "entropy": "dem_apps.objectives.decoupled:Entropy",
    "cadf": "dem_apps.objectives.decoupled:CADF",
    "dem": "dem_apps.objectives.decoupled:DEM",
    "adadem": "dem_apps.objectives.decoupled:AdaDEM",
    "adadem-norm": "dem_apps.objectives.decoupled:AdaDEMNorm",
    "adadem-mec": "dem_apps.objectives.decoupled:AdaDEMMEC",
    "max-squares": "dem_apps.objectives.max_squares:MaxSquares",
    "info-max": "dem_apps.objectives.info_max:InfoMax",
    "robust-entropy": "dem_apps.objectives.robust_entropy:RobustEntropy",
    "come": "dem_apps.objectives.come:COME",
}

OBJECTIVE_NAMES = tuple(OBJECTIVES)
#: Reductions under which a learning rate does not depend on the number of elements.
AVERAGES = ("mean", "balanced")


def objective_class(name: str) -> type[EntropyObjective]:
    """The class of a name of the table."""
    kind: type[EntropyObjective] = resolve_name(OBJECTIVES[name])
    return kind


def objective_title(name: str) -> str:
    """The name of an objective as papers write it: the name of its class.

    >>> objective_title("adadem")
    'AdaDEM'
    """
    return OBJECTIVES[name].partition(":")[2]


def build_objective(
    name: str, num_classes: int, backend: str = "auto", balance: float = 1.0, **options: Any
) -> EntropyObjective:
    """Build an entropy objective by name.

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
        name: of the table ``OBJECTIVES``; ``num_classes`` is C.
        backend, balance: see :class:`dem_apps.EntropyObjective`.
        options: of the named objective; the arguments of its class.

    Raises ValueError: an unknown name, option or value; the message names the nearest known one.
    """
    check_named("objective", name, OBJECTIVES, objective_options, options)
    return objective_class(name)(
        num_classes=num_classes, backend=backend, balance=balance, **options
    )


def objective_options(name: str) -> list[str]:
    """The options that ``build_objective(name, …)`` takes.

    >>> objective_options("dem")
    ['tau', 'alpha']
    """
    made_of = objective_class(name)
    # the arguments of every objective are no options
    common = inspect.signature(resolve_name("dem_apps.objective:EntropyObjective")).parameters
    return [
        argument for argument in inspect.signature(made_of).parameters if argument not in common
    ]
