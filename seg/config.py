"""Settings of ``python -m seg.train``: the defaults are the demo, a YAML file or flags make it anything else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dem_apps import OBJECTIVE_NAMES
from dem_apps.config import option
from dem_apps.errors import InputError
from dem_apps.reduction import REDUCTIONS
from seg.data.datasets import LAYOUTS

METHODS = ("source", "minent")
LOSSES = ("none", *OBJECTIVE_NAMES)


@dataclass(frozen=True)
class DataConfig:
    """One domain's data."""

    root: str | None = option(None, "folder of the data set; none takes the built-in demo pair")
    layout: str = option("cityscapes", "how its folders are laid out", LAYOUTS)
    size: list[int] | None = option(None, "width and height to resize to, [W, H]; none keeps the images' own")
    augmentation: list[dict[str, Any]] = option(
        [{"HorizontalFlip": {"p": 0.5}}], "albumentations, as a list of {Name: {arguments}}"
    )


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    name: str = option("deeplabv2", "architecture")
    encoder: str = option("resnet18", "encoder of segmentation-models-pytorch")
    encoder_weights: str | None = option(None, "pretrained encoder weights such as imagenet, or null")
    depth: int = option(3, "encoder stages in use, 3 to 5; the heads sit on the last two")
    output_stride: int = option(4, "input pixels per feature: 4, 8 or 16")


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimiser and its schedule."""

    name: str = option("adamw", "optimiser", ("adamw", "sgd"))
    lr: float = option(3e-3, "learning rate of the encoder")
    head_factor: float = option(1.0, "the heads learn this many times faster")
    weight_decay: float = option(5e-4, "weight decay")
    momentum: float = option(0.9, "momentum of sgd")
    power: float = option(0.9, "the rate falls as (1 - step / horizon) ** power")
    horizon: int | None = option(None, "steps over which the rate falls to 0; none takes max_steps")


@dataclass(frozen=True)
class WeightConfig:
    """How much each part of the loss counts."""

    seg_main: float = option(1.0, "cross-entropy of the main head on source")
    seg_aux: float = option(0.1, "cross-entropy of the auxiliary head on source")
    target_main: float = option(0.01, "objective of the main head on target")
    target_aux: float = option(0.002, "objective of the auxiliary head on target")


@dataclass(frozen=True)
class TrainConfig:
    """Adapt a segmentation network from labelled source images to unlabelled target images."""

    method: str = option("minent", "source: labelled source only; minent: the objective on target as well", METHODS)
    loss: str = option("adadem", "objective on target; none passes target images without a loss (control)", LOSSES)
    reduction: str = option("balanced", "how target pixels are averaged", [r for r in REDUCTIONS if r != "none"])
    tau: float | None = option(None, "temperature of --loss dem (default 1)")
    alpha: float | None = option(None, "weight of the calibrator, where the loss has one (default 1)")
    seed: int = option(0, "seed of weights, sample order and augmentation")
    max_steps: int = option(700, "training steps")
    batch_size: int = option(2, "source images, and target images, per step")
    eval_every: int = option(175, "steps between scores on the target validation set and checkpoints")
    log_every: int = option(25, "steps between lines in metrics.jsonl")
    workers: int = option(0, "processes that read images ahead")
    device: str = option("auto", "cpu, cuda, or auto")
    maps: int = option(8, "validation images whose entropy maps are written at the end")
    run_dir: str | None = option(None, "folder of this run; none makes one under runs/")
    resume: bool = option(False, "continue the run in --run-dir")
    source: DataConfig = field(default_factory=lambda: DataConfig(layout="gta5"))
    target: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    weights: WeightConfig = field(default_factory=WeightConfig)

    def check(self) -> None:
        """What parsing could not check.

        Raises:
            InputError: naming the flag and what would be right.
        """
        smallest = {
            "max_steps": 1,
            "batch_size": 1,
            "eval_every": 1,
            "log_every": 1,
            "seed": 0,
            "workers": 0,
            "maps": 0,
        }
        for name, least in smallest.items():
            if getattr(self, name) < least:
                raise InputError(f"--{name.replace('_', '-')}: expected {least} or more, got {getattr(self, name)}")

    def objective_options(self) -> dict[str, float]:
        """tau and alpha where they were given, for :func:`dem_apps.build_objective` to check."""
        given = {"tau": self.tau, "alpha": self.alpha}
        return {name: value for name, value in given.items() if value is not None}
