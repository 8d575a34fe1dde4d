"""Settings of ``python -m rl.train``, and the hyperparameter files in the Zoo's format that fill them in."""

from __future__ import annotations

import dataclasses
import inspect
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stable_baselines3 import A2C, PPO

from dem_apps import OBJECTIVE_NAMES
from dem_apps.errors import InputError, nearest
from dem_apps.objectives.flags import ObjectiveSettings, check_options
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.safe_io import read_yaml
from dem_apps.runtime.settings import option
from dem_apps.runtime.validate import shown
from rl.envs.envpool import check_envpool
from rl.envs.make import check_env_id
from rl.envs.zoo import hyperparameter

LOSSES = (*OBJECTIVE_NAMES, "none")
ENGINES = ("minigrid", "envpool")
ALGORITHMS: dict[str, type[PPO] | type[A2C]] = {"ppo": PPO, "a2c": A2C}
#: Keys of an entry that describe the environment; all others are arguments of the algorithm.
ENVIRONMENT_KEYS = ("env_wrapper", "normalize", "n_envs", "n_timesteps", "policy")
#: Arguments of the algorithm that have a flag of their own, or none.
_NOT_IN_ENTRIES = ("self", "env", "seed", "device", "verbose", "tensorboard_log", "_init_setup_model")
_WHOLE_NUMBERS = ("n_envs", "n_timesteps", "n_steps", "batch_size", "n_epochs")
_MOST_THREADS, _MOST_ENVS = 1024, 4096
_CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "rl"


@dataclass(frozen=True)
class TrainConfig(ObjectiveSettings):
    """Train PPO or A2C on an environment with AdaDEM, or another objective, as its entropy term."""

    # the options of the objectives follow the loss
    loss: str = option(
        "adadem",
        f"entropy term to maximise: {', '.join(LOSSES)}; 'entropy' is SB3's own (bit for bit with --update sb3)",
        LOSSES, value="NAME", group="environment and objective",
    )  # fmt: skip
    ent_coef: float | str = option(
        0.001, "weight of the entropy term, or lin_0.001 to let it fall to 0 (a hyperparameter file's own is not used)"
    )
    env: str = option("MiniGrid-DoorKey-5x5-v0", "environment name, as gymnasium knows it")
    algo: str = option("ppo", "algorithm", choices=tuple(ALGORITHMS), group="training")
    engine: str = option("minigrid", "training environments: Python or envpool's (pip extra 'fast')", choices=ENGINES)
    update: str = option("auto", "auto: fast where it can serve; sb3: SB3's own code", choices=("auto", "sb3"))
    timesteps: int | None = option(None, "environment steps; default: n_timesteps of the hyperparameter entry")
    seed: int = option(0, "seed of weights, sampling and environments")
    device: str = option("cpu", "torch device; for these small networks a CPU is faster")
    deterministic: bool = option(False, "only operations that repeat bit for bit on the same machine; may be slower")
    threads: int = option(1, "torch threads; one is faster than several on these small networks")
    hyperparameters_file: str | None = option(
        None, "YAML in the Zoo's format; default: configs/rl/ALGO.yaml", value="FILE", group="hyperparameters"
    )
    hyperparameters: dict[str, Any] = option(
        {}, "win over the file's entry, such as --hyperparameters.n_steps 256", value="{KEY: VALUE}"
    )
    start_from_zip: str | None = option(
        None, "zip of SB3's model.save whose weights training starts from; needs --trust-pickled-code", value="FILE",
        group="start",
    )  # fmt: skip
    trust_pickled_code: bool = option(
        False, "open --start-from-zip although opening it runs whatever code is pickled in it", flag_only=True
    )
    eval_freq: int | None = option(
        None, "steps between evaluations; default: a twentieth of --timesteps", group="scores and videos"
    )
    eval_episodes: int = option(10, "episodes per evaluation")
    video: bool = option(False, "write RUN_DIR/videos/last.gif at the end: episodes of the last policy, best and worst")
    run_dir: str | None = option(
        None, "folder for all results; default: runs/rl-ENV-LOSS-SEED-DATE", value="DIR", group="run folder"
    )
    resume: bool = option(False, "continue the run in --run-dir to exactly the numbers of an unbroken one")


def resolve(config: TrainConfig) -> TrainConfig:
    """Fill in what depends on the environment, and check what parsing could not.

    Raises:
        InputError: naming the flag or the key, and what would be right.
    """
    _check_flags(config)
    file = Path(config.hyperparameters_file) if config.hyperparameters_file else _CONFIGS / f"{config.algo}.yaml"
    entry = {**_read_entry(file, config.env), **config.hyperparameters}
    _check_entry(entry, config.algo, f"{file}, {config.env}")
    timesteps = config.timesteps if config.timesteps is not None else int(entry["n_timesteps"])
    return dataclasses.replace(
        config,
        timesteps=timesteps,
        hyperparameters=entry,
        eval_freq=config.eval_freq if config.eval_freq is not None else max(timesteps // 20, 1),
    )


def resolved_again(config: TrainConfig) -> TrainConfig:
    """The settings out of a run folder, which may be anybody's: :func:`resolve` has filled them in, and checks them.

    Raises:
        InputError: as of :func:`resolve`, or a setting that is not filled in.
    """
    # a run that has begun opens no zip, and may be looked at without its engine and its device
    harmless = {"start_from_zip": None, "trust_pickled_code": False, "engine": "minigrid", "device": "cpu"}
    _check_flags(dataclasses.replace(config, **harmless))  # type: ignore[arg-type]
    for name in ("timesteps", "eval_freq"):
        if getattr(config, name) is None:
            raise InputError(f"{name}: is missing")
    _check_entry(config.hyperparameters, config.algo, "hyperparameters")
    return config


def _check_flags(config: TrainConfig) -> None:
    for name in ("timesteps", "eval_freq", "eval_episodes", "threads"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')}: expected a number above 0, got {value}")
    if config.threads > _MOST_THREADS:
        raise InputError(f"--threads: expected {_MOST_THREADS} at most, got {config.threads}")
    if config.seed < 0:
        raise InputError(f"--seed: expected 0 or more, got {config.seed}")
    if isinstance(config.ent_coef, str) and not config.ent_coef.startswith("lin_"):
        raise InputError(f"--ent-coef: expected a number, or lin_ and a number, not '{config.ent_coef}'")
    hyperparameter("ent_coef", config.ent_coef)
    if "ent_coef" in config.hyperparameters:
        raise InputError("--hyperparameters.ent_coef: the weight of the entropy term is set with --ent-coef")
    check_options(config)
    _check_start(config)
    torch_device(config.device)
    check_env_id(config.env)
    if config.engine == "envpool":
        check_envpool(config.env)


def _check_start(config: TrainConfig) -> None:
    if config.start_from_zip is not None and not config.trust_pickled_code:
        raise InputError(
            f"--start-from-zip: {config.start_from_zip} is refused, since SB3's zip files hold pickled Python objects "
            "and opening one runs whatever code is in it; if you made it, or trust who did, add --trust-pickled-code"
        )
    if config.trust_pickled_code and config.start_from_zip is None:
        raise InputError("--trust-pickled-code: belongs to --start-from-zip FILE, which is not given")


def _read_entry(file: Path, env_id: str) -> dict[str, Any]:
    entries = read_yaml(file)
    if not isinstance(entries, dict):
        raise InputError(f"{file}: expected one entry per environment, found {type(entries).__name__}")
    if env_id not in entries:
        raise InputError(
            f"{file}: has no entry for '{env_id}', only for {', '.join(map(str, entries))}; "
            "write one and name its file with --hyperparameters-file"
        )
    if not isinstance(entries[env_id], dict):
        raise InputError(f"{file}, {env_id}: expected a mapping of keys, found {type(entries[env_id]).__name__}")
    return {key: value for key, value in entries[env_id].items() if key != "ent_coef"}


def _is_count(value: Any) -> bool:
    """1, 2, 3, … up to what a buffer's length may be, perhaps written as 1e5."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 1 <= value < 1 << 40 and value % 1 == 0


def _is_like(value: Any, default: Any) -> bool:
    """Whether a value is of the kind that an argument of SB3 with this default takes, as far as the default tells."""
    if isinstance(default, bool):
        return isinstance(value, bool)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    schedule = isinstance(value, str) and value.startswith("lin_")
    if isinstance(default, (int, float)):
        return number or schedule
    # None: no limit, no bound, or the arguments of a part
    return number or schedule or value is None or isinstance(value, (dict, str))


def _check_entry(entry: dict[str, Any], algo: str, where: str) -> None:
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
        if key not in ENVIRONMENT_KEYS and not _is_like(value, arguments[key]):
            raise InputError(f"{where}: {key} cannot be {shown(value)}; SB3's default is {arguments[key]}")
    if entry.get("n_envs", 1) > _MOST_ENVS:
        raise InputError(f"{where}: n_envs must be {_MOST_ENVS:,} at most, not {entry['n_envs']}")
    for key in ("n_timesteps", "policy"):
        if key not in entry:
            raise InputError(f"{where}: the key '{key}' is missing")
