"""Environments: from a name to what an algorithm sees.

``gymnasium.make`` → the wrappers of the hyperparameter entry → CheckedEnv → the spaces that SB3 reads → Monitor →
RestorableEpisode. Whole numbers become float32, for SB3's rollout buffer stores observations in the declared type, to
which normalised ones would be cut; so does float16, in which the sums of a running variance overflow.
"""

from __future__ import annotations

import copy
import pkgutil
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.wrappers import TransformAction, TransformObservation
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from dem_apps.errors import InputError, nearest, refused
from dem_apps.runtime.reproducibility import random_states, restore_random_states, seed_everything
from rl.envs.checked import COUNTED, CheckedEnv
from rl.envs.episode import RestorableEpisode
from rl.envs.families import WRAPPERS, family_of, own_id
from rl.envs.family import import_modules
from rl.fast.compact_normalize import CompactNormalize

#: Of SB3's NatureCNN.
_SMALLEST_PICTURE = 36
#: Ids in an error.
_SHOWN = 5
#: As the Zoo writes them: a name, ``{name: {argument: value}}``, or a list of these, the innermost first.
Wrappers = str | dict[str, dict[str, Any]] | list[str | dict[str, dict[str, Any]]] | None


def make_env(env_id: str, wrapper: Wrappers, render_mode: str | None = None) -> RestorableEpisode:
    """One environment, in the spaces that SB3 reads: whole numbers as floats, choices counted from 0 along one axis.

    ``env_id`` may have a module in front, ``my_envs:Corridor-v0``; ``wrapper`` has keys of ``WRAPPERS``. Raises
    InputError: an unknown name or wrapper, a missing package, or observations that SB3 has no network for.
    """
    wrappers, family = _wrappers(wrapper), family_of(env_id)
    check_env_id(env_id)
    # drawn without the checker, whose warnings are of training
    env = _made(
        env_id, **({"render_mode": render_mode, "disable_env_checker": True} if render_mode else {})
    )
    _own_spaces(env.unwrapped)
    if family.innermost is not None:
        env = pkgutil.resolve_name(family.innermost)(env)
    for name, arguments in wrappers:
        try:
            env = pkgutil.resolve_name(WRAPPERS[name])(env, **arguments)
        except (AssertionError, AttributeError, ImportError, KeyError, TypeError) as error:
            raise InputError(
                f"env_wrapper: {name} cannot wrap {env_id} with {arguments} ({error})"
            ) from error
    space, actions = env.observation_space, env.action_space
    parts = space.values() if isinstance(space, spaces.Dict) else [space]
    if not all(isinstance(part, (spaces.Box, *COUNTED, spaces.MultiBinary)) for part in parts):
        flag, kind = (
            "name a wrapper that makes one array of them: --hyperparameters.env_wrapper",
            type(space).__name__,
        )
        advice = "wrap it in a module of your own so that it gives one array"
        with suppress(NotImplementedError):  # a space of one's own does not say
            advice = (
                f"{flag} gymnasium.wrappers.FlattenObservation"
                if space.is_np_flattenable
                else advice
            )
        if "mission" in getattr(space, "spaces", ()):
            advice = f"{flag} minigrid.wrappers.FlatObsWrapper"
        raise InputError(
            f"--env {env_id}: its observations are a {kind} that SB3 has no network for; {advice}"
        )
    env = CheckedEnv(env, env_id)
    if (converted := _converted(space)) is not None:
        env = TransformObservation(env, converted[1], converted[0])
    if isinstance(actions, COUNTED) and (counted := _from_zero(actions)) != actions:
        shape, start = np.shape(actions.start), actions.start
        env = TransformAction(env, lambda action: np.reshape(action, shape) + start, counted)
    return RestorableEpisode(Monitor(env))


def _made(env_id: str, **arguments: Any) -> gym.Env:
    try:
        return gym.make(env_id, **arguments)
    except (gym.error.Error, ImportError) as error:
        raise InputError(f"--env {env_id}: {error}") from error
    except TypeError as error:
        # gymnasium raises it again, with all arguments in its text
        cause = error.__cause__ or error
        if "__init__() missing" not in str(cause):  # the environment's own error
            raise
        raise InputError(
            f"--env {env_id}: {cause}; gymnasium.register(…, kwargs=…) gives it arguments"
        ) from error


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
    """Whether observations are pictures that SB3's CnnPolicy takes: uint8 from 0 to 255, 36 pixels or more each way."""
    return is_image_space(space) and sorted(space.shape or ())[-2] >= _SMALLEST_PICTURE


def _converted(space: spaces.Space[Any]) -> tuple[spaces.Space[Any], Callable[[Any], Any]] | None:
    """The space and the conversion of observations that SB3's networks or buffers would misread; None for others."""
    if isinstance(space, spaces.Dict):
        parts = {
            key: found
            for key, part in space.items()
            if (found := _converted(part) or _scaled(part)) is not None
        }
        whole = spaces.Dict(
            {**space.spaces, **{key: changed for key, (changed, _) in parts.items()}}
        )
        return (
            (whole, lambda seen: {**seen, **{k: f(seen[k]) for k, (_, f) in parts.items()}})
            if parts
            else None
        )
    if isinstance(space, COUNTED):
        counted = _from_zero(space)
        return (
            (counted, lambda seen: np.reshape(seen - space.start, counted.shape))
            if counted != space
            else None
        )
    if isinstance(space, spaces.Box) and not is_image_space(space):
        shape: tuple[int, ...] = space.shape or (1,)  # a single number is an array of one
        if shape != space.shape or space.dtype not in (np.float32, np.float64):
            box = spaces.Box(space.low.reshape(shape), space.high.reshape(shape), shape, np.float32)
            return box, lambda seen: np.asarray(seen, np.float32).reshape(shape)
    return None


def _scaled(space: spaces.Space[Any]) -> tuple[spaces.Space[Any], Callable[[Any], Any]] | None:
    """A picture of a dictionary that is too small for SB3's NatureCNN, divided by 255 as SB3 does; None for others."""
    if not is_image_space(space) or is_picture(space):
        return None
    return spaces.Box(
        0, 1, space.shape, np.float32
    ), lambda seen: np.asarray(seen, np.float32) / np.float32(255)


def _from_zero(space: Any) -> spaces.Space[Any]:
    """A Discrete space that counts from 0, as SB3 does, or such a MultiDiscrete space of one axis."""
    return (
        spaces.Discrete(space.n)
        if isinstance(space, spaces.Discrete)
        else spaces.MultiDiscrete(space.nvec.ravel())
    )


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

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """As in DummyVecEnv; each info is a new dictionary (of CheckedEnv), what it holds is the environment's own."""
        observations = np.empty(
            (self.num_envs, *(self.observation_space.shape or ())), self.observation_space.dtype
        )
        rewards, dones = np.empty(self.num_envs, np.float32), np.empty(self.num_envs, bool)
        infos: list[dict[str, Any]] = []
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


def _wrappers(given: Wrappers) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments, the innermost first."""
    wrappers = []
    for item in given if isinstance(given, list) else [given] if given is not None else []:
        for name, arguments in item.items() if isinstance(item, dict) else [(item, None)]:
            if name not in WRAPPERS:
                known = ", ".join(WRAPPERS)
                raise InputError(
                    f"env_wrapper: unknown wrapper '{name}'{nearest(name, WRAPPERS)}; known are {known}"
                )
            wrappers.append((str(name), arguments or {}))
    return wrappers


def episode_limit(env_id: str, wrapper: Wrappers = None) -> int | None:
    """Steps after which an episode is cut off: gymnasium's time limit, or MiniGrid's ``max_steps``; None if unknown."""
    # of TimeLimit
    given = [arguments.get("max_episode_steps") for _, arguments in _wrappers(wrapper)]
    limits = [limit for limit in (*given, gym.spec(own_id(env_id)).max_episode_steps) if limit]
    if limits:
        return min(limits)
    with drawn_from(0):  # what its constructor draws is not taken from the training's
        env = _made(env_id)
    limit = getattr(env.unwrapped, "max_steps", None)
    env.close()
    return limit if isinstance(limit, int) and limit > 0 else None


def check_env_id(env_id: str) -> None:
    """Raise an InputError if the family's package or the id's module is missing, or gymnasium does not know the id."""
    own, colon, name = env_id.rpartition(":")
    where = f"--env {env_id}"
    if own:
        import_modules([own], where)
    family = family_of(env_id)
    if family.module is not None and name not in gym.registry:
        module, _, register = family.module.partition(":")
        import_modules([module], where)
        if register:
            pkgutil.resolve_name(family.module)()
    if name in gym.registry:
        return
    space, slash, _ = name.rpartition("/")  # another package's, which no other's id is near to
    ids = [known for known in gym.registry if known.rpartition("/")[:2] == (space, slash)]
    hint = nearest(name, ids) or f"; no package with ids of {space}/ is imported" * bool(slash)
    hint = f"{hint}; --import MODULE registers your own, as does --env MODULE:{name}"
    if own:
        # a class, or module:name
        made_by = {known: spec.entry_point for known, spec in gym.registry.items()}
        homes = {
            known: re.split("[.:]", str(getattr(by, "__module__", by)))[0]
            for known, by in made_by.items()
        }
        ids = [known for known, home in homes.items() if home == own.partition(".")[0]]
        hint = (
            nearest(name, ids, prefix=own + colon)
            or f"; {own} has {', '.join(ids[:_SHOWN]) or 'none'}"
        )
    raise InputError(f"--env: unknown environment '{env_id}'{hint}")
