"""The families of environments: one line for each, after the file that describes it."""

from __future__ import annotations

import gymnasium

from rl.envs.family import Family
from rl.envs.minatar import MINATAR
from rl.envs.minigrid import MINIGRID

#: Whatever else gymnasium knows: classic control, MuJoCo, and what ``--import`` registers.
GYMNASIUM = Family(
    prefixes=("",),
    wrappers={
        "gymnasium.wrappers.FlattenObservation": "gymnasium.wrappers:FlattenObservation",
        "sb3_contrib.common.wrappers.TimeFeatureWrapper": "sb3_contrib.common.wrappers:TimeFeatureWrapper",
    },
)

FAMILIES: dict[str, Family] = {
    "minigrid": MINIGRID,
    "minatar": MINATAR,
    "gymnasium": GYMNASIUM,
}

#: The wrappers that an entry may name, those of all families: an environment of your own may be a MiniGrid underneath.
WRAPPERS = {name: path for family in FAMILIES.values() for name, path in family.wrappers.items()}


def own_id(env_id: str) -> str:
    """The id without the module in front of it, which gymnasium imports first: ``module:Id``.

    >>> own_id("my_envs:Corridor-v0"), own_id("CartPole-v1")
    ('Corridor-v0', 'CartPole-v1')
    """
    return env_id.rpartition(":")[2]


def goal_return(env_id: str) -> float | None:
    """The mean return at which a task counts as reached: its family's, else gymnasium's ``reward_threshold``.

    None where neither says one, or nothing has registered the id yet.
    """
    goals, name = family_of(env_id).goals, own_id(env_id)
    fits = [prefix for prefix in goals if name.startswith(prefix)]
    if fits:
        return goals[max(fits, key=len)]
    spec = gymnasium.registry.get(name)
    return None if spec is None else spec.reward_threshold


def counts_as_success(env_id: str, episode_return: float, goal: float | None) -> bool:
    """Whether an episode with this return is a success, where the environment itself does not say ``is_success``.

    >>> counts_as_success("MiniGrid-DoorKey-5x5-v0", 0.2, goal=0.86), counts_as_success("CartPole-v1", 20.0, goal=475.0)
    (True, False)

    Args:
        env_id: the environment.
        episode_return: the undiscounted one.
        goal: of :func:`goal_return`, or what the user said instead; None if nobody has: any return above 0 counts.
    """
    if goal is None or family_of(env_id).unit_returns:
        return episode_return > 0
    return episode_return >= goal


def family_of(env_id: str) -> Family:
    """The family whose prefix fits the id best."""
    name = own_id(env_id)
    fits = [
        (len(prefix), family) for family in FAMILIES.values() for prefix in family.prefixes if name.startswith(prefix)
    ]
    return max(fits, key=lambda fit: fit[0])[1]
