"""Decoupled Entropy Minimization: exact, fast objectives, and the frame that the applications share."""

from dem_apps.objective import EntropyObjective
from dem_apps.objectives import OBJECTIVE_NAMES, build_objective
from dem_apps.objectives.decoupled import CADF, DEM, AdaDEM, AdaDEMMEC, AdaDEMNorm, DecoupledObjective, Entropy
from dem_apps.objectives.info_max import InfoMax
from dem_apps.objectives.max_squares import MaxSquares
from dem_apps.objectives.robust_entropy import RobustEntropy
from dem_apps.test_time import TestTimeAdapter

__all__ = [
    "CADF", "DEM", "OBJECTIVE_NAMES", "AdaDEM", "AdaDEMMEC", "AdaDEMNorm", "DecoupledObjective", "Entropy",
    "EntropyObjective", "InfoMax", "MaxSquares", "RobustEntropy", "TestTimeAdapter", "build_objective",
]  # fmt: skip
