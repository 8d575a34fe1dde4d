"""The train state of a run between two rollouts: a killed run continues to the same numbers."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecNormalize, VecTransposeImage, unwrap_vec_wrapper

from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import fitting, load_checkpoint, load_state
from dem_apps.runtime.reproducibility import random_states, restore_random_states
from rl.fast.compact_normalize import CompactNormalize
from rl.results.evaluator import HEADLINE, Evaluator


def policy_state(model: OnPolicyAlgorithm) -> dict[str, Any]:
    """State for an evaluation: the policy with its objective, its normalisation, the ends of its last episodes."""
    assert model.env is not None
    envs = model.get_vec_normalize_env()
    statistics = (
        None
        if envs is None
        else {name: _statistics(running) for name, running in _running(envs).items()}
    )
    return {
        "step": model.num_timesteps,
        "policy": model.policy.state_dict(),
        "normalisation": statistics,
        # of wrappers of the environment itself
        "inside": model.env.env_method("statistics", indices=0)[0],
        # without the third value of an episode, its wall-clock time: equal runs save equal states
        "episodes": [{"r": info["r"], "l": info["l"]} for info in model.ep_info_buffer or ()],
    }


def restore_policy(model: OnPolicyAlgorithm, state: dict[str, Any]) -> None:
    """Put back what :func:`policy_state` returned; an InputError where it is that of another network or space."""
    load_state(model.policy, state.get("policy"), "the checkpoint does not fit this run, policy")
    assert model.env is not None
    envs = model.get_vec_normalize_env()
    with fitting("the checkpoint does not fit this run, normalisation"):
        model.ep_info_buffer = deque(state["episodes"], maxlen=model._stats_window_size)
        model.ep_success_buffer = deque(maxlen=model._stats_window_size)  # SB3 has both or none
        model.env.env_method("use_statistics", state.get("inside", []), frozen=False)
        if envs is None:
            return
        for name, running in _running(envs).items():
            setattr(envs, name, _restored(state["normalisation"][name], running))


def evaluate_checkpoint(
    model: OnPolicyAlgorithm, checkpoints: Path, name: str, evaluator: Evaluator
) -> dict[str, Any]:
    """Load a checkpoint's policy into ``model`` and evaluate it: :data:`HEADLINE` figures on top, then both kinds."""
    state = load_checkpoint(checkpoints, name)
    restore_policy(model, state)
    figures = evaluator(model)
    return {
        "checkpoint": name,
        "step": state["step"],
        "actions": HEADLINE,
        **figures[HEADLINE],
        **figures,
    }


def train_state(model: OnPolicyAlgorithm) -> dict[str, Any]:
    """State for the next rollout and update; environments as the start of their episode and the actions since."""
    assert model.env is not None
    assert model.ep_success_buffer is not None
    normalised = model.get_vec_normalize_env()
    return {
        **policy_state(model),
        "optimizer": model.policy.optimizer.state_dict(),
        "n_updates": model._n_updates,
        "progress_remaining": model._current_progress_remaining,
        "last_obs": model._last_obs,
        "last_episode_starts": model._last_episode_starts,
        "successes": [float(success) for success in model.ep_success_buffer],
        "discounted_returns": None if normalised is None else normalised.returns,
        "raw_obs": None if normalised is None else normalised.old_obs,
        "columns": normalised.columns if isinstance(normalised, CompactNormalize) else None,
        "envs": model.env.env_method("episode_record", {}),
        "random": random_states(),
    }


def restore_train_state(model: OnPolicyAlgorithm, state: dict[str, Any]) -> None:
    """Put back what :func:`train_state` returned; then call ``model.learn(…, reset_num_timesteps=False)``.

    Raises InputError: the state is not of this run, or not all of an environment's randomness is ``np_random``.
    """
    where = "--resume: the checkpoint"
    restore_policy(model, state)
    load_state(model.policy.optimizer, state.get("optimizer"), f"{where}'s 'optimizer'")
    with fitting(where):
        model.num_timesteps = state["step"]
        model._n_updates = state["n_updates"]
        model._current_progress_remaining = state["progress_remaining"]
        model._last_obs = state["last_obs"]
        model._last_episode_starts = state["last_episode_starts"]
        model.ep_success_buffer = deque(state["successes"], maxlen=model._stats_window_size)
        normalised = model.get_vec_normalize_env()
        if normalised is not None:
            normalised.returns = state["discounted_returns"]
            normalised.old_obs = state["raw_obs"]
        if isinstance(normalised, CompactNormalize):
            normalised.use_columns(state["columns"])
        _restore_episodes(model, state)
        restore_random_states(state["random"])  # last: everything above may draw


def _running(envs: VecNormalize) -> dict[str, Any]:
    """SB3's attributes of running moments: of the returns, and of the observations where these are normalised."""
    return {
        name: getattr(envs, name)
        for name in ("ret_rms", "obs_rms")
        if name == "ret_rms" or envs.norm_obs
    }


def _statistics(running: Any) -> dict[str, Any]:
    if isinstance(running, dict):  # one per key of the observations
        return {key: _statistics(part) for key, part in running.items()}
    return dict(vars(running))  # mean, var and count


def _restored(statistics: dict[str, Any], present: Any) -> Any:
    """The ``present`` running moments with the values of a checkpoint, in their own shape."""
    if isinstance(present, dict):
        return {key: _restored(statistics[key], part) for key, part in present.items()}
    present.mean, present.var = (
        np.reshape(statistics[name], np.shape(present.mean)) for name in ("mean", "var")
    )
    present.count = statistics["count"]
    return present


def _restore_episodes(model: OnPolicyAlgorithm, state: dict[str, Any]) -> None:
    assert model.env is not None
    # raw observations, inside of a normalisation, are not transposed
    raw = model.get_vec_normalize_env() is not None
    transposing = None if raw else unwrap_vec_wrapper(model.env, VecTransposeImage)
    expected = state["last_obs"] if state["raw_obs"] is None else state["raw_obs"]
    for index, record in enumerate(state["envs"]):
        observation, known = model.env.env_method("restore", record, indices=index)[0]
        if transposing is not None:
            observation = transposing.transpose_observations(observation)
        seen, right = (
            each if isinstance(each, dict) else {"": each} for each in (observation, expected)
        )
        if not known and not all(
            np.array_equal(part, right[key][index]) for key, part in seen.items()
        ):
            raise InputError(
                "--resume: the environment did not come back to the same observation after its actions were repeated; "
                "it draws randomness from somewhere else than np_random, so this run cannot be continued exactly"
            )
