"""Settings of ``python -m seg.evaluate`` and ``python -m seg.export``."""

from __future__ import annotations

from dataclasses import dataclass

from dem_apps.errors import InputError
from dem_apps.runtime.arguments import flags
from dem_apps.runtime.settings import option, section
from dem_apps.runtime.signals import command_line
from seg.data.settings import LAYOUT_CHOICES, LAYOUT_HELP
from seg.trained.settings import IGNORE_HELP, PredictSettings, given_settings

RAW_FORMATS = ("png16", "npz", "probabilities")


def next_command(module: str, config: PredictSettings) -> str:
    """The command line of a module for the same network, which sees images in the same way."""
    return command_line(module, flags(given_settings(vars(config), PredictSettings)))


@dataclass(frozen=True)
class ExportConfig(PredictSettings):
    """Write prediction, overlay and entropy map of every image in a folder."""

    images: str = option(
        "",
        "folder of images, searched with its subfolders, or one image",
        value="DIR",
        needed=True,
        exists=True,
        group="what is read and written",
    )
    out: str = option("", "folder to write to, new or empty", value="DIR", needed=True)
    raw: list[str] = option(
        [],
        "numbers to write: entropy as png16 (65535 is 1) or npz (nats), probabilities of every class",
        RAW_FORMATS,
        value="{png16,npz,probabilities}",
        group="more pictures and numbers",
    )
    min_probability: float = option(
        0.0,
        "probability of the predicted class below which a pixel is left out, as one without data",
        at_least=0,
        below=1,
    )
    label_ids: bool = option(
        False, "predictions as label ids as well, as the class set's label images hold them"
    )
    pre_labels: bool = option(
        False,
        "predictions to correct in CVAT as well: SegmentationClass/ and labelmap.txt (Segmentation mask 1.1)",
    )


@dataclass(frozen=True)
class TargetConfig:
    """Other data than the run's own target."""

    root: str | None = option(
        None, "folder of the data set to score on; default: the run's", value="DIR", exists=True
    )
    layout: str | None = option(
        None, f"{LAYOUT_HELP}; default: as the run's", LAYOUT_CHOICES, value="NAME"
    )
    size: list[int] | None = option(
        None,
        "width and height to resize images to; default: the run's, with --tile the images'",
        at_least=1,
        value="W,H",
    )


@dataclass(frozen=True)
class EvaluateConfig(PredictSettings):
    """Score a network on a run's target validation set, or on labelled images of a folder."""

    images: str | None = option(
        None,
        "folder of images to score on; default: the run's target",
        value="DIR",
        exists=True,
        group="what is scored",
    )
    labels: str | None = option(
        None,
        "folder of their label images, a.png of a.jpg; others are left out",
        value="DIR",
        exists=True,
    )
    ignore: list[int] = option([], IGNORE_HELP, at_least=0, at_most=255, value="ID,ID")
    save_predictions: str | None = option(
        None,
        "folder for predictions as label ids, one PNG an image; default: none are written",
        value="DIR",
        group="what is written",
    )
    out: str | None = option(
        None,
        "JSON file for the scores and how they came about, never overwritten; default: none",
        value="FILE",
    )
    target: TargetConfig = section(TargetConfig, "other images than the run's own target")

    def check(self) -> None:
        """Raises an InputError for flags that do not fit together."""
        self.check_network()
        if (self.images is None) != (self.labels is None):
            missing = "images" if self.images is None else "labels"
            raise InputError(
                f"--{missing}: is missing; --images DIR and --labels DIR are given together"
            )
        if self.images is not None and self.target != TargetConfig():
            raise InputError("--target: names other images than --images; give one of them")
        if self.images is None and self.ignore:
            raise InputError(
                "--ignore: belongs to --images and --labels; a run's classes say what is ignored"
            )
