"""Settings of ``python -m seg.adapt``, and the defaults that follow from method and network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError
from dem_apps.objectives import AVERAGES, OBJECTIVE_NAMES
from dem_apps.objectives.flags import ObjectiveSettings, check_options, given_options
from dem_apps.runtime.setting_checks import check_paths, check_settings
from dem_apps.runtime.settings import LARGEST_SEED, option
from dem_apps.test_time_methods import LEARNING_METHODS, METHODS
from seg.config import BN_ALPHA_HELP
from seg.data.files import check_out
from seg.models.settings import LEAST_TILE
from seg.trained.settings import IGNORE_HELP, NetworkSettings

#: Arguments of :class:`dem_apps.TestTimeAdapter`, by name.
Options = dict[str, Any]
MODES = ("epochs", "online", "episodic")
#: Methods that need source images.
NEED_SOURCE = ("lab", "eata")
#: Methods that leave batch norm's statistics as they are.
STORED = ("none", "lab")
#: A share of the images' statistics, then a few batches of Tent from there, whose look is at other images.
STEP = "step"
#: bn for networks with batch norm, with labels step, of which they decide; else tent.
AUTO = "auto"
#: Defaults of methods that learn.
LEARNING: Options = {"loss": "entropy", "reduction": "balanced", "lr": 1e-2}
#: Objectives, averages and rates, by Adam, of the step that labels choose from; docs/adaptation.md compares them.
STEP_CHOICES: Options = {
    "objective": ("adadem", "entropy"),
    "reduction": AVERAGES,
    "lr": (3e-4, 1e-4),
}


@dataclass(frozen=True)
class AdaptConfig(ObjectiveSettings, NetworkSettings):
    """Adapt a trained network to a folder of unlabelled images, and say whether that helped."""

    loss: str | None = option(
        None,
        f"objective that is minimised; default: {LEARNING['loss']}",
        OBJECTIVE_NAMES,
        value="NAME",
        group="objective",
    )
    reduction: str | None = option(
        None,
        f"how pixels are averaged; default: {LEARNING['reduction']}",
        AVERAGES,
    )
    images: str | None = option(
        None,
        "folder of images, searched with its subfolders; without it and --model the built-in demo",
        value="DIR",
        exists=True,
        group="what is read and written",
    )
    out: str | None = option(
        None, "new folder for the results; default: one under runs/", value="DIR"
    )
    labels: str | None = option(
        None,
        "folder with label images of some of the images, a.png of a.jpg: a score decides",
        value="DIR",
        exists=True,
    )
    ignore: list[int] = option([], IGNORE_HELP, at_least=0, at_most=255, value="ID,ID")
    source: str | None = option(
        None,
        f"folder of images the network was trained for, of --method {' and '.join(NEED_SOURCE)}",
        value="DIR",
        exists=True,
    )
    method: str = option(
        AUTO,
        f"method, {STEP} (bn and batches of tent, by --labels), or {AUTO} ({STEP} with --labels, tent without batch "
        "norm, else bn)",
        (AUTO, STEP, *METHODS),
        group="how it is adapted",
    )
    bn_alpha: float | None = option(
        None,
        f"{BN_ALPHA_HELP}, or 0.1 where batches are adapted to one by one",
        at_least=0,
        at_most=1,
    )
    lr: float | None = option(
        None,
        f"learning rate; default: {LEARNING['lr']:g}",
        at_least=0,
    )
    mode: str = option(
        "epochs",
        "order of learning: epochs = first all images, online = after each batch, episodic = anew for each image",
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
    accept: bool = option(
        False, "keep the adapted network even where the evidence speaks against it"
    )
    seed: int = option(
        0,
        "seed of the order of images and of what a method draws",
        at_least=0,
        at_most=LARGEST_SEED,
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
        check_paths(self)
        if self.out is not None:
            check_out(Path(self.out), Path(self.images) if self.images else None)
        self._check_method()
        self._check_step()
        learns = self.method == AUTO or self._learns_as_told
        if self._of_learning and not learns:
            raise InputError(
                f"--{self._of_learning[0]}: --method {self.method} takes none; leave it out, or take --method tent"
            )
        check_options(replace(self, loss=self.loss or LEARNING["loss"]), trained=learns)

    def _check_method(self) -> None:
        method = f"--method {self.method}"
        if self.method in NEED_SOURCE and self.source is None:
            raise InputError(f"--source: {method} needs a folder of unlabelled source images")
        if self.source is not None and self.method not in NEED_SOURCE:
            raise InputError(f"--source: {method} reads no source images; leave it out")
        if self.bn_alpha is not None and self.method in STORED:
            raise InputError(f"--bn-alpha: {method} leaves batch norm as it is; leave it out")

    def _check_step(self) -> None:
        if self.method == STEP and self.labels is None:
            raise InputError("--labels: --method step needs labels, which decide whether it stays")
        if self.method == STEP and self.mode != "epochs":
            raise InputError("--mode: --method step learns once from a few images; leave it out")
        if self.tile is not None and (self.mode != "epochs" or self.size != "auto"):
            raise InputError(
                "--tile: windows are learnt from in epochs, at their own size; leave --mode and --size out"
            )

    @property
    def _of_learning(self) -> list[str]:
        """The given settings of learning."""
        names = [name for name in LEARNING if getattr(self, name) is not None]
        return names + ["mode"] * (self.mode == "online") + ["epochs"] * (self.epochs > 1)

    @property
    def _learns_as_told(self) -> bool:
        """True for a method that learns by the user's objective and rate.

        Labels choose the objective and rate of a step.
        """
        return self.method != STEP and self.method in LEARNING_METHODS

    @property
    def adapter_method(self) -> str:
        """The method of :class:`dem_apps.TestTimeAdapter`."""
        return "tent" if self.method == STEP else self.method

    def resolved(self, batch_norm: bool) -> AdaptConfig:
        """Fill in the method that ``auto`` stands for, and the defaults of learning if it learns.

        Args:
            batch_norm: whether most normalisation layers are batch norm.
        """
        config = self
        if self.method == AUTO:
            method = STEP if self.labels is not None and self.mode == "epochs" else "bn"
            if not batch_norm or given_options(self) or self._of_learning:
                method = "tent"
            config = replace(self, method=method)
        if not config._learns_as_told:
            return config
        missing = {name: LEARNING[name] for name in LEARNING if getattr(self, name) is None}
        return replace(config, **missing)

    def steps(self) -> list[Options]:
        """Return the arguments of the adapters that a step tries; none for other methods."""
        if self.method != STEP:
            return []
        return [
            dict(zip(STEP_CHOICES, each, strict=True)) for each in product(*STEP_CHOICES.values())
        ]

    def takes_statistics_first(self) -> bool:
        """Return whether a share of the folder's statistics is taken once, before anything learns.

        Otherwise an adapter takes them batch by batch. This holds for a stream, for each image
        alone, and for a share of 1, as published.
        """
        if self.method in STORED or self.mode != "epochs":
            return False
        return self.method in ("bn", STEP) or self.bn_alpha != 1.0

    def adapter_options(self, num_classes: int) -> Options:
        """Arguments of :class:`dem_apps.TestTimeAdapter` besides the method."""
        options: Options = {}
        if self.mode == "episodic":
            options["predict"] = "after"
        if self.takes_statistics_first():
            options["batch_norm"] = "stored"
        elif self.method not in STORED:
            options["bn_alpha"] = self.bn_alpha
        if self.method == STEP:
            options["optimizer"] = "adam"
        if self.adapter_method in LEARNING_METHODS:
            options |= {
                "objective": self.loss,
                "objective_options": given_options(self),
                "num_classes": num_classes,
                "lr": self.lr,
                "reduction": self.reduction,
                "seed": self.seed,
            }
        return options
