"""Settings of ``python -m rl.train``: fields, defaults that depend on the environment, and checks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dem_apps.errors import InputError, passed_on
from dem_apps.objectives import OBJECTIVE_NAMES
from dem_apps.objectives.flags import ObjectiveSettings, check_options
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.setting_checks import check_paths
from dem_apps.runtime.settings import LARGEST_SEED, from_dict, option

LOSSES = (*OBJECTIVE_NAMES, "adaptive-entropy", "none")
#: Most steps of all evaluations, as a share of the training's, if every episode has full length.
EVALUATION_SHARE = 0.5
#: The same share for the scores at the end, and the number of these scores.
#: There are two policies, each under two kinds of actions.
FINAL_SHARE, FINAL_SCORES = 0.25, 4
#: An episode without a limit counts as this many steps when the number of evaluations is chosen.
#: :func:`evaluation_length` says how long such episodes may be.
LENGTH_WITHOUT_LIMIT = 500
#: Every fifth evaluation has greedy actions too: until late, many greedy policies play every episode to its limit.
GREEDY_EVERY = 5


def modules_option() -> Any:
    """``--import MODULE``: a field of every command that makes environments."""
    return option(
        None,
        "module that registers your environments, or several with commas between; its code is run",
        value="MODULE",
        flag_only="import",
    )


@dataclass(frozen=True)
class PolicyConfig:
    """The policy of a run."""

    run: str = option(
        "", "run folder that rl.train wrote", value="RUN", group="policy", needed=True
    )
    checkpoint: str = option("last", "which policy", choices=("last", "best"))
    import_modules: str | None = modules_option()


@dataclass(frozen=True)
class TrainConfig(ObjectiveSettings):
    """Train PPO or A2C on an environment with AdaDEM, or another objective, as its entropy term."""

    INSTEAD_OF_RESUMING: ClassVar[str] = "; --start-from {} trains on from its policy, in a new run"

    # the options of the objectives follow the loss
    loss: str = option(
        "adadem",
        f"entropy term to maximise: {', '.join(LOSSES)}; 'entropy' is SB3's own (bit for bit with --update sb3)",
        LOSSES,
        value="NAME",
        group="environment and objective",
    )
    ent_coef: float | str | None = option(
        None,
        "weight of the entropy term, or lin_0.001 for a linear fall to 0 (default: configs/rl/ALGO.yaml's, "
        "else the paper's 0.001)",
    )
    env: str = option(
        "MiniGrid-DoorKey-5x5-v0",
        "id of an environment in gymnasium, or MODULE:ID to import it from",
        code="import",
    )
    import_modules: str | None = modules_option()
    algo: str = option("ppo", "algorithm", choices=("ppo", "a2c"), group="training")
    update: str = option(
        "auto",
        "code of the update: auto = fast where possible, sb3 = SB3's own",
        choices=("auto", "sb3"),
    )
    timesteps: int | None = option(
        None, "environment steps; default: n_timesteps of the entry", at_least=1
    )
    start_from: str | None = option(
        None,
        "run folder, or zip of rl.export or Stable-Baselines3, whose policy the training begins with",
        value="RUN|ZIP",
        exists=True,
    )
    seed: int = option(
        0, "seed of weights, sampling and environments", at_least=0, at_most=LARGEST_SEED
    )
    device: str = option(
        "cpu", "torch device; for these small networks a CPU is faster", of_machine=True
    )
    deterministic: bool = option(
        False,
        "use only operations whose results repeat bit for bit on the same machine; may be slower",
    )
    threads: int = option(
        1, "torch threads; for these small networks one is the fastest", at_least=1, at_most=1024
    )
    hyperparameters_file: str | None = option(
        None,
        "YAML file of hyperparameters in the RL Baselines3 Zoo's format; "
        "default: configs/rl/ALGO.yaml",
        value="FILE",
        group="hyperparameters",
    )
    hyperparameters: dict[str, Any] = option(
        {},
        "win over the file's entry, such as --hyperparameters.n_steps 256",
        value="{KEY: VALUE}",
        keys=(
            "n_envs",
            "n_steps",
            "batch_size",
            "n_epochs",
            "learning_rate",
            "gamma",
            "gae_lambda",
            "clip_range",
        ),
    )
    eval_freq: int | None = option(
        None,
        "steps between evaluations; default: a twentieth of --timesteps, more where these would take half of it",
        at_least=1,
        group="scores and videos",
    )
    eval_episodes: int = option(10, "episodes per evaluation", at_least=1, at_most=10**6)
    final_episodes: int | None = option(
        None,
        "episodes of the scores at the end; default: 100, fewer where they take over a quarter of --timesteps",
        at_least=1,
        at_most=10**6,
    )
    goal_return: float | None = option(
        None, "mean return at which the task counts as reached; default: the environment's own"
    )
    video: bool = option(
        False,
        "at the end write RUN_DIR/videos/last.gif: episodes of the last policy, from best to worst",
    )
    run_dir: str | None = option(
        None,
        "folder for all results; default: runs/rl-ENV-LOSS-SEED-DATE",
        value="DIR",
        group="run folder",
    )
    resume: bool = option(
        False, "continue the run in --run-dir to exactly the numbers of an unbroken one"
    )


def resolve(config: TrainConfig) -> TrainConfig:
    """Fill in what depends on the environment; an InputError for a wrong setting. Imports modules of ``--import``."""
    from rl.envs.entries import DEFAULT_WEIGHT, check_entry, find_entry
    from rl.envs.families import goal_return
    from rl.envs.make import episode_limit, try_out

    import_environments(config)
    _check_flags(config)
    check_paths(config)
    entry, where = find_entry(
        config.env, config.algo, config.hyperparameters_file, config.hyperparameters
    )
    weight = entry.pop("ent_coef", DEFAULT_WEIGHT)
    check_entry(entry, config.algo, where)
    try_out(config.env, entry.get("env_wrapper"), config.video)
    timesteps = config.timesteps or int(entry["n_timesteps"])
    limit = episode_limit(config.env, entry.get("env_wrapper"))
    goal = config.goal_return if config.goal_return is not None else goal_return(config.env)
    return dataclasses.replace(
        config,
        timesteps=timesteps,
        hyperparameters=entry,
        ent_coef=config.ent_coef if config.ent_coef is not None else weight,
        eval_freq=config.eval_freq or _eval_freq(timesteps, config.eval_episodes, limit),
        final_episodes=config.final_episodes
        or _final_episodes(timesteps, config.eval_episodes, limit),
        goal_return=goal,
    )


def _eval_freq(timesteps: int, episodes: int, limit: int | None) -> int:
    """Twenty evaluations, or fewer where episodes as long as their limit would take half the training's steps."""
    scores = EVALUATION_SHARE * timesteps / (episodes * (limit or LENGTH_WITHOUT_LIMIT))
    # the last one has greedy actions too
    affordable = int((scores - 1) * GREEDY_EVERY / (GREEDY_EVERY + 1))
    return max(timesteps // max(min(affordable, 20), 1), 1)


def _final_episodes(timesteps: int, episodes: int, limit: int | None) -> int:
    """A hundred, or fewer where the longest episodes would take a quarter of the steps; an evaluation's at least."""
    affordable = 0 if limit is None else int(FINAL_SHARE * timesteps / (FINAL_SCORES * limit))
    return max(min(affordable, 100), episodes)


def evaluation_length(config: TrainConfig) -> int:
    """Return the mean number of steps that an episode of an evaluation may take.

    It is the environment's limit. Without one it follows from :data:`EVALUATION_SHARE`.
    """
    from rl.envs.make import episode_limit

    timesteps, final = config.timesteps or 1, config.final_episodes or config.eval_episodes
    times = timesteps // (config.eval_freq or timesteps) + 1
    episodes = (times + times // GREEDY_EVERY + 1) * config.eval_episodes + FINAL_SCORES * final
    limit = episode_limit(config.env, config.hyperparameters.get("env_wrapper"))
    return limit or max(int(EVALUATION_SHARE * timesteps / episodes), 1)


def settings_of_run(run_dir: Path, modules: str | None = None) -> TrainConfig:
    """The settings of a run of ``rl.train``, checked again, else an InputError; it imports none but the ``modules``."""
    where = str(run_dir / "config.yaml")
    config = from_dict(TrainConfig, read_config(run_dir), where, {"import_modules": modules})
    import_environments(dataclasses.replace(config, import_modules=modules))
    check_read(config, where)
    return config


def check_read(config: TrainConfig, where: str) -> None:
    """Check the settings of a run folder, which may be another person's or have been tampered with."""
    from rl.envs.entries import check_entry

    with passed_on(where, InputError):
        # a run may be read on a machine that lacks the run's device
        _check_flags(dataclasses.replace(config, device="cpu"))
        check_entry(config.hyperparameters, config.algo, "hyperparameters")


def import_environments(config: TrainConfig) -> None:
    """Import the modules of ``--import``.

    The module of an environment ``module:Id`` is imported where the id is checked.
    """
    from rl.envs.family import import_modules

    import_modules(filter(None, (config.import_modules or "").split(",")), "--import")


def _check_flags(config: TrainConfig) -> None:
    from dem_apps.runtime.device import torch_device
    from rl.envs.entries import check_number, check_values, hyperparameter
    from rl.envs.make import check_env_id

    with passed_on("--ent-coef", InputError):
        check_number("ent_coef", hyperparameter("ent_coef", config.ent_coef))
    if "ent_coef" in config.hyperparameters:
        raise InputError(
            "--hyperparameters.ent_coef: the weight of the entropy term is set with --ent-coef"
        )
    check_values(config.hyperparameters, config.algo, "--hyperparameters.")
    check_options(config)
    torch_device(config.device)
    check_env_id(config.env)
