"""The entropy terms by name: all objectives of the core, and those that make sense for a policy only, one file each."""

from __future__ import annotations

from dem_apps import OBJECTIVE_NAMES, EntropyObjective
from rl.hook.adaptive_entropy import AdaptiveEntropy
from rl.hook.complexity import Complexity

#: Beside those of the core.
POLICY_TERMS: dict[str, type[EntropyObjective]] = {
    "complexity": Complexity,
    "adaptive-entropy": AdaptiveEntropy,
}

TERM_NAMES = (*OBJECTIVE_NAMES, *POLICY_TERMS)
