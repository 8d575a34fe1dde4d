"""Hyperparameter entries in the format of the RL Baselines3 Zoo: which one an environment has, and what it may hold."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

from gymnasium import spaces
from stable_baselines3 import A2C, PPO

from dem_apps.errors import InputError, nearest, shown
from dem_apps.runtime.files import read_yaml
from dem_apps.runtime.setting_checks import out_of_range
from dem_apps.runtime.shipped_configs import CONFIGS
from rl.envs.families import family_of, own_id
from rl.envs.make import is_picture, make_env

ALGORITHMS: dict[str, type[PPO] | type[A2C]] = {"ppo": PPO, "a2c": A2C}
#: Keys of an entry that describe the environment; all others are arguments of the algorithm.
ENVIRONMENT_KEYS = ("env_wrapper", "normalize", "n_envs", "n_timesteps", "policy")
#: Arguments of the algorithm that have a flag of their own, or none.
_NOT_IN_ENTRIES = ("self", "env", "seed", "device", "verbose", "tensorboard_log", "_init_setup_model")
_WHOLE_NUMBERS = ("n_envs", "n_timesteps", "n_steps", "batch_size", "n_epochs")
_MOST_ENVS = 4096
DEFAULTS = "SB3's defaults"
#: Steps of an environment that nobody has an entry for.
DEFAULT_TIMESTEPS = 1e5
#: Weight of the entropy term where an entry of ours has none: the paper's.
DEFAULT_WEIGHT = 0.001
_SHARE = {"at_least": 0.0, "at_most": 1.0}
#: What a number may be, of every other argument that takes one.
_RANGES: dict[str, dict[str, float]] = {
    "learning_rate": {"at_least": 0}, "gamma": _SHARE, "gae_lambda": _SHARE, "clip_range": {"above": 0},
    "clip_range_vf": {"above": 0}, "ent_coef": {}, "vf_coef": {"at_least": 0},
    "max_grad_norm": {"above": 0}, "target_kl": {"above": 0}, "sde_sample_freq": {"at_least": -1},
    "stats_window_size": {"at_least": 1}, "rms_prop_eps": {"above": 0},
}  # fmt: skip
#: Arguments that may fall with the progress of training.
_SCHEDULES = ("learning_rate", "clip_range", "clip_range_vf", "ent_coef")


def find_entry(env_id: str, algo: str, file: Path | None) -> tuple[dict[str, Any], str]:
    """The environment's entry, and where it was found; with ``ent_coef`` in files of ours only.

    The Zoo's is mostly 0, which would switch off every entropy term.

    Args:
        env_id: the environment.
        algo: a key of :data:`ALGORITHMS`.
        file: to look in. None: ``configs/rl/ALGO.yaml``, then what the environment's family brings, then
            :func:`sb3_defaults`.

    Raises:
        InputError: an unreadable file, or no entry in a file that was named.
    """
    path = file or CONFIGS / "rl" / f"{algo}.yaml"
    entries = read_yaml(path)
    if not isinstance(entries, dict):
        raise InputError(f"{path}: expected one entry per environment, found {type(entries).__name__}")
    name = own_id(env_id)
    brought = {} if file else family_of(env_id).hyperparameters
    if name in entries:
        entry, where = entries[name], f"{path}, {name}"
    elif algo in brought:
        entry, where = brought[algo], f"the hyperparameters of {name}'s family"
    elif file is None:
        return sb3_defaults(env_id), f"{DEFAULTS}, since neither {path.name} nor a family of environments has {name}"
    else:
        raise InputError(f"{path}: has no entry for '{name}', only for {', '.join(map(str, entries))}; write one")
    if not isinstance(entry, dict):
        raise InputError(f"{where}: expected a mapping of keys, found {type(entry).__name__}")
    ours = file is None and name in entries
    return {key: value for key, value in entry.items() if key != "ent_coef" or ours}, where


def sb3_defaults(env_id: str) -> dict[str, Any]:
    """An entry for any environment: the policy that fits its observations, all else as SB3 has it."""
    space = make_env(env_id, None).observation_space
    policy = "MultiInputPolicy" if isinstance(space, spaces.Dict) else "CnnPolicy" if is_picture(space) else "MlpPolicy"
    return {"policy": policy, "n_timesteps": DEFAULT_TIMESTEPS}


def check_entry(entry: dict[str, Any], algo: str, where: str) -> None:
    """Check keys and, as far as SB3's defaults tell, values.

    Args:
        entry: what :func:`find_entry` returned, perhaps with keys of the command line.
        algo: a key of :data:`ALGORITHMS`.
        where: how the entry is called in errors.

    Raises:
        InputError: naming the key and what was expected.
    """
    arguments = {
        name: parameter.default
        for name, parameter in inspect.signature(ALGORITHMS[algo]).parameters.items()
        if name not in _NOT_IN_ENTRIES
    }
    known = {*ENVIRONMENT_KEYS, *arguments}
    for key, value in entry.items():
        if key not in known:
            raise InputError(f"{where}: unknown key '{key}'{nearest(key, known)}")
        if key in _WHOLE_NUMBERS and not _is_count(value):
            raise InputError(f"{where}: {key} must be a whole number above 0, not {shown(value)}")
        if key not in ENVIRONMENT_KEYS and not _is_like(key, value, arguments[key]):
            raise InputError(f"{where}: {key} cannot be {shown(value)}; SB3's default is {arguments[key]}")
        problem = out_of_range([_start(value)], **_RANGES.get(key, {}))
        if problem is not None:
            raise InputError(f"{where}: {key}: {problem}")
    if entry.get("n_envs", 1) > _MOST_ENVS:
        raise InputError(f"{where}: n_envs must be {_MOST_ENVS:,} at most, not {entry['n_envs']}")
    for key in ("n_timesteps", "policy"):
        if key not in entry:
            raise InputError(f"{where}: the key '{key}' is missing")


def _is_count(value: Any) -> bool:
    """1, 2, 3, … up to what a buffer's length may be, perhaps written as 1e5."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 1 <= value < 1 << 40 and value % 1 == 0


def _start(value: Any) -> Any:
    """The number that a schedule falls from; anything else as it is."""
    try:
        return float(value[4:]) if isinstance(value, str) and value.startswith("lin_") else value
    except ValueError:
        return value  # said where the schedule is made


def _is_like(key: str, value: Any, default: Any) -> bool:
    """Whether a value is of the kind that an argument of SB3 with this default takes, as far as the default tells."""
    if isinstance(default, bool):
        return isinstance(value, bool)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if isinstance(default, int) and number:
        return isinstance(value, int) or (key in _WHOLE_NUMBERS and value % 1 == 0)
    schedule = key in _SCHEDULES and isinstance(value, str) and value.startswith("lin_")
    if isinstance(default, (int, float)):
        return number or schedule
    # None: no limit, no bound, or the arguments of a part
    return number or schedule or value is None or isinstance(value, (dict, str))
