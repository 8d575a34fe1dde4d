"""Settings of a trained network: its SPEC, and what the network's files do not say; the same in every command."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dem_apps.errors import InputError
from dem_apps.runtime.documents import Document, Settings
from dem_apps.runtime.settings import option
from seg.data.files import checked_size
from seg.models.settings import LEAST_TILE
from seg.scores.checkpoints import CHECKPOINT_HELP, CHECKPOINTS

#: The file that seg.adapt writes, and the folder of adapted weights beside it.
ADAPT_FILE, ADAPTED = "adapt.json", "adapted"
#: A folder of a network holds one of them.
_FILES = ("config.yaml", "config.json", ADAPT_FILE)
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
        "architecture of a file of weights, as segmentation-models-pytorch spells it: Unet, FPN, …",
        value="NAME",
    )
    encoder: str | None = option(
        None, "encoder of a file of weights; default: resnet34", value="NAME"
    )
    classes: str | None = option(
        None,
        "names such as background,crop,weed, the number of classes, or a YAML file with colours and ids; default: the "
        "network's",
        value="CLASSES",
    )
    checkpoint: str = option("auto", CHECKPOINT_HELP, CHECKPOINTS)
    mean: list[float] | None = option(
        None,
        "mean of each channel on the scale of --scale; default: the mean in the network's files, "
        "else its encoder's",
        value="R,G,B",
    )
    std: list[float] | None = option(
        None, "standard deviation of each channel on the scale of --scale", above=0, value="R,G,B"
    )
    channels: Literal["rgb", "bgr"] | None = option(
        None, "order of the channels that the network sees; default: what its files say, else rgb"
    )
    scale: int | None = option(
        None,
        "largest pixel value before normalisation, 1 or 255; default 1; --scale without --mean and "
        "--std means no normalisation",
        value="{255,1}",
    )
    size: list[int] | str | None = option(
        "auto",
        "input size W,H, own (training size) or null (image size); default auto is own, or null with --tile",
        value="W,H",
    )

    def check_network(self) -> str:
        """Check that the settings name one network, before torch is imported.

        Returns:
            The network's SPEC, of ``--model`` or ``--run``.

        Raises:
            InputError: a setting that is missing or does not fit.
        """
        run: str | None = getattr(self, "run", None)
        if (self.model is None) == (run is None):
            raise InputError(
                "--model: is missing, or beside --run; give --model SPEC, or --run RUN where there is one"
            )
        spec = self.model or str(run)
        check_spec(spec, "--model" if self.model else "--run")
        self._check_weights(spec)
        self._check_normalisation()
        if self.size not in ("auto", "own"):
            checked_size(self.size, "--size")
        return spec

    def _check_weights(self, spec: str) -> None:
        """Raises an InputError for flags that belong to another kind of SPEC."""
        if self.weights and not is_function(spec):
            raise InputError(
                f"--weights: {spec} has its own weights; give the flag with package.module:function"
            )
        if Path(spec).is_file():
            if not (self.architecture and self.classes):
                raise InputError(
                    f"--model: {spec} is a file of weights; give --architecture, --encoder and --classes as "
                    "segmentation-models-pytorch spells them, such as Unet, resnet34 and 3"
                )
        elif self.architecture or self.encoder:
            flag = "architecture" if self.architecture else "encoder"
            raise InputError(f"--{flag}: {spec} is no file of weights; leave the flag out")

    def _check_normalisation(self) -> None:
        """Raises an InputError for a mean without a deviation, or an unknown scale."""
        if (self.mean is None) != (self.std is None):
            missing = "std" if self.std is None else "mean"
            raise InputError(
                f"--{missing}: is missing; --mean R,G,B and --std R,G,B are given together"
            )
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if numbers is not None and len(numbers) != 3:
                raise InputError(f"--{name}: expected three numbers R,G,B, got {len(numbers)}")
        if self.scale not in (None, 1, 255):
            raise InputError(f"--scale: expected 255 or 1, got {self.scale}")


def given_settings(settings: Settings, kind: type[NetworkSettings]) -> Document:
    """The settings of a class, among those of a command, that are not the defaults."""
    defaults = vars(kind())
    given = {name: settings.get(name, default) for name, default in defaults.items()}
    return {name: value for name, value in given.items() if value != defaults[name]}


@dataclass(frozen=True)
class RunSettings(NetworkSettings):
    """A trained network, or the one of a run."""

    run: str | None = option(None, "run folder in place of --model", value="RUN", exists=True)


@dataclass(frozen=True)
class PredictSettings(RunSettings):
    """A trained network that predicts on a device."""

    tile: int | None = option(
        None,
        "side of the tiles that a larger image is predicted by; default: the whole image at once",
        at_least=LEAST_TILE,
        group="how",
    )
    device: str = option("auto", "cpu, cuda, or auto")


def is_function(spec: str) -> bool:
    """Return whether a SPEC is ``package.module:function``."""
    return _FUNCTION.fullmatch(spec) is not None and not Path(spec).exists()


def check_spec(spec: str, flag: str) -> None:
    """Raises an InputError for a SPEC that names no function, file or folder of a network."""
    path = Path(spec)
    if not is_function(spec) and not path.exists():
        raise InputError(f"{flag}: {spec}: no such folder or file; {_KINDS}")
    if path.is_dir() and not any((path / name).is_file() for name in _FILES):
        raise InputError(
            f"{flag}: {spec}: holds neither config.yaml, as a run does, nor config.json; {_KINDS}"
        )
