"""Pretrained weights of an encoder: of an installed package, of a file, or of the library's hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from seg.config import PRETRAINED, ModelConfig, package_file
from seg.data.pixel_format import RGB, PixelFormat
from seg.models.weights_file import SAFETENSORS, find_weights, load_weights, over_bands

FLAG = "--model.encoder-weights"
_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt", SAFETENSORS)


def weights_file(encoder: str, weights: str | None) -> Path | None:
    """The file of an encoder's weights by name or path; None where the library has to find them, or for random ones."""
    if weights is not None and Path(weights).suffix in _SUFFIXES:
        return Path(weights)
    return package_file(encoder) if weights == "imagenet" else None


def load_encoder(encoder: nn.Module, name: str, file: Path) -> None:
    """Put the weights of a file into an encoder; an InputError where they do not fit."""
    found, own = find_weights(file, encoder, FLAG), encoder.state_dict()
    tensors = found.tensors
    if not found.complete and name.startswith("tu-"):
        with torch.device("meta"):
            whole = timm.create_model(name[3:]).state_dict()
        tensors = _of_timm(tensors, own, whole)
    load_weights(encoder, tensors | over_bands(tensors, own), f"{FLAG}: {file} does not fit the encoder {name}")


def _of_timm(given: dict[str, Tensor], own: Mapping[str, Tensor], whole: Mapping[str, Any]) -> dict[str, Tensor]:
    """A classifier's tensors by the names of an encoder that is a part of timm's ``whole``.

    Their names are timm's, or others in timm's order, as of TensorFlow's EfficientNets. A part's say ``stem_0`` where
    the whole's say ``stem.0``.
    """
    if [value.shape for value in given.values()] == [value.shape for value in whole.values()]:
        given = dict(zip(whole, given.values(), strict=True))
    dotted = {name.replace("_", "."): value for name, value in given.items()}
    keys = {name: name.removeprefix("model.").replace("_", ".") for name in own}
    return {name: dotted[key] for name, key in keys.items() if key in dotted} or given


def described(model: ModelConfig, pixels: PixelFormat) -> str:
    """Where the weights of a run's encoder come from, and how its images are normalised, if not as usual."""
    source = f"weights of {model.start_from}"
    if model.start_from is None and model.encoder_weights is None:
        source = f"random weights{'' if package_file(PRETRAINED) else ' (the extra pretrained brings others)'}"
    elif model.start_from is None:
        file = weights_file(str(model.encoder), model.encoder_weights)
        source = f"{model.encoder_weights} weights of {file or 'its library, downloaded once'}"
    mean, std = (" ".join(f"{value:.3g}" for value in values) for values in (pixels.mean, pixels.std))
    usual = pixels == RGB or not pixels.is_rgb
    return source if usual else f"{source}, images normalised by mean {mean} and deviation {std}"
