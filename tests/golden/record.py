"""Short seeded runs of every training, their recorded numbers, and the command that records them.

    python tests/golden/record.py [seg] [rl]

prints what changed, and by how much, and writes tests/golden/NAME.json. A file names the platform it was recorded
on. There the numbers have to be the same up to what the number of threads changes; on another processor or with
another torch sums are taken in another order, and the tolerance is wider. Where other versions of
OpenCV, MiniGrid or torch draw other pictures, rooms or actions, there is nothing to compare.

A run returns named lists of numbers: a value per step, or several values of the end. They go through the functions
that users call: :func:`seg.train.train` and :func:`rl.training.run.train`.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import math
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image

import seg.train
from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.run_reader import read_metrics
from rl.config import TrainConfig as RlConfig
from rl.config import resolve
from rl.envs.make import make_env
from rl.training import callback
from rl.training.run import train as train_policy
from seg.config import TrainConfig as SegConfig
from seg.data.settings import SourceConfig, TargetDataConfig
from seg.data.street.demo_pair import write_demo_pair
from seg.methods.advent import DiscriminatorConfig
from seg.methods.settings import OptimizerConfig, WeightConfig
from seg.models.settings import ModelConfig

Values = dict[str, list[float]]
#: Lasts as long as the process.
_PICTURES = tempfile.TemporaryDirectory()
#: Image size, steps, rates and weights at which a run lasts a second, rounding is not magnified from step to step and
#: 1 % of a weight is seen in the numbers.
SEG = SegConfig(
    reduction="mean", max_steps=6, eval_every=6, log_every=1, maps=0, device="cpu",
    model=ModelConfig("deeplabv2", "resnet18", output_stride=8, batch_norm="trainable"),
    optimizer=OptimizerConfig(name="sgd", lr=0.002, head_factor=2.0),
    weights=WeightConfig(target_main=1.0, aux=0.5),
)  # fmt: skip
#: Adam makes of the discriminators' first, tiny gradients steps of full size, and so of their rounding: hence their
#: small rate, and weights at which what the network learns from them is seen all the same.
ADVENT = {
    "method": "advent",
    "weights": WeightConfig(target_main=1.0, adversarial_main=100.0, aux=0.5),
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
            source=SourceConfig(root=str(pair / "gta5"), augmentation=[], rare_class_temperature=None),
            target=TargetDataConfig(root=str(pair / "cityscapes"), augmentation=[]),
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
    """Values that SB3 logs of every update, and the returns at the end."""
    with tempfile.TemporaryDirectory() as folder, _quietly(), patch.object(callback, "STEPS_PER_LINE", 1):
        run = Path(folder) / "run"
        config = resolve(dataclasses.replace(RL, run_dir=str(run), **changes))
        threads = torch.get_num_threads()
        train_policy(config)
        torch.set_num_threads(threads)
        values = _columns(read_metrics(run), leave_out=("eval/", "train/ent_coef"))
        result = json.loads((run / "eval.json").read_text())
        state = load_checkpoint(run / "checkpoints", "last")
    values["returns"] = [result["mean_return"], result["best"]["mean_return"]]
    values["action head"] = state["policy"]["action_net.weight"].norm(dim=1).tolist()
    for name, table in state["policy"].items():
        if name.endswith("class_marginals"):
            values["class table"] = table.diagonal().tolist()
    return values


_SEG: dict[str, dict[str, Any]] = {
    "source": {"method": "source"},
    "minent adadem balanced": {"loss": "adadem", "reduction": "balanced"},
    "minent dem": {"loss": "dem"},
    "advent entropy": {**ADVENT, "loss": "entropy"},
    "advent adadem": {**ADVENT, "loss": "adadem"},
    "minent adadem bf16": {"loss": "adadem", "precision": "bf16"},
}
_RL: dict[str, dict[str, Any]] = {"ppo fast": {}, "ppo sb3": {"update": "sb3"}, "a2c": A2C}
FAMILIES: dict[str, dict[str, Callable[[], Values]]] = {
    "seg": {run: functools.partial(segmentation, **changes) for run, changes in _SEG.items()},
    "rl": {f"{code} {loss}": functools.partial(reinforcement, loss=loss, **changes)
           for code, changes in _RL.items() for loss in ("entropy", "adadem")},
}  # fmt: skip
#: Allowed deviation on the platform of the recording, and on others; of a family, or of one run of it.
TOLERANCES = {
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
        for file in sorted(_pair().rglob("*.png")):
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


def _pair() -> Path:
    return write_demo_pair(Path(_PICTURES.name) / "pair", size=(96, 48), source_train=6, target_train=5, target_val=4)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


FOLDER = Path(__file__).parent
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")  # as in tests/conftest.py


def this_platform() -> dict[str, str]:
    """The platform: what the last bits of a number depend on."""
    return {
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__.partition("+")[0],
    }


def load(family: str) -> dict[str, Any]:
    """A recorded file."""
    return json.loads((FOLDER / f"{family}.json").read_text())


def deviations(recorded: Values, now: Values) -> dict[str, float]:
    """Per quantity the largest difference, as a share of the largest recorded value; infinite where values are missing.

    Values below a hundredth count as a hundredth: a quantity that should be 0 is rounding errors alone.
    """
    shares = {}
    for name in {**recorded, **now}:
        old, new = recorded.get(name, []), now.get(name, [])
        if len(old) != len(new) or not all(map(math.isfinite, new)):
            shares[name] = math.inf
        else:
            largest = max([1e-2, *map(abs, old)])
            shares[name] = max([abs(a - b) / largest for a, b in zip(old, new, strict=True)], default=0.0)
    return shares


def complaint(family: str, run: str, now: Values, document: dict[str, Any]) -> str | None:
    """The numbers that moved further than allowed, and what to do; None if none did."""
    where = document["recorded_on"]
    same, elsewhere = TOLERANCES.get(f"{family}, {run}", TOLERANCES[family])
    allowed = same if where == this_platform() else elsewhere
    recorded = document["runs"][run]["values"]
    moved = {name: share for name, share in deviations(recorded, now).items() if not share <= allowed}
    if not moved:
        return None
    lines = [f"{family}, {run}: the numbers moved by more than {allowed:g} (recorded on {where}):"]
    for name, share in moved.items():
        lines += [f"  {name} by {share:.2g}", f"    was {recorded.get(name)}", f"    is  {now.get(name)}"]
    lines.append(f"if that is meant: python tests/golden/record.py {family}, and a line in CHANGELOG.md that says why")
    return "\n".join(lines)


def record(family: str) -> None:
    """Run a family and replace its file."""
    before = load(family)["runs"]
    runs = {}
    for run, trajectory in FAMILIES[family].items():
        runs[run] = {"values": trajectory()}
        shares = deviations(before.get(run, {"values": {}})["values"], runs[run]["values"])
        moved = {name: f"{share:.1e}" for name, share in shares.items() if share}
        print(f"{family}, {run}: {moved or 'unchanged'}", flush=True)
    document = {"recorded_on": this_platform(), "inputs": inputs(family), "runs": runs}
    (FOLDER / f"{family}.json").write_text(_one_line_a_list(document) + "\n")


def _one_line_a_list(document: Any, indent: str = "") -> str:
    """JSON in which a list of numbers is one line, so that a difference shows which quantity moved."""
    if not isinstance(document, dict):
        return json.dumps(document)
    items = [f"{indent} {json.dumps(key)}: {_one_line_a_list(value, indent + ' ')}" for key, value in document.items()]
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or FAMILIES:
        record(name)
