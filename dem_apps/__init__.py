"""Decoupled Entropy Minimization: exact, fast objectives, and the frame that the applications share."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dem_apps.objective import EntropyObjective
    from dem_apps.objectives import OBJECTIVE_NAMES, build_objective
    from dem_apps.objectives.come import COME
    from dem_apps.objectives.decoupled import (
        CADF,
        DEM,
        AdaDEM,
        AdaDEMMEC,
        AdaDEMNorm,
        DecoupledObjective,
        Entropy,
    )
    from dem_apps.objectives.info_max import InfoMax
    from dem_apps.objectives.max_squares import MaxSquares
    from dem_apps.objectives.robust_entropy import RobustEntropy
    from dem_apps.test_time import TestTimeAdapter

__all__ = [
    "CADF",
    "COME",
    "DEM",
    "OBJECTIVE_NAMES",
    "AdaDEM",
    "AdaDEMMEC",
    "AdaDEMNorm",
    "DecoupledObjective",
    "Entropy",
    "EntropyObjective",
    "InfoMax",
    "MaxSquares",
    "RobustEntropy",
    "TestTimeAdapter",
    "build_objective",
]

#: Public name → its module, which is imported when the name is asked for: ``--help`` does without torch.
_HOMES = {
    "EntropyObjective": "dem_apps.objective",
    "OBJECTIVE_NAMES": "dem_apps.objectives",
    "build_objective": "dem_apps.objectives",
    "COME": "dem_apps.objectives.come",
    "InfoMax": "dem_apps.objectives.info_max",
    "MaxSquares": "dem_apps.objectives.max_squares",
    "RobustEntropy": "dem_apps.objectives.robust_entropy",
    "TestTimeAdapter": "dem_apps.test_time",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'dem_apps' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES.get(name, "dem_apps.objectives.decoupled")), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
