"""Settings of ``python -m seg.train``: the defaults are the demo, a YAML file or flags make it anything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dem_apps import OBJECTIVE_NAMES
from dem_apps.errors import InputError
from dem_apps.reduction import REDUCTIONS
from dem_apps.runtime.settings import option, section
from seg.data.layouts import LAYOUTS
from seg.models.batch_norm import BATCH_NORM_POLICIES
from seg.scores.unsupervised_scores import CRITERIA

METHODS = ("source", "minent", "advent")
LOSSES = ("none", *OBJECTIVE_NAMES)
PRECISIONS = ("float32", "bf16", "fp16")


@dataclass(frozen=True)
class DataConfig:
    """One domain's data."""

    root: str | None = option(None, "folder of the data set; default: the built-in demo pair", value="DIR")
    layout: str = option("cityscapes", "how its folders are laid out", LAYOUTS)
    size: list[int] | None = option(None, "width and height to resize to; default: the images' own", value="W,H")
    exclude: list[str] = option([], "images to leave out: path below the root, file name or stem", value="NAME,NAME")
    augmentation: list[dict[str, Any]] = option(
        [{"HorizontalFlip": {"p": 0.5}}], "albumentations, as a list of {Name: {arguments}}", value="LIST"
    )


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    name: str = option("deeplabv2", "architecture")
    encoder: str = option("resnet18", "encoder of segmentation-models-pytorch")
    encoder_weights: str | None = option(None, "pretrained encoder weights, such as imagenet; default: random ones")
    depth: int = option(3, "encoder stages in use, 3 to 5; the heads sit on the last two")
    output_stride: int = option(4, "input pixels per feature: 4, 8 or 16")
    batch_norm: str = option("trainable", "who trains and who feeds batch normalisation", BATCH_NORM_POLICIES)
    align_corners: bool = option(True, "whether upsampling aligns the corners of features and pixels, as ADVENT does")
    start_from: str | None = option(
        None, "run folder whose selected, else last, weights training starts from", value="RUN"
    )


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimiser and its schedule."""

    name: str = option("adamw", "optimiser", ("adamw", "sgd"))
    lr: float = option(3e-3, "learning rate of the encoder")
    head_factor: float = option(1.0, "the heads learn this many times faster")
    weight_decay: float = option(5e-4, "weight decay")
    momentum: float = option(0.9, "momentum of sgd")
    power: float = option(0.9, "the rate falls as (1 - step / horizon) ** power")
    horizon: int | None = option(None, "steps over which the rate falls to 0; default: --max-steps")


@dataclass(frozen=True)
class WeightConfig:
    """How much each part of the loss counts."""

    seg_main: float = option(1.0, "cross-entropy of the main head on source")
    seg_aux: float = option(0.1, "cross-entropy of the auxiliary head on source")
    target_main: float = option(0.01, "objective of the main head on target")
    target_aux: float = option(0.002, "objective of the auxiliary head on target")
    adversarial_main: float = option(0.001, "advent: fooling the main head's discriminator on target")
    adversarial_aux: float = option(0.0002, "advent: fooling the auxiliary head's discriminator on target")


@dataclass(frozen=True)
class DiscriminatorConfig:
    """AdvEnt's discriminators, one per head; used by ``--method advent`` alone."""

    lr: float = option(1e-4, "learning rate of Adam; falls as the network's does")
    channels: int = option(64, "channels of the first of five convolutions; the next ones have 2, 4 and 8 times that")


@dataclass(frozen=True)
class TrainConfig:
    """Adapt a segmentation network from labelled source images to unlabelled target images."""

    method: str = option(
        "minent", "source only; minent: the objective on target; advent: discriminators as well", METHODS,
        group="method and objective",
    )  # fmt: skip
    loss: str = option("adadem", "objective on target; none passes target images without a loss (control)", LOSSES)
    reduction: str = option("balanced", "how target pixels are averaged", [r for r in REDUCTIONS if r != "none"])
    balance: float = option(1.0, "of balanced: a predicted class of n pixels weighs each with n ** -balance")
    tau: float | None = option(None, "temperature of --loss dem; default: 1")
    alpha: float | None = option(None, "weight of the calibrator, where the loss has one; default: 1")
    seed: int = option(0, "seed of weights, sample order and augmentation", group="training")
    max_steps: int = option(700, "training steps")
    batch_size: int = option(2, "source images, and target images, per pass, over all processes")
    accumulate: int = option(1, "passes whose gradients are averaged into one step")
    precision: str = option("float32", "of the network; objectives and scores are always float32", PRECISIONS)
    deterministic: bool = option(False, "only operations that repeat bit for bit on the same machine; may be slower")
    compile: bool = option(False, "compile the network with torch.compile: a minute at the start, faster after it")
    workers: int = option(0, "processes that read images ahead")
    device: str = option("auto", "cpu, cuda, or auto")
    eval_every: int = option(
        175, "steps between scores on the target validation set and checkpoints", group="scores, checkpoints, pictures"
    )
    log_every: int = option(25, "steps between lines in metrics.jsonl")
    selection: str = option("im", "label-free score that chooses the checkpoint 'selected'", CRITERIA)
    validation_part: list[float] = option(
        [0.0, 1.0], "share of the target's validation images to score", value="FROM,TO"
    )
    maps: int = option(8, "validation images whose entropy maps are written at the end")
    run_dir: str | None = option(
        None, "folder of this run; default: a new one under runs/", value="DIR", group="run folder"
    )
    resume: bool = option(False, "continue the run in --run-dir")
    classes: str | None = option(
        None, "YAML file of the classes' names, colours and ids; default: Cityscapes' 19", value="FILE", group="classes"
    )
    source: DataConfig = section(lambda: DataConfig(layout="gta5"), "source images, labelled")
    target: DataConfig = section(DataConfig, "target images, adapted to")
    model: ModelConfig = section(ModelConfig, "network")
    optimizer: OptimizerConfig = section(OptimizerConfig, "optimiser and its schedule")
    weights: WeightConfig = section(WeightConfig, "how much each part of the loss counts")
    discriminator: DiscriminatorConfig = section(DiscriminatorConfig, "discriminators of --method advent")

    def check(self) -> None:
        """What parsing could not check.

        Raises:
            InputError: naming the flag and what would be right.
        """
        smallest = {
            "max_steps": 1,
            "batch_size": 1,
            "accumulate": 1,
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
        """The balance, tau and alpha where they were given, for :func:`dem_apps.build_objective` to check."""
        given = {"tau": self.tau, "alpha": self.alpha}
        return {"balance": self.balance, **{name: value for name, value in given.items() if value is not None}}
