"""The whole state of a training run between two rollouts, so that a killed run continues to the same numbers."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecTransposeImage, unwrap_vec_wrapper

from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import fitting, load_state
from dem_apps.runtime.files import required
from dem_apps.runtime.reproducibility import random_states, restore_random_states
from rl.envs.envpool import is_envpool
from rl.fast.compact_normalize import CompactNormalize
from rl.training.build import policy_state, restore_policy


def train_state(model: OnPolicyAlgorithm) -> dict[str, Any]:
    """Everything that the next rollout and the next update depend on. Tensors, arrays and JSON values only.

    Python's environments are kept as the start of their episode and the actions since (:mod:`rl.envs.episode_restore`);
    EnvPool's cannot be kept. The rollout buffer is not kept: between two rollouts it is empty.
    """
    if model.env is None or model.ep_info_buffer is None or model.ep_success_buffer is None:
        raise RuntimeError("train_state: the model has not started to learn")
    normalised = model.get_vec_normalize_env()
    columns = normalised.columns if isinstance(normalised, CompactNormalize) else None
    return {
        **policy_state(model),
        "optimizer": model.policy.optimizer.state_dict(),
        "n_updates": model._n_updates,
        "progress_remaining": model._current_progress_remaining,
        "last_obs": model._last_obs,
        "last_episode_starts": model._last_episode_starts,
        # the third value of an episode, its wall-clock time, is not wanted in numbers that repeat
        "episodes": [{"r": info["r"], "l": info["l"]} for info in model.ep_info_buffer],
        "successes": [float(success) for success in model.ep_success_buffer],
        "discounted_returns": None if normalised is None else normalised.returns,
        "raw_obs": None if normalised is None else normalised.old_obs,
        "columns": columns,
        "envs": None if is_envpool(model.env) else model.env.env_method("episode_record"),
        "random": random_states(),
    }


def restore_train_state(model: OnPolicyAlgorithm, state: dict[str, Any]) -> None:
    """Put back what :func:`train_state` returned; then call ``model.learn(…, reset_num_timesteps=False)``.

    Raises:
        InputError: an environment did not come back to where it was, since not all of its randomness is ``np_random``;
            or the state is not one of this run.
    """
    if model.env is None:
        raise RuntimeError("restore_train_state: the model has no environment")
    where = "--resume: the checkpoint"
    restore_policy(model, state)
    load_state(model.policy.optimizer, state.get("optimizer"), f"{where}'s 'optimizer'")
    model.num_timesteps = state["step"]
    with fitting(where):
        _restore_rollout(model, state, where)
    restore_random_states(state.get("random"))  # last: everything above may draw


def _restore_rollout(model: OnPolicyAlgorithm, state: dict[str, Any], where: str) -> None:
    """Where the environments are, and what is counted and averaged over them."""
    assert model.env is not None
    _check(state, model, where)
    model._n_updates = state["n_updates"]
    model._current_progress_remaining = state["progress_remaining"]
    model._last_obs = _laid_out(state["last_obs"], model)
    model._last_episode_starts = state["last_episode_starts"]
    model.ep_info_buffer = deque(state["episodes"], maxlen=model._stats_window_size)
    model.ep_success_buffer = deque(state["successes"], maxlen=model._stats_window_size)
    normalised = model.get_vec_normalize_env()
    if normalised is not None:
        normalised.returns = state["discounted_returns"]
        normalised.old_obs = state["raw_obs"]
    if isinstance(normalised, CompactNormalize):
        normalised.use_columns(state["columns"])
    if is_envpool(model.env):
        _start_again(model)
    else:
        _restore_episodes(model, state)


def _check(state: dict[str, Any], model: OnPolicyAlgorithm, where: str) -> None:
    """Refuse what would only be noticed at the next rollout, or never."""
    required(
        state, where, n_updates=int, progress_remaining=(float, int), last_obs=(np.ndarray, dict),
        last_episode_starts=np.ndarray, episodes=list, successes=list, best=(list, type(None)),
    )  # fmt: skip
    assert model.env is not None
    space = model.observation_space
    _check_array(state["last_episode_starts"], (model.n_envs,), where, "last_episode_starts")
    _check_observations(state["last_obs"], space, model.n_envs, where, "last_obs")
    if model.get_vec_normalize_env() is not None:
        required(state, where, discounted_returns=np.ndarray, raw_obs=(np.ndarray, dict))
        _check_array(state["discounted_returns"], (model.n_envs,), where, "discounted_returns")
        _check_observations(state["raw_obs"], space, model.n_envs, where, "raw_obs")
    columns = state.get("columns")
    if columns is not None and columns.size:
        width = math.prod(space.shape or ())
        if columns.dtype.kind not in "iu" or columns.min() < 0 or columns.max() >= width:
            raise InputError(f"{where}: 'columns' are not columns of these observations")
    for episode in state["episodes"]:
        required(episode, f"{where}, 'episodes'", r=(float, int), l=(float, int))
    for number in (*state["successes"], *(state["best"] or ())):
        required({"number": number}, where, number=(float, int))
    if not is_envpool(model.env) and len(state["envs"]) != model.n_envs:
        raise InputError(f"{where}: 'envs' are {len(state['envs'])} instead of {model.n_envs}")


def _check_observations(value: Any, space: spaces.Space[Any], count: int, where: str, name: str) -> None:
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or value.keys() != space.spaces.keys():
            raise InputError(f"{where}: '{name}' has not the parts {', '.join(space.spaces)}")
        for key, part in space.spaces.items():
            _check_observations(value[key], part, count, where, f"{name}, {key}")
    else:
        _check_array(value, (count, *(space.shape or ())), where, name)


def _check_array(array: Any, shape: tuple[int, ...], where: str, name: str) -> None:
    if not isinstance(array, np.ndarray):
        raise InputError(f"{where}: '{name}' is no array")
    if array.shape != shape or array.dtype.kind not in "biuf":
        raise InputError(f"{where}: '{name}' is {array.dtype} of shape {array.shape} instead of {shape}")


def _start_again(model: OnPolicyAlgorithm) -> None:
    """New episodes: envpool's environments cannot be put back to where they were."""
    assert model.env is not None
    # with the first seed they would start with the layouts that the run started with
    model.env.seed(int(np.random.SeedSequence([model.seed or 0, model.num_timesteps]).generate_state(1)[0] >> 1))
    model._last_obs = model.env.reset()  # type: ignore[assignment]
    model._last_episode_starts = np.ones(model.n_envs, dtype=bool)


def _restore_episodes(model: OnPolicyAlgorithm, state: dict[str, Any]) -> None:
    assert model.env is not None
    expected = state["last_obs"] if state["raw_obs"] is None else state["raw_obs"]
    for index, record in enumerate(state["envs"]):
        try:
            observation = model.env.env_method("restore", record, indices=index)[0]
        except Exception as error:  # what an environment makes of actions or seeds that it does not know
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise InputError(f"--resume: environment {index} cannot repeat its episode ({reason})") from error
        if not _same(observation, expected, index, model):
            raise InputError(
                "--resume: the environment did not come back to the same observation after its actions were repeated; "
                "it draws randomness from somewhere else than np_random, so this run cannot be continued exactly"
            )


def _same(observation: Any, expected: Any, index: int, model: OnPolicyAlgorithm) -> bool:
    """Whether an environment's observation is what is expected of the ``index``-th one."""
    assert model.env is not None
    transposing = unwrap_vec_wrapper(model.env, VecTransposeImage)
    if transposing is not None and model.get_vec_normalize_env() is None:  # which is inside, and sees what we see
        observation = transposing.transpose_observations(observation)
    if isinstance(observation, dict):
        return all(np.array_equal(part, expected[key][index]) for key, part in observation.items())
    return np.array_equal(observation, expected[index])


def _laid_out(observations: Any, model: OnPolicyAlgorithm) -> Any:
    """Pictures as VecTransposeImage hands them out, a view of pixels in another order: the order of a sum rounds it."""
    assert model.env is not None
    transposing = unwrap_vec_wrapper(model.env, VecTransposeImage)
    if transposing is None:
        return observations
    if isinstance(observations, dict):
        keys = transposing.image_space_keys or []
        return {key: _as_view(part) if key in keys else part for key, part in observations.items()}
    return _as_view(observations)


def _as_view(pictures: np.ndarray) -> np.ndarray:
    return np.moveaxis(np.moveaxis(pictures, 1, -1).copy(), -1, 1)
