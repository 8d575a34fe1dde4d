"""The table of families of environments, and the goal and success of an id."""

from __future__ import annotations

import gymnasium

from rl.envs.family import Family
from rl.envs.minatar import MINATAR
from rl.envs.minigrid import MINIGRID

#: All other environments of gymnasium: classic control, MuJoCo, and what ``--import`` registers.
GYMNASIUM = Family(
    prefixes=("",),
    wrappers={
        "gymnasium.wrappers.FlattenObservation": "gymnasium.wrappers:FlattenObservation",
        "gymnasium.wrappers.TimeLimit": "gymnasium.wrappers:TimeLimit",
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
    """The id without the module in front of it: ``Corridor-v0`` of ``my_envs:Corridor-v0``."""
    return env_id.rpartition(":")[2]


def goal_return(env_id: str) -> float | None:
    """The mean return at which a task counts as reached: its family's or gymnasium's ``reward_threshold``, or None."""
    goals, name = family_of(env_id).goals, own_id(env_id)
    if prefix := max(filter(name.startswith, goals), key=len, default=None):
        return goals[prefix]
    spec = gymnasium.registry.get(name)
    return None if spec is None else spec.reward_threshold


def counts_as_success(env_id: str, episode_return: float, goal: float | None) -> bool | None:
    """Return whether an undiscounted return is a success.

    In a family of unit returns a return above 0 is one.
    In another family a return from ``goal`` on is one.
    ``goal`` is :func:`goal_return` or the user's; without one a return does not tell, and the answer is None.
    """
    if family_of(env_id).unit_returns:
        return episode_return > 0
    return None if goal is None else episode_return >= goal


def family_of(env_id: str) -> Family:
    """The family with the longest prefix that fits the id."""
    by_prefix = {prefix: family for family in FAMILIES.values() for prefix in family.prefixes}
    # that of gymnasium is empty, and always fits
    return by_prefix[max(filter(own_id(env_id).startswith, by_prefix), key=len)]
