"""``python -m seg.convert --advent FILE``: a published checkpoint in ADVENT's key layout becomes a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import option, parse_config

_EXAMPLES = """\
python -m seg.convert --advent DeepLab_resnet.pth --run-dir runs/published
python -m seg.convert --advent DeepLab_resnet_pretrained_imagenet.pth --run-dir runs/advent-start
python -m seg.convert --advent synthia.pth --run-dir runs/synthia --classes classes.yaml"""


@dataclass(frozen=True)
class ConvertConfig:
    """Make a run folder from a published checkpoint, for seg.evaluate, seg.export and --model.start-from."""

    advent: str = option(
        "", "checkpoint in ADVENT's layout, with both heads", value="FILE", needed=True
    )
    run_dir: str = option("", "folder of the new run", value="DIR", needed=True)
    classes: str | None = option(
        None,
        "YAML file of the classes' names, colours and ids; default: Cityscapes' 19",
        value="FILE",
    )


def main() -> None:
    """The command."""
    config = parse_config(ConvertConfig, "python -m seg.convert", _EXAMPLES)
    from seg.trained.advent_weights import convert

    run = Path(config.run_dir)
    if convert(Path(config.advent), run, config.classes) == "encoder":
        train = "python -m seg.train --config configs/seg/gta5_cityscapes_minent.yaml --model.name deeplabv2-advent"
        start = f"--model.encoder-weights null --model.start-from {run}"
        print(
            f"run:   {run} (the encoder alone)\ntrain: {train} {start} --source.root GTA5 --target.root CITYSCAPES"
        )
    else:
        print(f"run:   {run}\nscore: python -m seg.evaluate --run {run} --target.root CITYSCAPES")


if __name__ == "__main__":
    run_command(main)
