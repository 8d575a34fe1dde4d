"""The train state of a run between two rollouts: a killed run continues to the same numbers."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.vec_env import VecNormalize

from dem_apps.errors import InputError, passed_on
from dem_apps.runtime.checkpoint import fitting, load_checkpoint, load_state
from dem_apps.runtime.reproducibility import random_states, restore_random_states
from rl.envs.episode import State
from rl.fast.compact_normalize import CompactNormalize
from rl.hook.algorithm import STATE
from rl.results.evaluator import HEADLINE, Evaluator

#: SB3's attributes of a training that goes on.
_OF_THE_MODEL = (
    "_n_updates",
    "_current_progress_remaining",
    "_last_obs",
    "_last_episode_starts",
)


def policy_state(model: OnPolicyAlgorithm) -> State:
    """State for an evaluation: the policy with its objective, its normalisation, the ends of its last episodes."""
    assert model.env is not None
    envs = model.get_vec_normalize_env()
    return {
        "step": model.num_timesteps,
        "policy": model.policy.state_dict(),
        "normalisation": None if envs is None else _moments(envs),
        # of wrappers of the environment itself
        "inside": model.env.env_method("statistics", indices=0)[0],
        # without the third value of an episode, its wall-clock time: equal runs save equal states
        "episodes": [{"r": info["r"], "l": info["l"]} for info in model.ep_info_buffer or ()],
    }


def restore_policy(model: OnPolicyAlgorithm, state: State) -> None:
    """Put back what :func:`policy_state` returned.

    Raises:
        InputError: the state belongs to another network or space.
    """
    load_state(model.policy, state.get("policy"), "the checkpoint does not fit this run, policy")
    assert model.env is not None
    envs = model.get_vec_normalize_env()
    with fitting("the checkpoint does not fit this run, normalisation"):
        model.ep_info_buffer = deque(state["episodes"], maxlen=model._stats_window_size)
        model.ep_success_buffer = deque(maxlen=model._stats_window_size)  # SB3 has both or none
        model.env.env_method("use_statistics", state["inside"])
        if envs is not None:
            _restore_moments(envs, state["normalisation"])


def evaluate_checkpoint(
    model: OnPolicyAlgorithm, checkpoints: Path, name: str, evaluator: Evaluator
) -> State:
    """Load a checkpoint's policy into ``model`` and evaluate it.

    Returns:
        the checkpoint and its step, the :data:`HEADLINE` figures on top, then both kinds.
    """
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


def train_state(model: OnPolicyAlgorithm) -> State:
    """State for the next rollout and update; environments as the start of their episode and the actions since."""
    assert model.env is not None
    assert model.ep_success_buffer is not None
    normalised = model.get_vec_normalize_env()
    return {
        **policy_state(model),
        "optimizer": model.policy.optimizer.state_dict(),
        **{name: getattr(model, name) for name in _OF_THE_MODEL},
        "successes": [float(success) for success in model.ep_success_buffer],
        "discounted_returns": getattr(normalised, "returns", None),
        "raw_obs": getattr(normalised, "old_obs", None),
        "columns": getattr(normalised, "columns", None),
        "envs": model.env.env_method("episode_records"),
        "random": random_states(),
    }


def restore_train_state(model: OnPolicyAlgorithm, state: State) -> None:
    """Put back what :func:`train_state` returned.

    Then call ``model.learn(…, reset_num_timesteps=False)``. An environment that does not repeat
    its episode begins a new one, which a line on stderr says.

    Raises:
        InputError: the state is not of this run.
    """
    where = "--resume: the checkpoint"
    restore_policy(model, state)
    load_state(model.policy.optimizer, state.get("optimizer"), f"{where}'s 'optimizer'")
    with fitting(where):
        model.num_timesteps = state["step"]
        for name in _OF_THE_MODEL:
            setattr(model, name, state[name])
        model.ep_success_buffer = deque(state["successes"], maxlen=model._stats_window_size)
        normalised = model.get_vec_normalize_env()
        if normalised is not None:
            normalised.returns = state["discounted_returns"]
            normalised.old_obs = state["raw_obs"]
        if isinstance(normalised, CompactNormalize):
            normalised.use_columns(state["columns"])
        _restore_episodes(model, state["envs"])
        restore_random_states(state["random"])  # last: everything above may draw


def start_from(model: OnPolicyAlgorithm, source: Path) -> None:
    """Begin with the policy of a run, or of a zip that rl.export or Stable-Baselines3 wrote.

    Of a zip the weights alone are read: its pickles are not opened, and normalisation begins anew.

    Args:
        model: the algorithm, whose policy is changed.
        source: the run folder or the zip.

    Raises:
        InputError: the policy is that of another network or space, or the file is no such zip.
    """
    where = f"--start-from: {source}"
    with passed_on(where, InputError, ValueError, OSError):
        if source.is_dir():
            state = load_checkpoint(source / "checkpoints", "last")
            _check_normalisation(model, state["normalisation"])
            weights = _with_own_objective(model, state["policy"])
            restore_policy(model, {**state, "policy": weights, "episodes": []})
            return
        parameters: Any = load_from_zip_file(source, load_data=False, device=model.device)[1]
        weights = _with_own_objective(model, parameters.get("policy", {}))
        load_state(model.policy, weights, "policy")
    if model.get_vec_normalize_env() is not None:
        print(
            "note: a zip holds no statistics of the observations, so their normalisation begins anew; "
            "--start-from RUN keeps it"
        )


def _with_own_objective(model: OnPolicyAlgorithm, weights: State) -> State:
    """A policy's weights, with the state of the model's own objective where theirs has another shape or none."""
    own = {
        name: weights[name] if getattr(weights.get(name), "shape", None) == value.shape else value
        for name, value in model.policy.state_dict().items()
        if name.startswith(STATE)
    }
    return {name: value for name, value in weights.items() if not name.startswith(STATE)} | own


def _check_normalisation(model: OnPolicyAlgorithm, moments: dict[str, State] | None) -> None:
    """Raise an InputError where the run of these moments normalises what this one does not, or the reverse."""
    envs = model.get_vec_normalize_env()
    if (moments and moments.keys()) != (envs and _running(envs).keys()):
        raise InputError(
            "that run normalises its observations otherwise; give the --hyperparameters.normalize of its config.yaml"
        )


def _moments(envs: VecNormalize) -> dict[str, State]:
    """Mean, variance and count of the returns and, where these are normalised, of each array of the observations."""
    return {
        name: {part: np.asarray(value) for part, value in vars(moments).items()}
        for name, moments in _running(envs).items()
    }


def _running(envs: VecNormalize) -> dict[str, Any]:
    """Running moments by key; the observations have one, or one per key of a dictionary."""
    observations: Any = envs.obs_rms if envs.norm_obs else {}
    if not isinstance(observations, dict):
        observations = {"": observations}
    returns = "returns'" if "returns" in observations else "returns"
    return {returns: envs.ret_rms, **observations}


def _restore_moments(envs: VecNormalize, moments: dict[str, State]) -> None:
    running = _running(envs)
    for name, values in running.items():
        vars(values).update(moments[name])
    if "" in running:
        envs.obs_rms = running[""]  # a CompactNormalize has given a copy


def _restore_episodes(model: OnPolicyAlgorithm, records: list[list[State]]) -> None:
    """Repeat the environments' episodes; where one differs, let the next rollout begin with new episodes."""
    assert model.env is not None
    repeated = [
        model.env.env_method("restore", episodes, indices=index)[0]
        for index, episodes in enumerate(records)
    ]
    if all(repeated):
        return
    name = model.env.get_attr("spec", indices=0)[0].id
    print(
        f"note: the run cannot be resumed to the same numbers, because the environment {name} does not repeat its "
        "episode from its seed and its actions; training goes on with a new episode",
        file=sys.stderr,
        flush=True,
    )
    model.env.seed(model.num_timesteps)
    model._last_obs = None  # SB3 resets the environments
