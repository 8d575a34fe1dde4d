"""``python -m seg.evaluate --run DIR``: the scores of a finished run on the target's validation images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import option, parse_config, section
from seg.config import BATCH_NORM_AFTER, LAYOUT_CHOICES, LAYOUT_HELP, LEAST_TILE, OVERLAP_HELP, TILE_HELP


@dataclass(frozen=True)
class TargetConfig:
    """Other data than the run's own target."""

    root: str | None = option(None, "folder of the data set to score on; default: the run's", value="DIR")
    layout: str | None = option(None, f"{LAYOUT_HELP}; default: as the run's", LAYOUT_CHOICES, value="NAME")
    size: list[int] | None = option(
        None,
        "width and height to resize images to; default: the run's, with --tile the images'",
        at_least=1,
        value="W,H",
    )


@dataclass(frozen=True)
class EvaluateConfig:
    """Score a run on the target's validation set."""

    run: str = option("", "run folder to score", value="RUN", group="what is scored", needed=True)
    checkpoint: Literal["auto", "last", "selected", "best"] = option(
        "auto", "which of its checkpoints; auto: selected, else last; best was chosen with target labels"
    )
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
    device: str = option("auto", "cpu, cuda, or auto")
    save_predictions: str | None = option(
        None, "folder for predictions as label ids, one PNG an image; default: none are written", value="DIR",
        group="what is written",
    )  # fmt: skip
    out: str | None = option(
        None, "JSON file for the scores and how they came about, never overwritten; default: none", value="FILE"
    )
    target: TargetConfig = section(TargetConfig, "other images than the run's own target")


def main() -> None:
    """The command."""
    config = parse_config(EvaluateConfig, "python -m seg.evaluate", "python -m seg.evaluate --run runs/my-run")
    from seg.inference.evaluate_run import evaluate_run

    evaluate_run(config)


if __name__ == "__main__":
    run_command(main)
