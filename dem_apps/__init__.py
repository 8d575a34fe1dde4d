"""Decoupled Entropy Minimization: exact, fast objectives, and the frame that the applications share."""

from dem_apps.objective import EntropyObjective
from dem_apps.objectives import OBJECTIVE_NAMES, build_objective

__all__ = ["OBJECTIVE_NAMES", "EntropyObjective", "build_objective"]
