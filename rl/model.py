"""From settings to environments and an algorithm, and the part of a checkpoint that brings a policy back."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv

from dem_apps.errors import InputError
from rl.bonus import with_entropy_objective
from rl.config import ALGORITHMS, ENVIRONMENT_KEYS, TrainConfig, given_options
from rl.envs import make_training_envs


def build_envs(config: TrainConfig) -> VecEnv:
    """The training environments of a resolved configuration."""
    entry = config.hyperparameters
    return make_training_envs(
        config.env,
        wrapper=entry.get("env_wrapper"),
        count=int(entry.get("n_envs", 1)),
        normalise=bool(entry.get("normalize", False)),
        gamma=entry.get("gamma", 0.99),
    )


def build_model(config: TrainConfig, envs: VecEnv) -> OnPolicyAlgorithm:
    """The algorithm of a resolved configuration, everything seeded with ``config.seed``.

    Raises:
        InputError: a hyperparameter or option that SB3 or the objective refuses.
    """
    entry = {key: _value(key, value) for key, value in config.hyperparameters.items()}
    arguments = {key: value for key, value in entry.items() if key not in ENVIRONMENT_KEYS}
    try:
        algorithm = with_entropy_objective(ALGORITHMS[config.algo], config.loss, **given_options(config))
        return algorithm(
            entry["policy"], envs, ent_coef=config.ent_coef, seed=config.seed, device=config.device, **arguments
        )
    except InputError:
        raise
    except (AssertionError, TypeError, ValueError) as error:
        raise InputError(f"--env {config.env}, hyperparameters: {' '.join(str(error).split())}") from error


def policy_state(model: OnPolicyAlgorithm) -> dict[str, Any]:
    """What evaluation needs: the policy (its objective's state included) and the normalisation it was trained with."""
    envs = model.get_vec_normalize_env()
    statistics = None
    if envs is not None:
        statistics = {"observations": _statistics(envs.obs_rms), "returns": _statistics(envs.ret_rms)}
    return {"step": model.num_timesteps, "policy": model.policy.state_dict(), "normalisation": statistics}


def restore_policy(model: OnPolicyAlgorithm, state: dict[str, Any]) -> None:
    """Put back what :func:`policy_state` returned.

    Raises:
        InputError: the state is that of another network.
    """
    try:
        model.policy.load_state_dict(state["policy"])
    except (KeyError, RuntimeError) as error:
        problem = " ".join(str(error).split())
        raise InputError(f"the checkpoint does not fit the policy of this run: {problem}") from error
    envs = model.get_vec_normalize_env()
    if envs is not None:
        # one array of observations, so one running mean (SB3's type allows for one per key)
        envs.obs_rms = _running(state["normalisation"]["observations"])  # type: ignore[assignment]
        envs.ret_rms = _running(state["normalisation"]["returns"])


def _statistics(running: Any) -> dict[str, Any]:
    # numbers without dimensions as floats: JSON keeps every bit of them
    return {
        name: float(value) if np.ndim(value) == 0 else value
        for name, value in (("mean", running.mean), ("var", running.var), ("count", running.count))
    }


def _running(statistics: dict[str, Any]) -> RunningMeanStd:
    running = RunningMeanStd()
    running.mean = np.asarray(statistics["mean"])
    running.var = np.asarray(statistics["var"])
    running.count = statistics["count"]
    return running


def _value(key: str, value: Any) -> Any:
    """An entry's value as SB3 takes it: ``lin_2.5e-4`` falls linearly to 0, and ``!!float 128`` is a whole number."""
    if isinstance(value, str) and value.startswith("lin_"):
        try:
            return LinearSchedule(float(value[4:]), 0.0, 1.0)
        except ValueError as error:
            raise InputError(f"hyperparameters, {key}: expected lin_ and a number, not '{value}'") from error
    if isinstance(value, float) and key in ("n_steps", "batch_size", "n_epochs"):
        return int(value)
    return value
