"""Decoupled Entropy Minimization: exact, fast objectives, and the frame that the applications share."""

from dem_apps.objective import EntropyObjective
from dem_apps.objectives import (
    CADF,
    DEM,
    OBJECTIVE_NAMES,
    AdaDEM,
    AdaDEMMEC,
    AdaDEMNorm,
    Entropy,
    InfoMax,
    MaxSquares,
    build_objective,
)
from dem_apps.objectives.decoupled import DecoupledObjective

__all__ = [
    "CADF",
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
    "build_objective",
]
