"""The entropy term of Stable-Baselines3's on-policy algorithms; needs nothing of this package but the core."""

from rl.hook.algorithm import with_entropy_objective

__all__ = ["with_entropy_objective"]
