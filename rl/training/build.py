"""From a hyperparameter entry to environments and an algorithm, and the part of a checkpoint that is the policy."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv

from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import load_state
from dem_apps.runtime.files import required
from rl.envs.make import make_training_envs, normalised
from rl.envs.zoo import hyperparameter, normalisation
from rl.fast.ppo import FastPPO
from rl.training.entries import ENVIRONMENT_KEYS

Algorithm = TypeVar("Algorithm", bound=OnPolicyAlgorithm)


def observation_options(entry: dict[str, Any]) -> dict[str, Any]:
    """What a hyperparameter entry says of the observations, as arguments of :func:`rl.envs.make.make_env`."""
    return {"wrapper": entry.get("env_wrapper")}


def build_envs(env_id: str, entry: dict[str, Any]) -> VecEnv:
    """The training environments, as many and normalised as the hyperparameter entry says."""
    gamma = entry.get("gamma", 0.99)
    normalise = normalisation(entry.get("normalize", False))
    envs = make_training_envs(
        env_id, count=int(entry.get("n_envs", 1)), normalise=False, gamma=gamma, **observation_options(entry)
    )
    return envs if normalise is None else normalised(envs, gamma, *normalise)


def build_model(
    algorithm: type[Algorithm], envs: VecEnv, entry: dict[str, Any], ent_coef: float | str, seed: int, device: str
) -> Algorithm:
    """An algorithm of SB3, with the hook or without, on its environments, everything seeded.

    Args:
        algorithm: takes the entry's arguments.
        envs: of :func:`build_envs` with the same entry.
        entry: checked hyperparameters of the environment.
        ent_coef: weight of the entropy term, or ``lin_`` and a number.
        seed: of weights, sampling and environments.
        device: of the policy and its updates.

    Raises:
        InputError: a hyperparameter that SB3 refuses.
    """
    values = {key: hyperparameter(key, value) for key, value in {**entry, "ent_coef": ent_coef}.items()}
    arguments = {key: value for key, value in values.items() if key not in ENVIRONMENT_KEYS}
    try:
        return algorithm(values["policy"], envs, seed=seed, device=device, **arguments)
    except InputError:
        raise
    # whatever SB3, gymnasium and torch make of a value that they cannot use
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"hyperparameters: {' '.join(str(error).split())}") from error


def update_in_words(model: OnPolicyAlgorithm, update: str) -> str:
    """Which code trains the model, and why, as one line of the log; ``update`` is the setting, ``auto`` or ``sb3``."""
    if not isinstance(model, FastPPO):
        return "SB3's own (--update sb3)" if update == "sb3" else "SB3's own (the fast one knows only PPO)"
    if model.not_fast is not None:
        return f"SB3's own (the fast one cannot serve: {model.not_fast})"
    return "fast, with SB3's numbers up to rounding"


def policy_state(model: OnPolicyAlgorithm) -> dict[str, Any]:
    """What evaluation needs: the policy (its objective's state included) and the normalisation it was trained with."""
    envs = model.get_vec_normalize_env()
    statistics = None
    if envs is not None:
        statistics = {"observations": _statistics(envs.obs_rms), "returns": _statistics(envs.ret_rms)}
    return {"step": model.num_timesteps, "policy": model.policy.state_dict(), "normalisation": statistics}


def restore_policy(model: OnPolicyAlgorithm, state: dict[str, Any]) -> None:
    """Put back what :func:`policy_state` returned.

    Args:
        model: gets the weights, and its environments the running statistics.
        state: of the checkpoint.

    Raises:
        InputError: the state is that of another network or of other observations.
    """
    where = "the checkpoint does not fit this run, policy"
    required(state, where, policy=dict)
    load_state(model.policy, state["policy"], where)
    envs = model.get_vec_normalize_env()
    if envs is not None:
        where = "the checkpoint does not fit this run, normalisation"
        required(state, where, normalisation=dict)
        shape = envs.observation_space.shape or ()
        # one array of observations, so one running mean (SB3's type allows for one per key)
        envs.obs_rms = _running(state["normalisation"]["observations"], shape, where)  # type: ignore[assignment]
        envs.ret_rms = _running(state["normalisation"]["returns"], (), where)


def _statistics(running: Any) -> dict[str, Any]:
    # numbers without dimensions as floats: JSON keeps every bit of them
    return {
        name: float(value) if np.ndim(value) == 0 else value
        for name, value in (("mean", running.mean), ("var", running.var), ("count", running.count))
    }


def _running(statistics: dict[str, Any], shape: tuple[int, ...], where: str) -> RunningMeanStd:
    """Running moments out of a checkpoint, of the given shape."""
    moments = RunningMeanStd()
    moments.mean, moments.var = (np.asarray(statistics[name]) for name in ("mean", "var"))
    moments.count = statistics["count"]
    for name, values in (("mean", moments.mean), ("var", moments.var)):
        if values.shape != shape:
            raise InputError(f"{where}: {name} has shape {values.shape} instead of {shape}")
    return moments
