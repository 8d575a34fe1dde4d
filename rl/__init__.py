"""Reinforcement learning: PPO and A2C of Stable-Baselines3 with an objective of ``dem_apps`` as their entropy term."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dem_apps.runtime.command import command_needs

command_needs("rl", "jsonargparse", "rich", "stable_baselines3", "sb3_contrib", "minigrid")

if TYPE_CHECKING:
    from rl.hook import save_plain, with_entropy_objective

__all__ = ["save_plain", "with_entropy_objective"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rl' has no attribute '{name}'")
    return getattr(importlib.import_module("rl.hook"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
