"""Commands other than trainings that are killed: what is started again comes to what it would have come to."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from kill_runs import Tally, Training, differences
from PIL import Image

from dem_apps.runtime.checkpoint import save_checkpoint
from dem_apps.runtime.settings import to_dict
from seg.config import ModelConfig, TargetDataConfig, TrainConfig
from seg.data.labels import CITYSCAPES_CLASSES
from seg.models import build_model

_IMAGES = 12
#: In a page.
_DATE = re.compile(rb"Made \d+-\d+-\d+ \d+:\d+")
_GRID = """
envs: {empty: {env: MiniGrid-Empty-Random-5x5-v0}}
arms: {adadem: {loss: adadem}, none: {loss: none}}
seeds: [0, 1]
train:
  timesteps: 512
  eval_freq: 256
  eval_episodes: 1
  hyperparameters: {n_envs: 2, n_steps: 64, n_epochs: 1, policy_kwargs: "dict(net_arch=[8])"}
"""


def write_trained(run: Path, seed: int = 0) -> None:
    """A run of segmentation whose network has random weights: what exports and adaptations read of one.

    Args:
        run: its folder, new.
        seed: of the weights.
    """
    config = TrainConfig(model=ModelConfig(encoder="resnet18"), target=TargetDataConfig(size=[32, 16]))
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(json.dumps(to_dict(config)))
    torch.manual_seed(seed)
    model = build_model(**config.model.architecture(), num_classes=len(CITYSCAPES_CLASSES))
    save_checkpoint(run / "checkpoints", "last", {"model": model.state_dict(), "step": 1}, "1")


@dataclass(frozen=True)
class Kind:
    """A command that is killed.

    Args:
        module: what is run.
        arguments: from the folder of what it reads and the one that it writes.
        differences: of what it has written from what another one has.
        goes_on: the same command continues it; else its folder is refused, and taken away first.
        groups: it starts processes of its own.
        result: what it writes last; who has it is refused another time, as what is finished is never overwritten.
    """

    module: str
    arguments: Callable[[Path, Path], list[str]]
    differences: Callable[[Path, Path], list[str]]
    goes_on: bool = True
    groups: bool = False
    result: str | None = None


class KilledCommand(Training):
    """Starts one of them as often as wanted."""

    def __init__(self, kind: Kind, given: Path, folder: Path) -> None:
        super().__init__(kind.module, [], folder)
        self._kind, self._given = kind, given
        self.groups = kind.groups

    def arguments(self, run: Path) -> list[str]:
        """The same every time."""
        if not self._kind.goes_on:
            self._look_at(run)
        return self._kind.arguments(self._given, run)

    def finish(self, run: Path, whole: Path, tally: Tally) -> None:
        """Continue what is not finished, and compare it."""
        if self._kind.result is None or not (run / self._kind.result).is_file():
            super().finish(run, whole, tally)
        else:
            self.run(run)  # is refused, and takes away what the last moment has left
            tally.faults += self.differences(run, whole)
            tally.compared += 1

    def differences(self, run: Path, whole: Path) -> list[str]:
        """As its kind compares."""
        return self._kind.differences(run, whole)

    @staticmethod
    def _look_at(out: Path) -> None:
        """What a kill has left: every picture is whole, whichever there are."""
        for file in out.rglob("*.png"):
            with Image.open(file) as picture:
                picture.load()
        shutil.rmtree(out, ignore_errors=True)


def write_given(folder: Path) -> None:
    """What the commands read: a network and its images, and the settings of a grid."""
    write_trained(folder / "run")
    (folder / "images").mkdir()
    draw = np.random.default_rng(0)
    for index in range(_IMAGES):
        Image.fromarray(draw.integers(0, 255, (16, 32, 3), np.uint8)).save(folder / "images" / f"{index}.png")
    (folder / "grid.yaml").write_text(_GRID)


def _same_files(out: Path, whole: Path) -> list[str]:
    names = {str(path.relative_to(each)) for each in (out, whole) for path in each.rglob("*") if path.is_file()}
    return [f"{out.name}: {name} differs" for name in sorted(names) if not _same_file(out / name, whole / name)]


def _same_file(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and _undated(one) == _undated(other)


def _undated(file: Path) -> bytes:
    content = file.read_bytes()
    return _DATE.sub(b"", content) if file.suffix == ".html" else content


def _same_runs(folder: Path, whole: Path) -> list[str]:
    runs = {path.parent.relative_to(each) for each in (folder, whole) for path in each.rglob("config.yaml")}
    return [fault for run in sorted(runs) for fault in differences(folder / run, whole / run)]


def _same_trials(study: Path, whole: Path) -> list[str]:
    points, wanted = (_points(each) for each in (study, whole))
    return [] if points == wanted else [f"{study.name}: tried {points}, not {wanted}"]


def _points(study: Path) -> list[tuple[str, ...]]:
    """Of the trials that were scored, what they tried and came to."""
    with open(study / "trials.csv", newline="") as opened:
        rows = list(csv.DictReader(opened))
    return sorted(
        tuple(f"{k}={v}" for k, v in row.items() if k != "trial") for row in rows if row["state"] == "complete"
    )


def _train_flags() -> list[str]:
    return [
        "--train.env", "MiniGrid-Empty-Random-5x5-v0", "--train.timesteps", "256", "--train.eval-freq", "128",
        "--train.eval-episodes", "1", "--train.hyperparameters",
        json.dumps({"n_envs": 2, "n_steps": 64, "n_epochs": 1, "policy_kwargs": "dict(net_arch=[8])"}),
    ]  # fmt: skip


KILLED: dict[str, Kind] = {
    "seg export": Kind(
        "seg.export",
        lambda given, out: [
            "--run", str(given / "run"), "--images", str(given / "images"), "--out", str(out), "--device", "cpu",
        ],
        _same_files,
        goes_on=False,
    ),
    "seg adapt": Kind(
        "seg.adapt",
        lambda given, out: [
            "--model", str(given / "run"), "--images", str(given / "images"), "--out", str(out), "--device", "cpu",
            "--batch-size", "2", "--epochs", "2",
        ],
        _same_files,
        result="adapt.json",
    ),
    "rl grid": Kind(
        "rl.benchmark",
        lambda given, out: ["--config", str(given / "grid.yaml"), "--folder", str(out)],
        _same_runs,
        groups=True,
    ),
    "rl search": Kind(
        "rl.tune",
        lambda _given, out: [
            "--study-dir", str(out), "--trials", "2", "--seeds", "1", "--final-seeds", "1", *_train_flags(),
        ],
        _same_trials,
        groups=True,
    ),
}  # fmt: skip
