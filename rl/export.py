"""``python -m rl.export --run DIR --out model.zip``: a run's policy as a zip that Stable-Baselines3 opens by itself.

The zip is one of SB3's own PPO or A2C, without the objective and without anything of this package. A policy that was
trained on normalised observations means nothing without their statistics, so VecNormalize's own file is written beside
it. Both hold pickles, as SB3 has it: whoever opens them runs code, so share them with those who trust you.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecNormalize

from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import load_checkpoint, load_state
from dem_apps.runtime.command import run_command
from dem_apps.runtime.files import write_new
from dem_apps.runtime.settings import option, parse_config
from rl.config import import_environments, modules_option
from rl.envs.zoo import normalisation
from rl.evaluate import read_run
from rl.training.build import build_envs, build_model, restore_policy
from rl.training.entries import ALGORITHMS
from rl.training.sb3_import import statistics_files


@dataclass(frozen=True)
class ExportConfig:
    """Write the policy of a run as a zip file for Stable-Baselines3."""

    run: str = option("", "run folder that rl.train wrote", needed=True)
    checkpoint: str = option("last", "which policy", choices=("last", "best"))
    out: str = option("", "zip file to write, never overwritten", needed=True)
    import_modules: str | None = modules_option()


def export(run_dir: Path, checkpoint: str, out: Path) -> list[Path]:
    """Write the zip and, where observations or rewards were normalised, ``NAME.vecnormalize.pkl`` beside it.

    Returns:
        the files.

    Raises:
        InputError: no such run or checkpoint, or a file that exists.
    """
    statistics = statistics_files(out)[0]
    for file in (out, statistics):
        if file.exists() or file.is_symlink():
            raise InputError(f"--out: {file} exists and is never overwritten; give another file")
    if not out.parent.is_dir():
        raise InputError(f"--out: the folder {out.parent} does not exist")
    config = read_run(run_dir)
    torch.set_num_threads(config.threads)
    model, envs = _plain(config.env, config.algo, config.hyperparameters, config.weight, config.seed)
    state = load_checkpoint(run_dir / "checkpoints", checkpoint)
    weights = state.get("policy")
    if isinstance(weights, dict):
        state["policy"] = {name: value for name, value in weights.items() if not _of_objective(name)}
    restore_policy(model, state, envs)
    if "optimizer" in state:
        load_state(model.policy.optimizer, state["optimizer"], f"{run_dir}, checkpoint {checkpoint}, 'optimizer'")
    model.num_timesteps = state["step"]
    content = io.BytesIO()
    model.save(content)
    written = {out: content.getvalue()} | ({} if envs is None else {statistics: pickle.dumps(envs)})
    there: list[Path] = []
    try:
        for file, data in written.items():
            write_new(file, data, "--out")
            there.append(file)
    except BaseException:
        for file in there:  # half of it would be in the way of the next try
            file.unlink(missing_ok=True)
        raise
    return list(written)


def _plain(
    env_id: str, algo: str, entry: dict[str, Any], ent_coef: float | str, seed: int
) -> tuple[OnPolicyAlgorithm, VecNormalize | None]:
    """SB3's own model, and SB3's own normalisation if the run has one; neither has learnt anything."""
    envs = build_envs(env_id, {**entry, "normalize": False})
    wanted = normalisation(entry.get("normalize", False))
    # on the CPU, so that it opens anywhere
    model: OnPolicyAlgorithm = build_model(ALGORITHMS[algo], envs, entry, ent_coef, seed, "cpu")
    if wanted is None:
        return model, None
    gamma = entry.get("gamma", 0.99)
    return model, VecNormalize(envs, training=False, norm_obs=wanted[0], norm_reward=wanted[1], gamma=gamma)


def _of_objective(name: object) -> bool:
    return isinstance(name, str) and name.startswith("entropy_objective.")


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    example = "python -m rl.export --run runs/doorkey --out doorkey.zip"
    config = parse_config(ExportConfig, "python -m rl.export", example, argv)
    if Path(config.out).suffix != ".zip":
        raise InputError(f"--out: expected a file ending in .zip, got {config.out}")
    import_environments(config.import_modules)
    for file in export(Path(config.run), config.checkpoint, Path(config.out)):
        print(f"written to {file}")


if __name__ == "__main__":
    run_command(main)
