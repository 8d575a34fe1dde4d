"""Settings of a trained network: its SPEC, and what the network's files do not say; the same in every command."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dem_apps.errors import InputError
from dem_apps.runtime.settings import option
from seg.data.files import checked_size
from seg.scores.checkpoints import CHECKPOINT_HELP, CHECKPOINTS

#: What seg.adapt writes beside the folder of adapted weights.
ADAPT_FILE, ADAPTED = "adapt.json", "adapted"
IGNORE_HELP = "ids of label images that are no class and count nowhere"
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_KINDS = (
    "expected a run folder, a folder of segmentation-models-pytorch's or transformers' save_pretrained, one that "
    "seg.adapt wrote, a file of weights with --architecture, or package.module:function with --weights FILE; nothing "
    "is downloaded"
)


@dataclass(frozen=True)
class NetworkSettings:
    """A trained network, and how it sees images."""

    model: str | None = option(
        None,
        "trained network: run folder, folder of smp's or transformers' save_pretrained or of seg.adapt, file of "
        "weights with --architecture, or package.module:function",
        value="SPEC",
        group="network",
        code="model",
    )
    weights: str | None = option(None, "file of weights for package.module:function", value="FILE")
    architecture: str | None = option(
        None,
        "of a file of weights, as segmentation-models-pytorch spells it: Unet, FPN, …",
        value="NAME",
    )
    encoder: str | None = option(
        None, "of a file of weights, likewise; default: resnet34", value="NAME"
    )
    classes: str | None = option(
        None,
        "YAML file of the classes' names, colours and ids, names such as background,crop,weed, or their number; "
        "default: the network's own",
        value="FILE",
    )
    checkpoint: str = option("auto", CHECKPOINT_HELP, CHECKPOINTS)
    mean: list[float] | None = option(
        None,
        "what becomes 0 in each channel, on --scale; default: what the network's files say, else its encoder's",
        value="R,G,B",
    )
    std: list[float] | None = option(
        None, "what becomes 1 above it, likewise", above=0, value="R,G,B"
    )
    channels: Literal["rgb", "bgr"] | None = option(
        None, "order of the channels that the network sees; default: what its files say, else rgb"
    )
    scale: int | None = option(
        None,
        "pixels reach from 0 to it before mean and deviation; alone: without these; default: 1",
        value="{255,1}",
    )
    size: list[int] | str | None = option(
        "auto",
        "size that the network sees; own: its training's; null: each image's; auto: own, without --tile",
        value="W,H",
    )

    def check_network(self, run: str | None = None) -> None:
        """Raises an InputError, before torch is imported, for settings that name no network; ``run`` is --run."""
        if not self.model and not run:
            raise InputError(
                "--model: is missing; give --model SPEC, or --run RUN where there is one"
            )
        if self.model and run:
            raise InputError("--run: a network is named by --model already; give one of them")
        spec = self.model or str(run)
        if self.weights and not is_function(spec):
            raise InputError(f"--weights: {spec} has its own; give it with package.module:function")
        check_spec(spec, "--model" if self.model else "--run")
        of_file = Path(spec).is_file()
        if of_file and not self.architecture:
            flags = "--architecture, --encoder and --classes as smp spells them, such as Unet, resnet34 and 3"
            raise InputError(f"--model: {spec} is a file of weights; give {flags}")
        for name in ("architecture", "encoder"):
            if getattr(self, name) and not of_file:
                raise InputError(
                    f"--{name}: is of a file of weights, and {spec} is none; leave it out"
                )
        for name in ("mean", "std"):
            if (numbers := getattr(self, name)) is not None and len(numbers) != 3:
                raise InputError(f"--{name}: expected three numbers R,G,B, got {len(numbers)}")
        if (self.mean is None) != (self.std is None):
            missing = "std" if self.std is None else "mean"
            raise InputError(
                f"--{missing}: is missing; --mean R,G,B and --std R,G,B are given together"
            )
        if self.scale not in (None, 1, 255):
            raise InputError(f"--scale: expected 255 or 1, got {self.scale}")
        if not isinstance(self.size, str) or self.size not in ("auto", "own"):
            checked_size(self.size, "--size")


def is_function(spec: str) -> bool:
    """Whether a SPEC is ``package.module:function``."""
    return _FUNCTION.fullmatch(spec) is not None and not Path(spec).exists()


def check_spec(spec: str, flag: str) -> None:
    """Raises an InputError for a SPEC that names nothing that is there."""
    path = Path(spec)
    if not is_function(spec) and not path.exists():
        raise InputError(f"{flag}: {spec}: no such folder or file; {_KINDS}")
    if path.is_dir() and not any(
        (path / name).is_file() for name in ("config.yaml", "config.json", ADAPT_FILE)
    ):
        raise InputError(
            f"{flag}: {spec}: holds neither config.yaml, as a run does, nor config.json; {_KINDS}"
        )
