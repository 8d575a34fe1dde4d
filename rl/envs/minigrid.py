"""MiniGrid (Chevalier-Boisvert et al., NeurIPS 2023): grid worlds that the paper trains on.

Its dictionaries of view and mission become one float32 array by :class:`rl.envs.flat_observation.FlatObservation`,
which has FlatObsWrapper's numbers. ``--engine envpool`` has some of its tasks in C++ (:mod:`rl.envs.envpool`).
"""

from rl.envs.family import Family

MINIGRID = Family(
    prefixes=("MiniGrid-", "BabyAI-"),
    module="minigrid",
    wrappers={
        "minigrid.wrappers.FlatObsWrapper": "rl.envs.flat_observation:FlatObservation",  # the same numbers
        "minigrid.wrappers.FullyObsWrapper": "minigrid.wrappers:FullyObsWrapper",
        "minigrid.wrappers.ImgObsWrapper": "minigrid.wrappers:ImgObsWrapper",
    },
)
