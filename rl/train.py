"""``python -m rl.train --env MiniGrid-DoorKey-5x5-v0``: PPO or A2C with an entropy objective.

SB3's ``learn()`` runs the loop; :class:`rl.training.callback.TrainingCallback` evaluates, logs and saves between two
rollouts. PPO is :class:`rl.fast.ppo.FastPPO`, or SB3's own with ``--update sb3``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import parse_config
from rl.config import TrainConfig, check_read, import_environments, resolve

_EXAMPLES = """\
python -m rl.train --env MiniGrid-DoorKey-5x5-v0
python -m rl.train --env CartPole-v1 --loss entropy --ent-coef 0.01
python -m rl.train --env my_package.envs:MyEnv-v0 --timesteps 1000000 --video"""


def main(argv: Sequence[str] | None = None) -> None:
    """The command: read settings, train, evaluate."""
    config = parse_config(
        TrainConfig,
        "python -m rl.train",
        _EXAMPLES,
        argv,
    )
    if config.resume:
        import_environments(config)
        check_read(config, str(Path(str(config.run_dir), "config.yaml")))
    else:
        config = resolve(config)
    from rl.training.run import train

    train(config)


if __name__ == "__main__":
    run_command(main)
