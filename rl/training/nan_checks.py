"""Training stops at the first value that is not finite, before it can spoil the policy or a checkpoint.

NaN spreads: one reward makes the running variance NaN, that makes every later reward NaN, and one update later no
weight of the policy is a number. So every step is looked at, and every update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from dem_apps.errors import NotFiniteError
from dem_apps.runtime.checkpoint import all_finite

#: What an update logs and must be finite; explained variance, which is NaN where nothing varies, is left out.
_LOSSES = ("loss", "value_loss", "policy_loss", "policy_gradient_loss", "entropy_loss", "entropy_objective")


def check_step(rewards: np.ndarray, observations: np.ndarray | dict[str, np.ndarray], env: str, step: int) -> None:
    """Look at what the environments have just returned.

    Args:
        rewards: (E,), as the algorithm gets them.
        observations: (E, …), likewise; of a dictionary each part.
        env: name of the environments.
        step: environment steps so far, these included.

    Raises:
        NotFiniteError: naming the environment by its number, from 0.
    """
    parts = observations.values() if isinstance(observations, dict) else [observations]
    for what, values in (("reward", rewards), *(("observation", part) for part in parts)):
        if not np.isfinite(values).all():
            wrong = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
            raise NotFiniteError(
                f"{env}, step {step:,}: the {what} of environment {', '.join(map(str, wrong))} is NaN or infinite; "
                "training has stopped before it learnt from it"
            )


def check_rollout(model: OnPolicyAlgorithm, env: str) -> None:
    """Look at a rollout before the update.

    Raises:
        NotFiniteError: advantages that are not finite, so that no loss would be.
    """
    advantages = model.rollout_buffer.advantages
    if not np.isfinite(advantages).all():
        wrong = np.flatnonzero(~np.isfinite(advantages).all(axis=0))
        raise NotFiniteError(
            f"{env}, step {model.num_timesteps:,}: the advantages of environment {', '.join(map(str, wrong))} are NaN "
            "or infinite, so its rewards or the policy's values are; training has stopped before this update"
        )


def check_update(model: OnPolicyAlgorithm, logged: Mapping[str, Any], env: str) -> None:
    """Look at the policy after an update.

    Args:
        model: has been updated.
        logged: what SB3's logger holds.
        env: name of the environments.

    Raises:
        NotFiniteError: a loss or a weight that is not finite.
    """
    for name in _LOSSES:
        value = logged.get(f"train/{name}")
        if value is not None and not math.isfinite(value):
            raise NotFiniteError(f"{env}, step {model.num_timesteps:,}: train/{name} of the update is {float(value)}")
    if not all_finite(model.policy.state_dict().values()):
        raise NotFiniteError(
            f"{env}, step {model.num_timesteps:,}: the update has left weights that are NaN or infinite"
        )
