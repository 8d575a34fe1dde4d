"""``python -m rl.export --run DIR --out model.zip``: a run's policy as a zip that Stable-Baselines3 opens by itself.

Where something was normalised, VecNormalize's own file lies beside it. Both hold pickles: opening them runs their code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dem_apps.runtime.command import run_command
from dem_apps.runtime.files import refuse_used_file
from dem_apps.runtime.settings import option, parse_config
from rl.config import PolicyConfig, settings_of_run

_EXAMPLES = """\
python -m rl.export --run runs/doorkey --out doorkey.zip
python -m rl.export --run runs/doorkey --out best.zip --checkpoint best
python -m rl.export --run runs/mine --out mine.zip --import my_package.envs"""


@dataclass(frozen=True)
class ExportConfig(PolicyConfig):
    """Write the policy of a run as a zip file for Stable-Baselines3."""

    out: str = option("", "zip file to write, never overwritten", needed=True)


def main(argv: Sequence[str] | None = None) -> None:
    """The command: the zip and, where something was normalised, ``NAME.vecnormalize.pkl`` beside it."""
    config = parse_config(ExportConfig, "python -m rl.export", _EXAMPLES, argv)
    run_dir, out = Path(config.run), Path(config.out)
    refuse_used_file(out, "--out", ".zip")
    training = settings_of_run(run_dir, config.import_modules)

    from dem_apps.runtime.checkpoint import load_checkpoint, load_state
    from rl.hook import save_plain
    from rl.training.run import model_of_run
    from rl.training.state import restore_policy

    model = model_of_run(training)  # on the CPU: the zip opens without a GPU
    state = load_checkpoint(run_dir / "checkpoints", config.checkpoint)
    restore_policy(model, state)
    if "optimizer" in state:
        load_state(
            model.policy.optimizer,
            state["optimizer"],
            f"{run_dir}, checkpoint {config.checkpoint}, 'optimizer'",
        )
    model.num_timesteps = state["step"]
    if state.get("inside"):
        print(
            "note: the environment normalises inside (gymnasium's NormalizeObservation or NormalizeReward); its "
            "statistics are not in the zip, so an environment that is made anew begins with others"
        )
    # which a schedule follows
    model._update_current_progress_remaining(state["step"], training.timesteps or 1)
    for file in save_plain(model, out, "--out"):
        print(f"written to {file}")


if __name__ == "__main__":
    run_command(main)
