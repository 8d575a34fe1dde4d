"""The entropy term of Stable-Baselines3's on-policy algorithms; needs nothing of this package but the core."""

from rl.hook.algorithm import with_entropy_objective
from rl.hook.plain import save_plain

__all__ = ["save_plain", "with_entropy_objective"]
