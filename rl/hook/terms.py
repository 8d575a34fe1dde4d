"""The entropy terms by name: all objectives of the core, and those that make sense for a policy only, one file each."""

from __future__ import annotations

from typing import Any

from dem_apps import OBJECTIVE_NAMES, EntropyObjective, build_objective
from rl.hook.adaptive_entropy import AdaptiveEntropy
from rl.hook.complexity import Complexity

#: Beside those of the core.
POLICY_TERMS: dict[str, type[EntropyObjective]] = {
    "complexity": Complexity,
    "adaptive-entropy": AdaptiveEntropy,
}

TERM_NAMES = (*OBJECTIVE_NAMES, *POLICY_TERMS)


def build_term(name: str, num_classes: int, **options: Any) -> EntropyObjective:
    """A term by name.

    >>> build_term("complexity", num_classes=7)
    Complexity(num_classes=7, backend=auto)

    Raises:
        ValueError: an unknown name, option or value.
    """
    if name not in POLICY_TERMS:
        return build_objective(name, num_classes=num_classes, **options)
    return POLICY_TERMS[name](num_classes, **options)
