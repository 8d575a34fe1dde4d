"""MinAtar (Young and Tian, arXiv 1903.03176): five Atari games on a 10 × 10 board, pure Python (extra ``minatar``).

FlattenObservation makes one float32 axis of a board, which the fast update takes; SB3's CnnPolicy needs larger ones.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.utils import seeding
from gymnasium.wrappers import TimeLimit

from rl.envs.checked import Info
from rl.envs.family import Family

#: Only Freeway has a time limit (2,500 steps); elsewhere an episode of a policy that never loses would not end.
LONGEST_EPISODE = 5000


class SeededGame(gym.Wrapper[Any, Any, Any, Any]):
    """Draws each episode's randomness from gymnasium's ``np_random``, and ends it after 5,000 steps.

    MinAtar's own generator cannot be put back, so a run could not be resumed.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(TimeLimit(env, LONGEST_EPISODE))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Info]:
        """Reset with a new generator of the game."""
        game: Any = self.unwrapped
        if seed is not None:
            game.np_random, _ = seeding.np_random(seed)
        game.game.seed(int(game.np_random.integers(2**31)))
        game.game.last_action = 0
        return self.env.reset()


MINATAR = Family(
    prefixes=("MinAtar/",),
    module="minatar.gym:register_envs",
    innermost="rl.envs.minatar:SeededGame",
    entry_of="MinAtar/Breakout-v1",
    # ten times the mean return of random actions over 300 episodes, in Freeway over 24
    # the means, in the order below: 0.50, 0.41, 0.25, 0.09, 4.2
    goals={
        "MinAtar/Asterix-": 5.0,
        "MinAtar/Breakout-": 4.0,
        "MinAtar/Freeway-": 2.5,
        "MinAtar/Seaquest-": 0.9,
        "MinAtar/SpaceInvaders-": 42.0,
    },
)
