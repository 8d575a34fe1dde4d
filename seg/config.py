"""Settings of ``python -m seg.train``, and their defaults; without any it trains on the demo."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dem_apps import OBJECTIVE_NAMES
from dem_apps.errors import InputError
from dem_apps.objectives import objective_title
from dem_apps.objectives.flags import ObjectiveSettings, check_options, given_options
from dem_apps.runtime.documents import Document
from dem_apps.runtime.setting_checks import check_settings
from dem_apps.runtime.settings import LARGEST_SEED, option, section
from seg.data.settings import BandConfig, DemoConfig, SourceConfig, TargetDataConfig
from seg.methods import METHODS, settings, target_weight
from seg.models.settings import ModelConfig

if TYPE_CHECKING:
    from torch import nn

LOSSES = ("none", *OBJECTIVE_NAMES)
#: The domain whose batch norm statistics are mixed in after training. ``target`` is AdaBN, with a
#: share of the target's statistics.
BATCH_NORM_AFTER = ("none", "target")
BN_ALPHA_HELP = (
    "share of the new images' batch norm statistics, 1: theirs alone; default: of 0, 0.3, 0.5 and 1 that of the most "
    "stable predictions"
)
#: The running statistics of batch norm in a network whose training moves none.
UNMOVED = "those it started with"
PRECISIONS = ("float32", "bf16", "fp16")
#: Settings that a score depends on, as they are.
_IN_PROTOCOL = (
    "method",
    "batch_size",
    "accumulate",
    "precision",
    "seed",
    "deterministic",
    "validation_part",
)


@dataclass(frozen=True)
class TrainConfig(ObjectiveSettings):
    """Adapt a segmentation network from labelled source images to unlabelled target images."""

    #: Added to the refusal of another setting beside ``--resume``, with the run folder.
    INSTEAD_OF_RESUMING: ClassVar[str] = (
        "; a new run goes on from its weights by --model.start-from {}"
    )
    #: Settings that ``--help`` lists; ``--help all`` lists the rest.
    COMMON: ClassVar[tuple[str, ...]] = (
        "loss",
        "reduction",
        "method",
        "seed",
        "max_steps",
        "batch_size",
        "precision",
        "device",
        "eval_every",
        "maps",
        "run_dir",
        "resume",
        "classes",
        "source.root",
        "source.size",
        "target.root",
        "target.size",
        "model.name",
        "model.encoder",
        "model.encoder_weights",
        "model.start_from",
        "optimizer.lr",
        "weights.target_main",
    )

    # the options of the objectives follow the loss
    loss: str | None = option(
        None,
        f"objective on target predictions, none or one of {', '.join(OBJECTIVE_NAMES)} "
        "(default: entropy for minent, else none)",
        LOSSES,
        value="NAME",
        group="method and objective",
    )
    reduction: Literal["mean", "balanced", "sum"] = option(
        "balanced", "how target pixels are averaged"
    )
    balance: float = option(
        1.0,
        "exponent of --reduction balanced: a pixel of a predicted class of n pixels weighs n ** -balance",
        at_least=0,
        at_most=1,
    )
    method: str = option(
        "minent",
        "; ".join(f"{name}: {method.summary}" for name, method in METHODS.items()),
        METHODS,
    )
    seed: int = option(
        0,
        "seed of weights, sample order and augmentation",
        at_least=0,
        at_most=LARGEST_SEED,
        group="training",
    )
    max_steps: int = option(700, "training steps", at_least=1, at_most=10**12)
    # a step holds all of its micro-batches
    batch_size: int = option(
        2,
        "source images, and target images, per micro-batch, over all processes",
        at_least=1,
        at_most=10_000,
    )
    accumulate: int = option(
        1, "micro-batches whose gradients are averaged into one step", at_least=1, at_most=10_000
    )
    precision: str = option(
        "float32",
        "number format of the network; objectives and scores are always float32",
        PRECISIONS,
    )
    deterministic: bool = option(
        False, "only operations that repeat bit for bit on the same machine; may be slower"
    )
    compile: bool = option(
        False, "compile the network with torch.compile: a minute at the start, faster after it"
    )
    workers: int = option(
        0, "processes that read images ahead", at_least=0, at_most=128, of_machine=True
    )
    device: str = option("auto", "cpu, cuda, or auto", of_machine=True)
    eval_every: int = option(
        175,
        "steps between scores on the target validation set and checkpoints",
        at_least=1,
        group="scores, checkpoints, pictures",
    )
    log_every: int = option(25, "steps between lines in metrics.jsonl", at_least=1)
    batch_norm_after: str | None = option(
        None,
        "domain whose batch norm statistics are mixed in after training, target or none "
        "(default: target for methods that read target images, none where --model.batch-norm is given)",
        BATCH_NORM_AFTER,
    )
    bn_alpha: float | None = option(None, BN_ALPHA_HELP, at_least=0, at_most=1)
    validation_part: list[float] = option(
        [0.0, 1.0],
        "share of the target's validation images to score",
        at_least=0,
        at_most=1,
        value="FROM,TO",
    )
    maps: int = option(8, "validation images whose entropy maps are written at the end", at_least=0)
    run_dir: str | None = option(
        None, "folder of this run; default: a new one under runs/", value="DIR", group="run folder"
    )
    resume: bool = option(False, "continue the run in --run-dir")
    classes: str | None = option(
        None,
        "names such as field,wall, a YAML file with colours and ids, or CVAT's labelmap.txt; default: those in the "
        "labels of your folders, else Cityscapes' 19",
        value="CLASSES",
        group="classes",
    )
    source: SourceConfig = section(SourceConfig, "source images, labelled")
    target: TargetDataConfig = section(TargetDataConfig, "target images, adapted to")
    demo: DemoConfig = section(DemoConfig, "built-in demo pair, where no root is given")
    bands: BandConfig = section(BandConfig, "bands of images that are no 8-bit RGB")
    model: ModelConfig = section(ModelConfig, "network")
    optimizer: settings.OptimizerConfig = section(
        settings.OptimizerConfig, "optimiser and its schedule"
    )
    weights: settings.WeightConfig = section(
        settings.WeightConfig, "how much each part of the loss counts"
    )
    discriminator: settings.DiscriminatorConfig = section(
        settings.DiscriminatorConfig, "discriminators of --method advent, one per head"
    )
    self_training: settings.SelfTrainingConfig = section(
        settings.SelfTrainingConfig, "teacher, pseudo-labels and views of --method self-training"
    )

    def check(self) -> None:
        """Check settings against each other. Raises InputError: naming the flag and a value that would be right."""
        check_settings(self)
        method, model, target = METHODS[self.method], self.model, self.target
        root = "target" if self.source.root is None else "source"
        refusals = {
            f"--demo: names a built-in world, and --{root}.root is given; leave one of them out": (
                self.demo != DemoConfig() and not self.uses_demo()
            ),
            "--model.name: pretrained is the network of a folder; name it by --model.start-from DIR": (
                model.name == "pretrained" and model.start_from is None
            ),
            f"--loss: --method {self.method} takes no objective; leave --loss out, or take --method minent": (
                method.loss is None and self.objective != "none"
            ),
            "--target.labelled-use: instead needs --target.labelled-part, a share such as 0.0625": (
                target.labelled_use == "instead" and not target.labelled_part
            ),
            "--source.style: --target.labelled-use instead has no source images; leave it out": (
                target.replaces_source() and self.source.style != "none"
            ),
            f"--model.batch-norm: --method {self.method} passes no target image; leave it out, or add "
            "--batch-norm-after target": model.batch_norm == "target" and not self._reads_target,
        }
        for sentence, is_wrong in refusals.items():
            if is_wrong:
                raise InputError(sentence)
        check_options(replace(self, loss=self.objective), trained=method.loss is not None)

    @property
    def _reads_target(self) -> bool:
        return METHODS[self.method].uses_target or self.batch_norm_after == "target"

    @property
    def objective(self) -> str:
        """The objective on target predictions, which without ``--loss`` depends on the method."""
        return self.loss or METHODS[self.method].loss or "none"

    def resolved(self) -> TrainConfig:
        """Fill in objective, network, rate, horizon and weights: defaults that follow from other settings.

        MinEnt without an objective is the control.
        """
        model, rates, weights = self.model.resolved(), self.optimizer, self.weights
        without = self.method == "minent" and self.objective == "none"
        method = "control" if without else self.method
        row = METHODS[method]
        if rates.lr is None:
            random = model.encoder_weights is None and model.start_from is None
            lr = settings.RANDOM_RATE if random else settings.PRETRAINED_RATE
            rates = replace(rates, lr=lr)
        if not rates.horizon:
            rates = replace(rates, horizon=self.max_steps)
        if weights.aux is None:
            weights = replace(weights, aux=row.aux)
        usual = target_weight(method, self.objective)
        if weights.target_main is None:
            weights = replace(weights, target_main=usual.main)
        if weights.relative is None:
            weights = replace(weights, relative=usual.relative)
        return replace(
            self,
            method=method,
            loss=self.objective,
            model=model,
            optimizer=rates,
            weights=weights,
        )

    def for_network(self, network: nn.Module) -> TrainConfig:
        """Fill in the open settings of batch norm by the network's layers.

        A network with few batch norm layers is not re-estimated unasked.
        """
        from dem_apps.test_time_methods.normalisation import batch_norms
        from seg.models.batch_norm import batch_norm_normalises

        uses_target, policy = METHODS[self.method].uses_target, self.model.batch_norm
        after = self.batch_norm_after
        if policy is None:
            policy = "target" if uses_target and after == "none" else "source"
            if not batch_norms(network):
                policy = "trainable"
        if after is None:
            unasked = uses_target and self.model.batch_norm is None
            after = "target" if unasked and batch_norm_normalises(network) else "none"
        return replace(self, batch_norm_after=after, model=replace(self.model, batch_norm=policy))

    @property
    def title(self) -> str:
        """Method, objective, style and labelled part in a few words, for pictures, pages and tables."""
        parts, source, target = [METHODS[self.method].title], self.source, self.target
        if self.method == "source" and self.batch_norm_after == "target":
            parts.append("then target statistics")
        if self.loss not in (None, "none"):
            parts = self._objective_title(parts[0])
        if source.style != "none":
            parts.append(f"{source.style} style")
        if source.rare_class_temperature is not None:
            parts.append("rare class sampling")
        if target.labelled_part:
            parts.append(f"{target.labelled_part:g} of target labelled ({target.labelled_use})")
        return ", ".join(parts)

    def _objective_title(self, method: str) -> list[str]:
        """``["MinEnt + AdaDEM", "momentum 0.2", "balanced"]``; MinEnt is entropy, which is not named twice."""
        plain = self.method == "minent" and self.loss == "entropy"
        parts = [method if plain else f"{method} + {objective_title(str(self.loss))}"]
        for name, value in given_options(self).items():
            parts.append(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}")
        balanced = self.reduction == "balanced" and self.balance != 1.0
        return [*parts, self.reduction + (f" n^-{self.balance:g}" if balanced else "")]

    def summary(self) -> dict[str, str]:
        """Return method, data, network, batch norm and length of the training in words."""
        domains = [self.target] if self.target.replaces_source() else [self.source, self.target]
        batch_norm = str(self.model.batch_norm)
        if self.batch_norm_after == "target":
            batch_norm += ", for scores with a share of the statistics of target"
        return {
            "method": self.title,
            "data": " -> ".join(data.root for data in domains if data.root) or "demo pair",
            "network": self.model.described(),
            "batch_norm": batch_norm,
            "precision": self.precision,
            "length": f"{self.max_steps} steps, seed {self.seed}",
        }

    def protocol(self) -> Document:
        """Return the settings that a score depends on; None where they have no effect."""
        model, source, target = self.model, self.source, self.target
        document = {
            "train_size": {"source": source.size, "target": target.size},
            "source_style": source.described_style(),
            "rare_class_temperature": source.rare_class_temperature,
            "labelled_part": target.labelled_part or 0.0,
            "labelled_use": target.labelled_use if target.labelled_part else None,
            "upsampling": f"bilinear, align_corners={model.align_corners}",
            "batch_norm": model.batch_norm,
            "batch_norm_statistics": self._statistics(),
            "bn_alpha": self.bn_alpha if self.batch_norm_after == "target" else None,
            "initialisation": model.start_from or model.encoder_weights or "random",
            "network": model.architecture(),
            **{name: getattr(self, name) for name in _IN_PROTOCOL},
            **self._objective_in_protocol(),
            "options": given_options(self),
            "method_options": {name: asdict(each) for name, each in self.method_options().items()},
            "optimizer": asdict(self.optimizer),
            "weights": asdict(self.weights),
        }
        if self.uses_demo():
            document["demo"] = asdict(self.demo)
        return document

    def _objective_in_protocol(self) -> Document:
        """Return the objective and how its pixels are averaged."""
        if METHODS[self.method].loss is None:
            return dict.fromkeys(("loss", "reduction", "balance"))
        balanced = self.loss != "none" and self.reduction == "balanced"
        balance = self.balance if balanced else None
        return {"loss": self.loss, "reduction": self.reduction, "balance": balance}

    def _statistics(self) -> str:
        """Return the domains whose batches move the running statistics in training, in a few words."""
        policy, moved_by = self.model.batch_norm, set[str]()
        if policy not in ("frozen", "target"):
            moved_by.update(self.target.labelled_domains())
        if policy not in ("frozen", "source") and METHODS[self.method].uses_target:
            moved_by.add("target")
        if len(moved_by) == 2:
            return "moved by both domains"
        return f"moved by {moved_by.pop()} alone" if moved_by else UNMOVED

    def uses_demo(self) -> bool:
        """Return whether training reads the built-in pair.

        It does where no root is given for the data that it opens.
        """
        return self.source.root is None and not (
            self.target.replaces_source() and self.target.root is not None
        )

    def data(self) -> dict[str, Any]:
        """The arguments of :func:`seg.data.domains.open_pair` that say what is opened."""
        return {
            "source": self.source,
            "target": self.target,
            "classes_file": self.classes,
            "validation_part": self.validation_part,
            "demo": self.demo,
            "bands": self.bands,
        }

    def method_options(self) -> dict[str, Any]:
        """The section that ``method`` declares, by its name; empty without one."""
        section = METHODS[self.method].section
        return {} if section is None else {section: getattr(self, section)}

    def objective_options(self) -> dict[str, Any]:
        """The exponent of the balanced mean, and the options that were given, for :func:`dem_apps.build_objective`."""
        return {"balance": self.balance, **given_options(self)}


def resolve(config: TrainConfig, device: str) -> tuple[TrainConfig, list[str]]:
    """Fill in every default that does not depend on the network's layers.

    A size is chosen where the images are large or of several sizes. A size that is given, or that
    an augmentation sets, stays.

    Returns:
        The settings, and lines for the user.
    """
    from seg.data.image_sizes import quick_size

    lines = list[str]()
    domains: dict[str, Any] = {"source": config.source, "target": config.target}
    if config.target.replaces_source():
        del domains["source"]
    for domain, data in domains.items():
        if data.root is None or data.size is not None:
            continue
        quick = quick_size(domain, Path(data.root), data.layout, data.augmentation, device)
        if quick is not None:
            size, line = quick
            lines.append(line)
            domains[domain] = replace(data, size=size)
    return replace(config.resolved(), **domains), lines
