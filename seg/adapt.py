"""``python -m seg.adapt``: adapt a trained network to a folder of unlabelled images, and judge whether it helped."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dem_apps.errors import InputError
from dem_apps.objectives import AVERAGES, OBJECTIVE_NAMES
from dem_apps.objectives.flags import ObjectiveSettings, check_options, given_options
from dem_apps.runtime.command import run_command
from dem_apps.runtime.files import refuse_used_folder
from dem_apps.runtime.setting_checks import check_settings
from dem_apps.runtime.settings import LARGEST_SEED, option, parse_config
from dem_apps.test_time_methods import METHODS
from seg.config import BN_ALPHA_HELP
from seg.data.files import left_out
from seg.models.settings import LEAST_TILE
from seg.trained.settings import IGNORE_HELP, NetworkSettings

if TYPE_CHECKING:
    from seg.adaptation.images import Predictions
    from seg.adaptation.result import Result
    from seg.trained.trained_network import TrainedNetwork

MODES = ("epochs", "online", "episodic")
#: Methods that need source images, and how many of them are read.
NEED_SOURCE, SOURCE_IMAGES = ("lab", "eata"), 64
#: Methods that leave batch norm's statistics as they are.
STORED = ("none", "lab")
#: A share of the images' statistics, then a few batches of Tent from there, whose look is at other images.
STEP = "step"
#: bn for networks with batch norm, with labels step, of which they decide; else tent.
AUTO = "auto"
#: Defaults of methods that learn, and of the step, by Adam; docs/adaptation.md compares them.
LEARNING: dict[str, Any] = {"loss": "entropy", "reduction": "balanced", "lr": 1e-2}
STEP_LEARNING: dict[str, Any] = {"loss": "adadem", "reduction": "mean", "lr": 3e-4}
#: Objectives, averages and rates of the step that labels choose from.
STEP_CHOICES: dict[str, tuple[Any, ...]] = {
    "objective": ("adadem", "entropy"),
    "reduction": AVERAGES,
    "lr": (3e-4, 1e-4),
}


@dataclass(frozen=True)
class AdaptConfig(ObjectiveSettings, NetworkSettings):
    """Adapt a trained network to a folder of unlabelled images, and say whether that helped."""

    loss: str | None = option(
        None,
        f"objective that is minimised; default: {LEARNING['loss']}, of {STEP} {STEP_LEARNING['loss']}",
        OBJECTIVE_NAMES,
        value="NAME",
        group="objective",
    )
    reduction: str | None = option(
        None,
        f"how pixels are averaged; default: {LEARNING['reduction']}, of {STEP} {STEP_LEARNING['reduction']}",
        AVERAGES,
    )
    images: str | None = option(
        None,
        "folder of images, searched with its subfolders; without it and --model the built-in demo",
        value="DIR",
        group="what is read and written",
    )
    out: str | None = option(None, "new folder; default: one under runs/", value="DIR")
    labels: str | None = option(
        None,
        "folder with label images of some of the images, a.png of a.jpg: a score decides",
        value="DIR",
    )
    ignore: list[int] = option([], IGNORE_HELP, at_least=0, at_most=255, value="ID,ID")
    source: str | None = option(
        None,
        f"folder of images the network was trained for, of --method {' and '.join(NEED_SOURCE)}",
        value="DIR",
    )
    method: str = option(
        AUTO,
        f"one of {', '.join(METHODS)}, or {STEP}: bn, then a few batches of tent; {AUTO}: bn, with --labels "
        f"{STEP}, or tent where little is batch norm or learning is asked for",
        (AUTO, STEP, *METHODS),
        value="NAME",
        group="how it is adapted",
    )
    bn_alpha: float | None = option(None, BN_ALPHA_HELP, at_least=0, at_most=1)
    lr: float | None = option(
        None,
        f"learning rate; default: {LEARNING['lr']:g}, of {STEP} {STEP_LEARNING['lr']:g}",
        at_least=0,
    )
    mode: str = option(
        "epochs",
        "epochs: learn from the folder, then predict it; online: predict each batch, then learn from it; "
        "episodic: begin anew with every image",
        MODES,
    )
    epochs: int = option(
        1, "passes over the folder; of episodic: steps per image", at_least=1, at_most=10_000
    )
    batch_size: int = option(4, "images per step", at_least=1)
    tile: int | None = option(
        None,
        "side of the windows that images, such as large scenes, are read, learnt from and predicted by; default: "
        "the whole image",
        at_least=LEAST_TILE,
    )
    accept: bool = option(False, "take the adaptation even where the evidence speaks against it")
    precision: str = option(
        "float32", "of the network; scores are always float32", ("float32", "bf16")
    )
    seed: int = option(
        0, "of the order of images and of what a method draws", at_least=0, at_most=LARGEST_SEED
    )
    device: str = option("auto", "cpu, cuda, or auto")

    def check(self) -> None:
        """Raises an InputError for flags that do not fit together."""
        check_settings(self)
        if (self.model is None) != (self.images is None):
            missing = "model" if self.model is None else "images"
            raise InputError(
                f"--{missing}: is missing; give --model SPEC and --images DIR, or neither for the demo"
            )
        if self.model is not None:
            self.check_network()
        if self.out is not None:
            refuse_used_folder(Path(self.out), "--out")
        if (self.method in NEED_SOURCE) != (self.source is not None):
            what = (
                "needs a folder of unlabelled source images"
                if self.source is None
                else "reads no source images"
            )
            raise InputError(f"--source: --method {self.method} {what}")
        for name in ("images", "labels", "source"):
            if (folder := getattr(self, name)) is not None and not Path(folder).exists():
                raise InputError(f"--{name}: {folder} is no folder")
        if (
            self.out
            and self.images
            and Path(self.out).resolve().is_relative_to(Path(self.images).resolve())
        ):
            raise InputError(
                f"--out: {self.out} lies in --images, where its pictures would count as images"
            )
        if self.bn_alpha is not None and self.method in STORED:
            raise InputError(
                f"--bn-alpha: --method {self.method} leaves batch norm as it is; leave it out"
            )
        if self.tile is not None and (self.mode != "epochs" or self.size != "auto"):
            flag = "size" if self.mode == "epochs" else "mode"
            raise InputError(
                f"--{flag}: with --tile windows are learnt from at their own size in epochs; leave it out"
            )
        if self.method == STEP and (self.mode != "epochs" or self.epochs > 1):
            raise InputError(
                "--mode: --method step learns once from a few images; leave --mode and --epochs out"
            )
        may_learn = self.method == AUTO or METHODS[self.adapter_method].learns
        asked = self._asked_of_learning()
        if asked and not may_learn:
            instead = "leave it out, or take --method tent"
            raise InputError(f"--{asked[0]}: --method {self.method} learns nothing; {instead}")
        check_options(
            dataclasses.replace(self, loss=self.loss or LEARNING["loss"]), trained=may_learn
        )

    def _asked_of_learning(self) -> list[str]:
        """The given settings of learning."""
        given = [name for name in LEARNING if getattr(self, name) is not None]
        return given + ["mode"] * (self.mode == "online") + ["epochs"] * (self.epochs > 1)

    @property
    def adapter_method(self) -> str:
        """The method of :class:`dem_apps.TestTimeAdapter`."""
        return "tent" if self.method == STEP else self.method

    def resolved(self, batch_norm: bool) -> AdaptConfig:
        """With the method that ``auto`` stands for, and the defaults of learning if it learns.

        ``batch_norm`` is whether most normalisation layers are batch norm.
        """
        config = self
        if self.method == AUTO:
            method = STEP if self.labels is not None and self.mode == "epochs" else "bn"
            if not batch_norm or given_options(self) or self._asked_of_learning():
                method = "tent"
            config = dataclasses.replace(self, method=method)
        learning = STEP_LEARNING if config.method == STEP else LEARNING
        filled = {
            name: default for name, default in learning.items() if getattr(self, name) is None
        }
        return dataclasses.replace(
            config, **(filled if METHODS[config.adapter_method].learns else {})
        )

    def steps(self) -> list[dict[str, Any]]:
        """Arguments of the adapters of the step that are tried, none of other methods; labels choose from several."""
        as_default = all(getattr(self, name) == value for name, value in STEP_LEARNING.items())
        if self.method != STEP:
            return []
        if self.labels is None or not as_default:
            return [{}]
        return [
            dict(zip(STEP_CHOICES, each, strict=True)) for each in product(*STEP_CHOICES.values())
        ]

    def takes_statistics_first(self) -> bool:
        """Whether a share of the folder's statistics is taken once, before anything learns.

        Else an adapter takes them batch by batch: of a stream, of each image alone, and as published for a share of 1.
        """
        if self.method in STORED or self.mode != "epochs":
            return False
        return self.method in ("bn", STEP) or self.bn_alpha != 1.0

    def adapter_options(self, num_classes: int) -> dict[str, Any]:
        """Arguments of :class:`dem_apps.TestTimeAdapter` besides the method."""
        options: dict[str, Any] = {"predict": "after"} if self.mode == "episodic" else {}
        if self.takes_statistics_first():
            options["batch_norm"] = "stored"
            options |= {"optimizer": "adam"} if self.method == STEP else {}
        elif self.method not in STORED:
            options["bn_alpha"] = self.bn_alpha
        if METHODS[self.adapter_method].learns:
            options |= {
                "objective": self.loss,
                "objective_options": given_options(self),
                "num_classes": num_classes,
            }
            options |= {"lr": self.lr, "reduction": self.reduction, "seed": self.seed}
        return options


def adapt(config: AdaptConfig) -> Result:
    """Open, predict, adapt while a monitor looks, predict again and write; an InputError for what does not fit."""
    config.check()
    from dem_apps.runtime.device import torch_device
    from dem_apps.runtime.files import new_folder, new_run_dir
    from dem_apps.test_time_methods import method_class
    from dem_apps.test_time_methods.normalisation import affine_parameters
    from seg.adaptation.page import adaptation_page
    from seg.adaptation.result import write_result
    from seg.models.batch_norm import batch_norm_normalises
    from seg.trained.open import open_network

    device = torch_device(config.device)
    config = _with_demo(config)
    trained = open_network(config)
    config = config.resolved(batch_norm_normalises(trained.network))
    if method_class(config.adapter_method).parameters == "normalisation" and not affine_parameters(
        trained.network
    ):
        raise InputError(
            f"--method {config.method}: learns scale and shift of normalisation layers, and {trained.spec} has none; "
            "cotta learns all weights, lab changes colours alone"
        )
    out = Path(config.out) if config.out else new_run_dir("adapt", config.method)
    with new_folder(out, "--out") as part:
        trained.network.to(device)
        result, trained, predictions = _adapted(config, trained, part, out)
        write_result(part, result, trained, adaptation_page(result, predictions))
    result.print(out)
    return result


def _adapted(
    config: AdaptConfig, trained: TrainedNetwork, part: Path, out: Path
) -> tuple[Result, TrainedNetwork, Predictions]:
    """The adaptation, whose predictions are written into ``part``, which becomes ``out``."""
    from dem_apps import TestTimeAdapter
    from seg.adaptation.adaptation import (
        Adaptation,
        colours_of,
        in_precision,
        quickest_convolutions,
        share_that_bf16_moves,
    )
    from seg.adaptation.images import STAGES, ImageFolder, Predictions
    from seg.adaptation.normalisation_trial import tried_normalisations
    from seg.adaptation.result import Result
    from seg.data.label_faults import labels_of
    from seg.data.layouts.layout import OWN_IDS

    description, device, classes = (
        trained.description,
        trained.device,
        trained.class_set.ignoring(config.ignore),
    )
    size = None if config.size is None or config.tile is not None else description.size
    folder = ImageFolder(Path(str(config.images)), description, size, device, config.tile)
    folder.limit_batches(trained.network)
    labels, layout, about_labels = dict[Path, Path](), OWN_IDS, list[str]()
    if config.labels is not None:
        labels, layout, about_labels = labels_of(
            Path(config.labels), folder.relative, folder.root, classes
        )
    predictions = Predictions(part, folder, classes, labels, trained, layout)
    trial = tried_normalisations(trained, predictions)
    trained = dataclasses.replace(trained, description=trial.used)
    folder.description = trial.used
    found = f"{len(folder)} of {len(folder) + len(folder.skipped)} images{left_out([Path(str(config.images))])}"
    notes = (*description.notes, *about_labels, *folder.notes)
    tried = [f"tried:    {trial.sentence}"] if trial.sentence else []
    lines = (f"network:  {trained.spec}", f"seen as:  {trial.used.said}", *tried)
    print(*notes, *lines, f"adapting: {found}, results in {out}", sep="\n", flush=True)
    method, options, prepare = (
        config.adapter_method,
        config.adapter_options(trained.num_classes),
        None,
    )
    if config.source is not None:
        source = ImageFolder(Path(config.source), trained.description, size, device, config.tile)
        batches = source.spread_batches(SOURCE_IMAGES, config.batch_size)
        if method == "lab":
            method, prepare = "none", colours_of(batches, trained)
        else:
            options["source_images"] = batches
    make = partial(TestTimeAdapter, trained.network, method, **options)
    if config.precision == "bf16":
        moved = share_that_bf16_moves(
            trained.network, folder.spread_batches(config.batch_size, config.batch_size)
        )
        print(
            f"bf16: {100 * moved:.1f} % of the pixels get another class than in float32", flush=True
        )
    passes = range(config.epochs if METHODS[method].learns and config.method != STEP else 0)
    seeds = [None if config.mode == "online" else (config.seed, epoch) for epoch in passes]
    learnt_from = [batch for seed in seeds for batch in folder.batches(config.batch_size, seed)]
    adaptation = Adaptation(
        trained,
        predictions,
        trial,
        make,
        learnt_from,
        config.mode,
        config.epochs,
        prepare,
        config.takes_statistics_first(),
        config.bn_alpha,
        config.accept,
        config.steps(),
    )
    with (
        in_precision(config.precision, device),
        quickest_convolutions(trained.network, folder.seen(0)[0][None]),
    ):
        outcome = adaptation.run()
    settings = {
        key: value
        for key, value in dataclasses.asdict(config).items()
        if key not in ("out", "device")
    }
    rows = {stage: predictions.rows[stage] for stage in STAGES}
    result = Result(
        {"method": config.method} | settings, classes, outcome, rows, folder.skipped, trial
    )
    return result, trained, predictions


def _with_demo(config: AdaptConfig) -> AdaptConfig:
    if config.model is not None:
        return config
    from seg.adaptation.demo import demo_network, foggy_target

    images, labels = map(str, foggy_target())
    return dataclasses.replace(
        config, model=str(demo_network()), images=images, labels=config.labels or labels
    )


def main() -> None:
    """The command."""
    example = "python -m seg.adapt --model runs/my-run --images photos --out adapted"
    if adapt(parse_config(AdaptConfig, "python -m seg.adapt", example)).skipped:
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
