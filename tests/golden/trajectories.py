"""Short seeded runs of every training, and their numbers to record.

A run returns named lists of numbers: a value per step, or several values of the end. They go through the functions
that users call: :func:`dem_apps.build_objective`, :func:`seg.train.train` and :func:`rl.training.run.train`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import seg.train
from dem_apps import OBJECTIVE_NAMES, build_objective
from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.run_reader import read_metrics
from rl.config import TrainConfig as RlConfig
from rl.config import resolve
from rl.envs.make import make_env
from rl.training import callback
from rl.training.run import train as train_policy
from seg.config import ModelConfig, OptimizerConfig, SourceConfig, TargetDataConfig, WeightConfig
from seg.config import TrainConfig as SegConfig
from seg.demo.demo_pair import DemoPair, write_demo_pair
from seg.methods.advent import DiscriminatorConfig

Values = dict[str, list[float]]
Runs = dict[str, Callable[[], Values]]

UPDATES = 10


def updates_of_a_logit_table(
    name: str, reduction: str, classes: int = 4, elements: int = 24, **options: float
) -> Values:
    """Gradient descent on the logits themselves: losses, the logits at the end per class, the class table at the end.

    A fifth of the elements is masked, another fifth in every update.
    """
    objective = build_objective(name, classes, **options)
    start = torch.randn(elements, classes, generator=torch.Generator().manual_seed(0))
    logits = (2 * start + torch.linspace(0, 1, classes)).requires_grad_()
    losses = []
    for update in range(UPDATES):
        mask = (torch.arange(elements) + update) % 5 != 0
        loss = objective(logits, dim=1, mask=mask, reduction=reduction)
        (gradient,) = torch.autograd.grad(loss, logits)
        with torch.no_grad():
            logits -= 3.0 * gradient
        losses.append(loss.item())
    end = logits.detach()
    values = {"loss": losses, "logits, mean": end.mean(0).tolist(), "logits, size": end.square().mean(0).tolist()}
    if hasattr(objective, "class_marginals"):
        values["class table"] = objective.class_marginals.flatten().tolist()
    return values


#: Image size, steps, rates and weights at which a run lasts a second, rounding is not magnified from step to step and
#: 1 % of a weight is seen in the numbers.
SEG = SegConfig(
    reduction="mean", max_steps=6, eval_every=6, log_every=1, maps=0, device="cpu",
    model=ModelConfig("deeplabv2", "resnet18", output_stride=8, batch_norm="trainable"),
    optimizer=OptimizerConfig(name="sgd", lr=0.002, head_factor=2.0),
    weights=WeightConfig(target_main=1.0, target_aux=0.5),
)  # fmt: skip
#: Adam makes of the discriminators' first, tiny gradients steps of full size, and so of their rounding: hence their
#: small rate, and weights at which what the network learns from them is seen all the same.
ADVENT = {
    "method": "advent",
    "weights": WeightConfig(target_main=1.0, target_aux=0.5, adversarial_main=100.0, adversarial_aux=50.0),
    "discriminator": DiscriminatorConfig(lr=1e-4, channels=32),
}
_EVAL = ("miou", "pixel_accuracy", "mean_entropy", "calibration_error")


def segmentation(**changes: Any) -> Values:
    """Losses of every step, scores of the last one, the diagonals of the class tables."""
    with tempfile.TemporaryDirectory() as folder, _quietly():
        pair = _pair()
        config = dataclasses.replace(
            SEG,
            run_dir=str(Path(folder) / "run"),
            # no augmentation: its random numbers are albumentations', whose versions differ
            source=SourceConfig(root=str(pair.source_root), augmentation=[], rare_class_temperature=None),
            target=TargetDataConfig(root=str(pair.target_root), augmentation=[]),
            **changes,
        )
        run = seg.train.train(config)
        values = _columns(read_metrics(run), leave_out=("label_free/", "val/"))
        result = json.loads((run / "eval.json").read_text())
        state = load_checkpoint(run / "checkpoints", "last")
    values["scores"] = [result[name] for name in _EVAL]
    values["label-free scores"] = list(result["label_free"].values())
    for name, table in state.get("minent", {}).items():
        if name.endswith("class_marginals"):
            values[name] = table.diagonal().tolist()
    return values


RL = RlConfig(
    env="MiniGrid-Empty-Random-5x5-v0", timesteps=192, eval_freq=192, eval_episodes=2, ent_coef=0.3,
    hyperparameters={"n_envs": 4, "n_steps": 16, "batch_size": 32, "n_epochs": 4, "learning_rate": 0.003},
)  # fmt: skip
A2C = {
    "algo": "a2c", "timesteps": 96, "eval_freq": 96, "ent_coef": 1.0,
    "hyperparameters": {"n_envs": 4, "n_steps": 8, "learning_rate": 0.003},
}  # fmt: skip


def reinforcement(**changes: Any) -> Values:
    """What SB3 logs of every update, and the returns at the end."""
    with tempfile.TemporaryDirectory() as folder, _quietly(), _every_update_logged():
        config = resolve(dataclasses.replace(RL, run_dir=str(Path(folder) / "run"), **changes))
        threads = torch.get_num_threads()
        train_policy(config)
        torch.set_num_threads(threads)
        values = _columns(read_metrics(Path(config.run_dir or "")), leave_out=("eval/", "train/ent_coef"))
        result = json.loads((Path(config.run_dir or "") / "eval.json").read_text())
        state = load_checkpoint(Path(config.run_dir or "") / "checkpoints", "last")
    values["returns"] = [result["mean_return"], result["best"]["mean_return"]]
    values["action head"] = state["policy"]["action_net.weight"].norm(dim=1).tolist()
    for name, table in state["policy"].items():
        if name.endswith("class_marginals"):
            values["class table"] = table.diagonal().tolist()
    return values


def _core() -> Runs:
    cases: dict[str, dict[str, Any]] = {name: {"name": name} for name in OBJECTIVE_NAMES}
    cases["dem tau 0.8 alpha 1.2"] = {"name": "dem", "tau": 0.8, "alpha": 1.2}
    cases["adadem l2 entropy alpha 0.5"] = {"name": "adadem", "norm": "l2", "delta": "entropy", "alpha": 0.5}
    cases["adadem linf momentum 0.3"] = {"name": "adadem", "norm": "linf", "momentum": 0.3}
    runs = {
        f"{case}, {reduction}": functools.partial(updates_of_a_logit_table, reduction=reduction, **arguments)
        for case, arguments in cases.items()
        for reduction in ("mean", "balanced")
    }
    runs["adadem, balanced 0.5"] = functools.partial(updates_of_a_logit_table, "adadem", "balanced", balance=0.5)
    return runs


def _seg() -> Runs:
    cases: dict[str, dict[str, Any]] = {
        "source": {"method": "source"},
        "minent adadem balanced": {"loss": "adadem", "reduction": "balanced"},
        "minent dem": {"loss": "dem"},
        "advent entropy": {**ADVENT, "loss": "entropy"},
        "advent adadem": {**ADVENT, "loss": "adadem"},
        "minent adadem bf16": {"loss": "adadem", "precision": "bf16"},
    }
    return {case: functools.partial(segmentation, **changes) for case, changes in cases.items()}


def _rl() -> Runs:
    codes: dict[str, dict[str, Any]] = {
        "ppo fast": {},
        "ppo sb3": {"update": "sb3"},
        "a2c": A2C,
    }
    return {
        f"{code} {loss}": functools.partial(reinforcement, loss=loss, **changes)
        for code, changes in codes.items()
        for loss in ("entropy", "adadem")
    }


FAMILIES: dict[str, Runs] = {"core": _core(), "seg": _seg(), "rl": _rl()}
#: Allowed deviation on the platform of the recording, and on others; of a family, or of one run of it.
TOLERANCES = {
    "core": (1e-5, 1e-4),
    "seg": (1e-5, 1e-4),
    "rl": (1e-5, 1e-4),
    # a different way to sum in bfloat16 changes the third digit, and the platform does not tell whether the processor
    # multiplies it itself (AMX: 1.4e-2); 1 % of a weight is seen by the other runs
    "seg, minent adadem bf16": (3e-2, 3e-2),
}


def _columns(lines: list[dict[str, Any]], leave_out: tuple[str, ...]) -> Values:
    """A list per logged quantity; words, such as an alarm's, and values that were not finite are left out."""
    lists: Values = {}
    for line in lines:
        for name, value in line.items():
            if name != "step" and isinstance(value, (int, float)) and not name.startswith(leave_out):
                lists.setdefault(name, []).append(value)
    return lists


def inputs(family: str) -> str:
    """A fingerprint of the inputs of a family's runs: OpenCV draws images, MiniGrid rooms, torch actions."""
    digest = hashlib.sha256()
    if family == "seg":
        for file in sorted(Path(_pictures().name).rglob("*.png") if _pair() else ()):
            digest.update(np.asarray(Image.open(file)).tobytes())
    if family == "rl":
        env = make_env(RL.env, "minigrid.wrappers.FlatObsWrapper")
        for seed in range(4):
            digest.update(np.asarray(env.reset(seed=seed)[0]).tobytes())
            for action in (2, 1, 2, 2, 0, 2):
                digest.update(np.asarray(env.step(action)[0]).tobytes())
        with torch.random.fork_rng(devices=[]):  # the same seed gives other actions in torch 2.6 than in 2.15
            torch.manual_seed(0)
            digest.update(torch.distributions.Categorical(logits=torch.zeros(8, 7)).sample().numpy().tobytes())
    return digest.hexdigest()[:16]


def _pair() -> DemoPair:
    return write_demo_pair(Path(_pictures().name) / "pair", size=(96, 48), source_train=6, target_train=5, target_val=4)


@functools.cache
def _pictures() -> tempfile.TemporaryDirectory[str]:
    """A folder that lasts as long as the process."""
    return tempfile.TemporaryDirectory()


@contextlib.contextmanager
def _every_update_logged() -> Iterator[None]:
    before, callback.STEPS_PER_LINE = callback.STEPS_PER_LINE, 1
    try:
        yield
    finally:
        callback.STEPS_PER_LINE = before


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
