"""Reinforcement learning: PPO and A2C of Stable-Baselines3 with an objective of ``dem_apps`` as their entropy term."""

from dem_apps.runtime.extras import command_needs

command_needs("rl")

from rl.hook import save_plain, with_entropy_objective  # noqa: E402

__all__ = ["save_plain", "with_entropy_objective"]
