"""Reinforcement learning: PPO and A2C of Stable-Baselines3 with an objective of ``dem_apps`` as their entropy term."""

from rl.hook.algorithm import with_entropy_objective

__all__ = ["with_entropy_objective"]
