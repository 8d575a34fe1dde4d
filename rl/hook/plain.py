"""Zip files of hooked models that SB3 opens without this package: without the objective the policy is SB3's own."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.save_util import load_from_zip_file, save_to_zip_file
from stable_baselines3.common.vec_env import VecNormalize

from dem_apps.errors import InputError
from dem_apps.runtime.files import whole_file, write_atomically
from rl.hook.algorithm import STATE, EntropyObjectivePolicy, weight_now

#: Arguments that VecNormalize is made with.
_SETTINGS = (
    "norm_obs",
    "norm_reward",
    "clip_obs",
    "clip_reward",
    "gamma",
    "epsilon",
    "norm_obs_keys",
)


def save_plain(model: OnPolicyAlgorithm, file: str | Path, flag: str | None = None) -> list[Path]:
    """Save a model so that the algorithm's own ``load`` opens it where this package is not installed.

    Policy, optimiser and the present ``ent_coef`` are kept, the objective and its state are not. Where the model's
    environments are normalised, ``NAME.vecnormalize.pkl`` beside the zip is for ``VecNormalize.load``. ``file`` ends in
    .zip, else an InputError; an existing one is replaced, as by ``model.save``, but refused with a ``flag``. Returns
    the files that were written.

    >>> from stable_baselines3 import PPO
    >>> from rl import with_entropy_objective
    >>> model = with_entropy_objective(PPO, "adadem")("MlpPolicy", "CartPole-v1", ent_coef=0.1, device="cpu")
    >>> _ = save_plain(model, "/tmp/plain.zip")
    >>> PPO.load("/tmp/plain.zip").policy_class.__module__
    'stable_baselines3.common.policies'
    """
    path = Path(file)
    if path.suffix != ".zip":
        raise InputError(f"save_plain: expected a file ending in .zip, got {path}")
    content = io.BytesIO()
    model.save(content)
    content.seek(0)
    data, params, variables = load_from_zip_file(content, device="cpu")
    assert data is not None
    if issubclass(model.policy_class, EntropyObjectivePolicy):
        data["policy_class"] = model.policy_class.made_of[1]
    data["ent_coef"] = weight_now(model)  # for SB3 it is a number
    policy: Any = params["policy"]
    params["policy"] = {name: policy[name] for name in policy if not name.startswith(STATE)}  # type: ignore[assignment]
    envs, statistics = model.get_vec_normalize_env(), path.with_suffix(".vecnormalize.pkl")
    with whole_file(path, flag) as part:
        save_to_zip_file(part, data=data, params=params, pytorch_variables=variables)
        if envs is not None:  # before the zip has its name
            write_atomically(statistics, pickle.dumps(_plain_statistics(envs)), flag)
    return [path] if envs is None else [path, statistics]


def _plain_statistics(envs: VecNormalize) -> VecNormalize:
    """SB3's own VecNormalize with the statistics of a subclass; it does not learn until ``training`` is set."""
    settings = {name: getattr(envs, name) for name in _SETTINGS}
    plain = VecNormalize(envs.venv, training=False, **settings)
    plain.ret_rms = envs.ret_rms
    if envs.norm_obs:
        plain.obs_rms = envs.obs_rms
    return plain
