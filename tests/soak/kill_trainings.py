"""The trainings that are killed: real commands, as small as they can be."""

from __future__ import annotations

import json
from pathlib import Path

from seg.demo.demo_pair import DemoPair, write_demo_pair

_SEG = {
    "--loss": "adadem", "--max-steps": "4", "--eval-every": "2", "--log-every": "1", "--maps": "1",
    "--batch-size": "1", "--source.size": "32,16", "--target.size": "32,16", "--model.output-stride": "16",
    "--discriminator.channels": "2",
}  # fmt: skip
#: Two environments of 64 steps make a rollout, so that lines of the log and rollouts do not coincide.
_RL = {"--env": "MiniGrid-Empty-Random-5x5-v0", "--timesteps": "2048", "--eval-freq": "1000", "--eval-episodes": "1"}
_PPO = {"n_envs": 2, "n_steps": 64, "n_epochs": 1, "policy_kwargs": "dict(net_arch=[8])"}
_A2C = {"n_envs": 2, "n_steps": 8, "policy_kwargs": "dict(net_arch=[8])"}
_OWN = {
    "seg minent": ("seg.train", {**_SEG, "--method": "minent"}),
    "seg minent workers": ("seg.train", {**_SEG, "--method": "minent", "--workers": "1"}),
    # the discriminators halve their input five times
    "seg advent": (
        "seg.train",
        {**_SEG, "--method": "advent", "--source.size": "64,32", "--target.size": "64,32"},
    ),
    "rl ppo": ("rl.train", {**_RL, "--algo": "ppo", "--hyperparameters": json.dumps(_PPO)}),
    "rl a2c": ("rl.train", {**_RL, "--algo": "a2c", "--hyperparameters": json.dumps(_A2C)}),
}
#: What a long soak kills.
SOAKED = ("seg minent", "seg advent", "rl ppo", "rl a2c")


def write_pair(folder: Path) -> DemoPair:
    """The images of the segmentation trainings."""
    return write_demo_pair(folder, size=(96, 48), source_train=4, target_train=3, target_val=2)


def flags(name: str, pair: DemoPair) -> tuple[str, list[str]]:
    """Module and flags of a training by its name."""
    module, own = _OWN[name]
    data = {"--source.root": str(pair.source_root), "--target.root": str(pair.target_root)}
    given = {**own, **(data if module == "seg.train" else {})}
    return module, [part for pair_of_both in given.items() for part in pair_of_both]
