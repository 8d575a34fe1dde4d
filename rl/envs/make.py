"""Environments: from a name to what an algorithm sees.

``gymnasium.make`` → the wrappers of the hyperparameter entry → CheckedEnv → Monitor → RestorableEpisode.
"""

from __future__ import annotations

import copy
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.wrappers import TransformAction
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from dem_apps.errors import InputError, nearest, one_of, passed_on, refused
from dem_apps.runtime.reproducibility import random_states, restore_random_states, seed_everything
from rl.envs.checked import COUNTED, CheckedEnv, Info, read_by_sb3
from rl.envs.episode import RestorableEpisode
from rl.envs.families import FAMILIES, WRAPPERS, family_of, own_id
from rl.envs.family import Family, import_modules
from rl.fast.compact_normalize import CompactNormalize, VecStep
from rl.hook.algorithm import gymnasium_api

#: Smallest side of a picture that SB3's NatureCNN takes.
_SMALLEST_PICTURE = 36
#: Wrappers as the Zoo writes them, by a name or by a name with its arguments.
#: A list of these has the innermost first.
Wrapper = str | dict[str, dict[str, Any]]
Wrappers = Wrapper | list[Wrapper] | None


def make_env(env_id: str, wrapper: Wrappers, render_mode: str | None = None) -> RestorableEpisode:
    """One environment, in the spaces that SB3 reads.

    Args:
        env_id: an id of gymnasium, which may have a module in front, ``my_envs:Corridor-v0``.
        wrapper: wrappers with names of ``WRAPPERS``.
        render_mode: gymnasium's, such as ``rgb_array``.

    Raises:
        InputError: an unknown id or wrapper, a missing package, or observations that SB3 has no network for.
    """
    wrappers, family = named_wrappers(wrapper), family_of(env_id)
    check_env_id(env_id)
    where = f"--env {env_id}"
    # drawn without the checker, whose warnings are of training
    drawn: Any = {}
    if render_mode is not None:
        drawn = {"render_mode": render_mode, "disable_env_checker": True}
    with passed_on(where, gym.error.Error, ImportError):
        env = gym.make(env_id, **drawn)
    _own_spaces(env.unwrapped)
    if family.innermost is not None:
        env = pkgutil.resolve_name(family.innermost)(env)
    for name, arguments in wrappers:
        with passed_on(f"{where}: env_wrapper {name} with {arguments}"):
            env = pkgutil.resolve_name(WRAPPERS[name])(env, **arguments)
    actions = env.action_space
    env = CheckedEnv(env, env_id)
    if isinstance(actions, COUNTED) and np.any(actions.start):
        env = TransformAction(env, lambda action: action + actions.start, read_by_sb3(actions))
    return RestorableEpisode(Monitor(env))


def try_out(env_id: str, wrapper: Wrappers, video: bool = False) -> None:
    """Reset an environment and let it take a step.

    Raises:
        InputError: it has the API of the old Gym, or gives no picture where a ``video`` is to be written.
    """
    with drawn_from(0):
        env = make_env(env_id, wrapper)
        if video and "rgb_array" not in env.metadata.get("render_modes", ()):
            raise InputError(
                f"--video: {env_id} has no render mode 'rgb_array', which videos are made of; leave --video out"
            )
        with gymnasium_api(f"--env {env_id}"):
            env.reset(seed=0)
            env.step(env.action_space.sample())
        env.close()


def _own_spaces(env: gym.Env) -> None:
    """Give the environment spaces of its own, seeded by numpy's global generator.

    Those of a class are shared by its instances, and an unseeded one draws from the operating system.
    """
    for name in ("action_space", "observation_space"):
        space = copy.deepcopy(getattr(env, name))
        space.seed(int(np.random.randint(1 << 31)))
        with suppress(AttributeError):  # a property, which the environment makes itself
            setattr(env, name, space)


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Inside, all global generators and gymnasium's unseeded ones follow ``seed``; afterwards they are as before.

    For environments that draw when they are made, before any reset gives them a seed.
    """
    states, fresh = random_states(), seeding.np_random
    seed_everything(seed)
    seeding.np_random = lambda seed=None: fresh(
        int(np.random.randint(1 << 31)) if seed is None else seed
    )
    try:
        yield
    finally:
        seeding.np_random = fresh
        restore_random_states(states)


def is_picture(space: spaces.Space[Any]) -> bool:
    """Return whether observations are pictures that SB3's CnnPolicy takes.

    Such pictures are uint8 from 0 to 255 and have 36 pixels or more each way.
    """
    return is_image_space(space) and sorted(space.shape or ())[-2] >= _SMALLEST_PICTURE


def make_training_envs(env_id: str, wrapper: Wrappers, count: int) -> VecEnv:
    """``count`` environments in this process."""
    made = [make_env(env_id, wrapper) for _ in range(count)]
    space = made[0].observation_space
    # SB3's own where observations are no single array
    kind = StackedEnvs if isinstance(space, spaces.Box) else DummyVecEnv
    return kind([lambda env=env: env for env in made])  # type: ignore[misc]


def normalised(
    envs: VecEnv, gamma: float, observations: bool = True, rewards: bool = True
) -> VecNormalize:
    """Running normalisation, of dictionaries by key; an InputError for observations such as Discrete.

    ``gamma`` is of the returns that rewards are scaled by.
    """
    space = envs.observation_space
    if (
        isinstance(space, spaces.Box)
        and len(space.shape) == 1
        and np.issubdtype(space.dtype, np.floating)
    ):
        compact = CompactNormalize(envs, gamma)
        compact.norm_obs, compact.norm_reward = observations, rewards
        return compact
    keys = None
    if isinstance(space, spaces.Dict):
        # VecNormalize changes it, and it may be the environments' own
        envs.observation_space = copy.deepcopy(space)
        keys = [key for key, part in space.items() if isinstance(part, spaces.Box)]
    with refused(lambda why: f"normalize: {why}; give dict(norm_obs=False)", ValueError):
        return VecNormalize(envs, True, observations, rewards, gamma=gamma, norm_obs_keys=keys)


class StackedEnvs(DummyVecEnv):
    """DummyVecEnv for observations that are one array, without its deep copies of all that the environments return."""

    def step_wait(self) -> VecStep:
        """As in DummyVecEnv; each info is a new dictionary (of CheckedEnv), what it holds is the environment's own."""
        observations = np.empty(
            (self.num_envs, *(self.observation_space.shape or ())), self.observation_space.dtype
        )
        rewards, dones = np.empty(self.num_envs, np.float32), np.empty(self.num_envs, bool)
        infos = list[Info]()
        for index, env in enumerate(self.envs):
            observation, rewards[index], terminated, truncated, info = env.step(self.actions[index])
            info["TimeLimit.truncated"] = truncated and not terminated
            dones[index] = terminated or truncated
            if dones[index]:
                info["terminal_observation"] = observation
                observation, self.reset_infos[index] = env.reset()
            observations[index] = observation
            infos.append(info)
        return observations, rewards, dones, infos


def named_wrappers(value: Wrappers) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments, the innermost first; an InputError for a name that ``WRAPPERS`` has not."""
    wrappers = list[tuple[str, dict[str, Any]]]()
    for item in value if isinstance(value, list) else [value or {}]:
        arguments = item if isinstance(item, dict) else {item: {}}
        wrappers += [(name, options or {}) for name, options in arguments.items()]
    for name, _ in wrappers:
        one_of("wrapper", name, list(WRAPPERS))
    return wrappers


def episode_limit(env_id: str, wrapper: Wrappers = None) -> int | None:
    """Steps after which an episode is cut off: gymnasium's time limit, or MiniGrid's ``max_steps``; None if unknown."""
    # of TimeLimit
    limits = [gym.spec(own_id(env_id)).max_episode_steps]
    limits += [arguments.get("max_episode_steps") for _, arguments in named_wrappers(wrapper)]
    if any(limits):
        return min(limit for limit in limits if limit)
    with drawn_from(0):  # what its constructor draws is not taken from the training's
        env = gym.make(env_id)
    limit = getattr(env.unwrapped, "max_steps", None)
    env.close()
    return limit if isinstance(limit, int) and limit > 0 else None


def _register(family: Family, where: str) -> None:
    """Register a family's environments; raise an InputError if its package is missing."""
    if family.module is None:
        return
    import_modules([family.module.partition(":")[0]], where)
    register = pkgutil.resolve_name(family.module)
    if callable(register):
        register()


def check_env_id(env_id: str) -> None:
    """Raise an InputError if the family's package or the id's module is missing, or gymnasium does not know the id."""
    package, _, name = env_id.rpartition(":")
    where = f"--env {env_id}"
    if package:
        import_modules([package], where)
    own = family_of(env_id)
    if name not in gym.registry:
        _register(own, where)
    if name in gym.registry:
        return
    for family in FAMILIES.values():
        if family is not own:  # for the suggestion alone
            with suppress(InputError):
                _register(family, where)
    then = (
        f"--import MODULE registers those of a package, such as ale_py, as does --env MODULE:{name}"
    )
    if package:
        then = f"{package} registers no such id; gymnasium.register gives a class one"
    raise InputError(f"--env: unknown environment '{env_id}'{nearest(name, gym.registry)}; {then}")
