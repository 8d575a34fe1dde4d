"""Settings of ``python -m seg.train``: the defaults are the demo, a YAML file or flags make it anything else."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, make_dataclass
from typing import Any, Literal, TypeVar, cast

from dem_apps import OBJECTIVE_NAMES
from dem_apps.errors import InputError
from dem_apps.objectives.flags import ObjectiveSettings, check_options, given_options
from dem_apps.reduction import REDUCTIONS
from dem_apps.runtime.settings import option, section
from dem_apps.runtime.validate import check_settings
from seg.data.layouts import LAYOUTS
from seg.methods import METHODS
from seg.models.batch_norm import BATCH_NORM_POLICIES
from seg.scores.unsupervised_scores import CRITERIA

LOSSES = ("none", *OBJECTIVE_NAMES)
PRECISIONS = ("float32", "bf16", "fp16")

Settings = TypeVar("Settings")
_WEIGHTS = dict.fromkeys(method.sections["weights"] for method in METHODS.values() if "weights" in method.sections)
_SECTIONS = {key: each for method in METHODS.values() for key, each in method.sections.items() if key != "weights"}


def _extended(
    bases: Iterable[type] = (), sections: Mapping[str, type] | None = None
) -> Callable[[type[Settings]], type[Settings]]:
    """A class decorator: the same dataclass, with the fields of ``bases`` and with ``sections`` after its own."""
    headings = {key: inspect.cleandoc(each.__doc__ or key).partition("\n")[0] for key, each in (sections or {}).items()}
    fields = [(key, each, section(each, headings[key].rstrip("."))) for key, each in (sections or {}).items()]

    def extended(settings: type[Settings]) -> type[Settings]:
        kept = {name: getattr(settings, name) for name in ("__doc__", "__module__", "__qualname__")}
        made = make_dataclass(settings.__name__, fields, bases=(*bases, settings), frozen=True, namespace=kept)
        return cast(type[Settings], made)

    return extended


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
class SourceConfig(DataConfig):
    """The labelled images that training starts from."""

    rare_class_temperature: float | None = option(
        None, "draw images by rare classes at this temperature, such as 0.01; default: every image once per pass",
        at_least=0.0001,
    )  # fmt: skip
    rare_class_pixels: float = option(
        0.005, "share of an image's pixels that a class must have for the image to be drawn for it",
        at_least=0, at_most=1,
    )  # fmt: skip


@dataclass(frozen=True)
class TargetDataConfig(DataConfig):
    """The images that are adapted to."""

    labelled_part: float | None = option(
        None, "share of its training images that are read with labels, such as 0.0625; default: none",
        at_least=0, at_most=1,
    )  # fmt: skip
    labelled_use: Literal["beside", "instead"] = option(
        "beside", "half of every batch of labelled images are these beside the source's, or all of it instead of them"
    )


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    name: str = option("deeplabv2", "deeplabv2, deeplabv2-advent, or as segmentation-models-pytorch has it: unet, …")
    encoder: str = option("resnet18", "encoder of segmentation-models-pytorch")
    encoder_weights: str | None = option(None, "pretrained encoder weights, such as imagenet; default: random ones")
    depth: int | None = option(None, "encoder stages in use; default: 3 of deeplabv2, else the network's own")
    output_stride: int | None = option(
        None, "input pixels per feature, such as 8; default: 4 of deeplabv2, else the network's own"
    )
    batch_norm: str = option("trainable", "who trains and who feeds batch normalisation", BATCH_NORM_POLICIES)
    align_corners: bool = option(True, "whether upsampling aligns the corners of features and pixels, as ADVENT does")
    start_from: str | None = option(
        None, "run folder whose selected, else last, weights training starts from", value="RUN"
    )

    def architecture(self) -> dict[str, Any]:
        """What :func:`seg.build_model` takes besides classes and weights; None stands for the network's own default."""
        given = {"depth": self.depth, "output_stride": self.output_stride}
        usual = {"depth": 3, "output_stride": 4} if self.name == "deeplabv2" else {}  # the demo's fits a CPU
        options = {name: usual.get(name) if value is None else value for name, value in given.items()}
        return {"name": self.name, "encoder": self.encoder, **options}


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


@_extended(bases=_WEIGHTS)
@dataclass(frozen=True)
class WeightConfig:
    """How much each part of the loss counts."""

    seg_main: float = option(1.0, "cross-entropy of the main head on source")
    seg_aux: float = option(0.1, "cross-entropy of the auxiliary head on source")
    target_main: float = option(0.01, "objective of the main head on target")
    target_aux: float = option(0.002, "objective of the auxiliary head on target")


@_extended(sections=_SECTIONS)
@dataclass(frozen=True)
class TrainConfig(ObjectiveSettings):
    """Adapt a segmentation network from labelled source images to unlabelled target images."""

    # the options of the objectives follow the loss
    loss: str = option(
        "adadem", f"objective on target: {', '.join(OBJECTIVE_NAMES)}; none passes images without a loss (control)",
        LOSSES, value="NAME", group="method and objective",
    )  # fmt: skip
    reduction: str = option("balanced", "how target pixels are averaged", [r for r in REDUCTIONS if r != "none"])
    balance: float = option(1.0, "of balanced: a predicted class of n pixels weighs each with n ** -balance")
    method: str = option("minent", "; ".join(f"{name}: {method.summary}" for name, method in METHODS.items()), METHODS)
    seed: int = option(0, "seed of weights, sample order and augmentation", at_least=0, group="training")
    max_steps: int = option(700, "training steps", at_least=1)
    batch_size: int = option(2, "source images, and target images, per micro-batch, over all processes", at_least=1)
    accumulate: int = option(1, "micro-batches whose gradients are averaged into one step", at_least=1)
    precision: str = option("float32", "of the network; objectives and scores are always float32", PRECISIONS)
    deterministic: bool = option(False, "only operations that repeat bit for bit on the same machine; may be slower")
    compile: bool = option(False, "compile the network with torch.compile: a minute at the start, faster after it")
    workers: int = option(0, "processes that read images ahead", at_least=0)
    device: str = option("auto", "cpu, cuda, or auto")
    eval_every: int = option(
        175, "steps between scores on the target validation set and checkpoints", at_least=1,
        group="scores, checkpoints, pictures",
    )  # fmt: skip
    log_every: int = option(25, "steps between lines in metrics.jsonl", at_least=1)
    selection: str = option("im", "label-free score that chooses the checkpoint 'selected'", CRITERIA)
    validation_part: list[float] = option(
        [0.0, 1.0], "share of the target's validation images to score", value="FROM,TO"
    )
    maps: int = option(8, "validation images whose entropy maps are written at the end", at_least=0)
    run_dir: str | None = option(
        None, "folder of this run; default: a new one under runs/", value="DIR", group="run folder"
    )
    resume: bool = option(False, "continue the run in --run-dir")
    classes: str | None = option(
        None, "YAML file of the classes' names, colours and ids; default: Cityscapes' 19", value="FILE", group="classes"
    )
    source: SourceConfig = section(lambda: SourceConfig(layout="gta5"), "source images, labelled")
    target: TargetDataConfig = section(TargetDataConfig, "target images, adapted to")
    model: ModelConfig = section(ModelConfig, "network")
    optimizer: OptimizerConfig = section(OptimizerConfig, "optimiser and its schedule")
    weights: WeightConfig = section(WeightConfig, "how much each part of the loss counts")

    def check(self) -> None:
        """What parsing could not check.

        Raises:
            InputError: naming the flag and what would be right.
        """
        check_settings(self)
        check_options(self, trained=self.method != "source")
        if self.target.labelled_use == "instead" and not self.target.labelled_part:
            raise InputError(
                "--target.labelled-use: 'instead' trains on labelled target images alone, and --target.labelled-part "
                "says that there are none; give it a share of the training images, such as 0.0625"
            )

    def method_options(self) -> dict[str, Any]:
        """The sections that ``method`` declares, for its ``__init__``."""
        return {name: getattr(self, name) for name in METHODS[self.method].sections}

    def objective_options(self) -> dict[str, Any]:
        """The balance, and the options that were given, for :func:`dem_apps.build_objective`."""
        return {"balance": self.balance, **given_options(self)}
