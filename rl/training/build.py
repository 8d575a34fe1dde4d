"""From a hyperparameter entry to environments and an algorithm."""

from __future__ import annotations

from typing import Any, TypeVar

from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from dem_apps.errors import InputError
from rl.envs.make import make_training_envs
from rl.training.entries import ENVIRONMENT_KEYS, hyperparameter, normalisation

Algorithm = TypeVar("Algorithm", bound=OnPolicyAlgorithm)


def build_envs(env_id: str, entry: dict[str, Any]) -> VecEnv:
    """The training environments, as many and normalised as the hyperparameter entry says."""
    wanted = normalisation(entry.get("normalize", False))
    envs = make_training_envs(
        env_id, entry.get("env_wrapper"), int(entry.get("n_envs", 1)), wanted is not None, entry.get("gamma", 0.99)
    )
    if wanted is not None and isinstance(envs, VecNormalize):
        envs.norm_obs, envs.norm_reward = wanted
    return envs


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
