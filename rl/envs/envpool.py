"""EnvPool's MiniGrid environments (C++, pip extra ``fast``) as a VecEnv of SB3 with FlatObsWrapper's observations.

EnvPool has the nine tasks of the paper with MiniGrid's layouts, limits, rewards and missions, but other layouts for the
same seed. Two things are put right here: an environment that is done would be reset by the next step, whose action
it would ignore, so it is reset at once; and rewards, which EnvPool counts in float32, are as float32 as SB3's.
An environment cannot be put back to where it was, so a resumed run starts new episodes.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from dem_apps.errors import InputError, nearest
from rl.envs.flat_observation import mission_one_hot

FLAT = "minigrid.wrappers.FlatObsWrapper"


def check_envpool(env_id: str) -> None:
    """Raise an InputError where envpool is not installed or does not have the environment."""
    if importlib.util.find_spec("envpool") is None:
        raise InputError('--engine envpool: envpool is not installed; pip install -e ".[fast]"')
    known = [name for name in _envpool().list_all_envs() if name.startswith("MiniGrid-")]
    if env_id not in known:
        raise InputError(
            f"--engine envpool: has no '{env_id}'{nearest(env_id, known)}; --engine gymnasium has every environment"
        )


def make_envpool_envs(env_id: str, wrapper: Any, count: int, seed: int) -> EnvPoolEnvs:
    """``count`` environments whose layouts are drawn from ``seed``.

    Raises:
        InputError: envpool or the environment is missing, or a wrapper other than FlatObsWrapper is asked for.
    """
    check_envpool(env_id)
    if wrapper not in (FLAT, [FLAT]):
        raise InputError(f"--engine envpool: knows env_wrapper {FLAT}, not {wrapper}; use --engine gymnasium")
    return EnvPoolEnvs(env_id, count, seed)


def is_envpool(envs: VecEnv) -> bool:
    """Whether these environments, wrapped or not, are EnvPool's."""
    return isinstance(envs.unwrapped, EnvPoolEnvs)


class EnvPoolEnvs(VecEnv):
    """E environments that observe (E, 2835) float32: view and one-hot mission, as FlatObsWrapper has them.

    Infos hold what SB3 reads: ``episode`` (return, length and time, as Monitor's), ``terminal_observation`` and
    ``TimeLimit.truncated``.

    Args:
        env_id: a MiniGrid environment that EnvPool has.
        count: E.
        seed: environment i draws its layouts from a seed of its own that follows from this one.
    """

    def __init__(self, env_id: str, count: int, seed: int) -> None:
        self._env_id, self._pool_seed = env_id, seed
        self._pool = self._make_pool(count)
        image = self._pool.observation_space["image"].shape
        self._image_size = int(np.prod(image))
        self._missions: dict[bytes, np.ndarray] = {}
        size = self._image_size + len(mission_one_hot(""))
        self._observations = np.zeros((count, size), np.float32)
        self._returns, self._lengths = np.zeros(count), np.zeros(count, np.int64)
        self._actions = np.zeros(count, np.int32)
        self.render_mode: str | None = None
        super().__init__(
            count, spaces.Box(0, 255, (size,), np.float32), spaces.Discrete(int(self._pool.action_space.n))
        )

    def _make_pool(self, count: int) -> Any:
        return _envpool().make(self._env_id, env_type="gymnasium", num_envs=count, num_threads=1, seed=self._pool_seed)

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """EnvPool takes a seed only when it is made, so the environments are made anew; the next reset starts them."""
        if seed is not None and seed != self._pool_seed:
            self._pool_seed = seed
            self._pool = self._make_pool(self.num_envs)
        return [self._pool_seed] * self.num_envs

    def reset(self) -> np.ndarray:
        """Start new episodes everywhere."""
        observed, _ = self._pool.reset()
        self._flatten(observed, np.arange(self.num_envs))
        self._returns[:], self._lengths[:] = 0, 0
        return self._observations.copy()

    def step_async(self, actions: np.ndarray) -> None:
        """Note the actions."""
        self._actions = actions.astype(np.int32)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Step, and reset what is done."""
        observed, rewards, terminated, truncated, _ = self._pool.step(self._actions)
        self._observations[:, : self._image_size] = observed["image"].reshape(self.num_envs, -1)
        dones = terminated | truncated
        self._returns += rewards
        self._lengths += 1
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        if dones.any():
            done = np.flatnonzero(dones)
            for index in done:
                infos[index] = {
                    "TimeLimit.truncated": bool(truncated[index] and not terminated[index]),
                    "terminal_observation": self._observations[index].copy(),
                    "episode": {"r": round(float(self._returns[index]), 6), "l": int(self._lengths[index]), "t": 0.0},
                }
            self._returns[done], self._lengths[done] = 0, 0
            self._flatten(self._pool.reset(done.astype(np.int32))[0], done)
        return self._observations.copy(), rewards.astype(np.float32), dones, infos

    def _flatten(self, observed: dict[str, np.ndarray], indices: np.ndarray) -> None:
        """Whole observations of environments whose episodes start; the mission stays the same until they end."""
        for index, image, mission in zip(indices, observed["image"], observed["mission"], strict=True):
            text = mission.tobytes()
            if text not in self._missions:
                self._missions[text] = mission_one_hot(text.rstrip(b"\0").decode("ascii"))
            self._observations[index, : self._image_size] = image.ravel()
            self._observations[index, self._image_size :] = self._missions[text]

    def close(self) -> None:
        """End EnvPool's threads."""
        self._pool.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """One and the same attribute for every environment, since EnvPool has no objects for them."""
        return [getattr(self, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Not possible in EnvPool."""
        raise NotImplementedError("EnvPool's environments have no attributes that could be set")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Not possible in EnvPool."""
        raise NotImplementedError("EnvPool's environments have no methods that could be called")

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: Any = None) -> list[bool]:
        """No environment of EnvPool is wrapped."""
        return [False] * len(list(self._get_indices(indices)))


def _envpool() -> Any:
    """Imported where it is used, since it is optional and slow to import."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    import envpool

    return envpool
