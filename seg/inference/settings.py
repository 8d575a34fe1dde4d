"""Settings of ``python -m seg.evaluate`` and ``python -m seg.export``."""

from __future__ import annotations

from dataclasses import dataclass

from dem_apps.runtime.settings import option, section
from seg.config import BATCH_NORM_AFTER, BN_ALPHA_HELP
from seg.data.settings import LAYOUT_CHOICES, LAYOUT_HELP
from seg.models.settings import LEAST_TILE, OVERLAP_HELP, TILE_HELP
from seg.scores.checkpoints import CHECKPOINT_HELP, CHECKPOINTS

RAW_FORMATS = ("png16", "npz")


@dataclass(frozen=True)
class ExportConfig:
    """Write prediction, overlay and entropy map of every image in a folder."""

    run: list[str] = option(
        [], "run folder; several (--run A B) are compared side by side as well", value="RUN [RUN ...]",
        group="what is read and written", needed=True, exists=True,
    )  # fmt: skip
    images: str = option(
        "", "folder of images, searched with its subfolders, or one image", value="DIR", needed=True, exists=True
    )
    out: str = option("", "folder to write to, new or empty", value="DIR", needed=True)
    checkpoint: str = option("auto", CHECKPOINT_HELP, CHECKPOINTS, group="network")
    size: list[int] | str | None = option(
        "auto", "size that the network sees; run: its target size; null: the image's; auto: run, with --tile null",
        value="W,H",
    )  # fmt: skip
    tile: int | None = option(None, TILE_HELP, at_least=LEAST_TILE)
    tile_overlap: int | None = option(None, OVERLAP_HELP, at_least=0)
    device: str = option("auto", "cpu, cuda, or auto")
    raw: list[str] = option(
        [], "entropy as numbers as well: png16 (0 to 65535 is 0 to 1; --raw alone), npz (nats), or both", RAW_FORMATS,
        value="{png16,npz}", group="more pictures and numbers",
    )  # fmt: skip
    label_ids: bool = option(False, "predictions as label ids as well, as the class set's label images hold them")


@dataclass(frozen=True)
class TargetConfig:
    """Other data than the run's own target."""

    root: str | None = option(None, "folder of the data set to score on; default: the run's", value="DIR", exists=True)
    layout: str | None = option(None, f"{LAYOUT_HELP}; default: as the run's", LAYOUT_CHOICES, value="NAME")
    size: list[int] | None = option(
        None, "width and height to resize images to; default: the run's, with --tile the images'", at_least=1,
        value="W,H",
    )  # fmt: skip


@dataclass(frozen=True)
class EvaluateConfig:
    """Score a run on the target's validation set."""

    run: str = option("", "run folder to score", value="RUN", group="what is scored", needed=True, exists=True)
    checkpoint: str = option("auto", CHECKPOINT_HELP, CHECKPOINTS)
    scales: list[float] = option(
        [1.0], "sizes of the image whose predictions are averaged, such as 0.75,1,1.25", above=0, at_most=16,
        value="X,X", group="how",
    )  # fmt: skip
    flip: bool = option(False, "average with the predictions of the mirrored image")
    tile: int | None = option(None, TILE_HELP, at_least=LEAST_TILE)
    tile_overlap: int | None = option(None, OVERLAP_HELP, at_least=0)
    batch_norm_after: str = option(
        "none", "target: batch norm statistics re-estimated on the target's training images; none: the checkpoint's",
        BATCH_NORM_AFTER,
    )  # fmt: skip
    bn_alpha: float | None = option(None, BN_ALPHA_HELP, at_least=0, at_most=1)
    device: str = option("auto", "cpu, cuda, or auto")
    save_predictions: str | None = option(
        None, "folder for predictions as label ids, one PNG an image; default: none are written", value="DIR",
        group="what is written",
    )  # fmt: skip
    out: str | None = option(
        None, "JSON file for the scores and how they came about, never overwritten; default: none", value="FILE"
    )
    target: TargetConfig = section(TargetConfig, "other images than the run's own target")
