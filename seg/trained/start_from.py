"""``--model.start-from``: puts the weights of a trained network into one that is to be trained.

They may lie in a run folder, in a folder of segmentation-models-pytorch's or transformers' ``save_pretrained``, or in a
file, a state dict as ``.pth`` or ``.safetensors``. C, C' are numbers of classes, ours and theirs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from dem_apps.errors import InputError
from seg.data.labels import ClassSet
from seg.data.pixel_format import RGB, PixelFormat, rgb_format
from seg.models.settings import ModelConfig
from seg.models.smp_network import preprocessing
from seg.models.weights_file import (
    FoundWeights,
    Tensors,
    find_weights,
    fitted,
    load_weights,
    over_bands,
)
from seg.scores.checkpoints import chosen_by
from seg.trained.description import PlainLogits
from seg.trained.open import open_trained
from seg.trained.run_network import ENCODER, input_of_run, only_encoder, saved_run

FLAG = "--model.start-from"


def start_from(model: nn.Module, source: Path, classes: ClassSet | None = None) -> list[str]:
    """Put the weights of a folder or file into a network that is to be trained.

    Where their number of classes is another, the heads' last layers keep the random values that they have.

    Args:
        model: the network, whose weights are replaced.
        source: a run, a folder of ``save_pretrained``, or a file of weights.
        classes: meaning of the model's outputs; None is not compared.

    Returns:
        Notes for the user.

    Raises:
        InputError: weights that do not fit, or as many classes of other meanings.
    """
    read, source_classes = _read_weights(source, model)
    initial, weights, notes = model.state_dict(), dict(read.tensors), list(read.notes)
    if only_encoder(weights):
        weights |= {name: value for name, value in initial.items() if not name.startswith(ENCODER)}
        notes.append(f"{FLAG}: {source} holds an encoder alone; the heads begin at random")
        source_classes = None
    for name, value in over_bands(weights, initial, ENCODER).items():
        bands = f"{weights[name].shape[1]} bands; its weights are repeated over {value.shape[1]}"
        notes.append(f"{FLAG}: {name} of {source} sees {bands}")
        weights[name] = value
    replaced = _other_heads(weights, initial)
    if replaced:
        rows = f"{len(weights[replaced[0]])} classes and this training {len(initial[replaced[0]])}"
        notes.append(
            f"{FLAG}: {source} predicts {rows}, so the last layer of every head begins at random "
            f"({', '.join(replaced)})"
        )
        weights |= {name: initial[name] for name in replaced}
    elif classes is not None and source_classes is not None:
        _check_meanings(source, source_classes, classes)
    hint = ""
    if _is_saved(source):
        hint = " (--model.name pretrained trains the one that it describes)"
    load_weights(model, weights, f"{FLAG}: {source} does not fit this network{hint}")
    return notes


def _is_saved(source: Path) -> bool:
    """Return whether a source is a folder of ``save_pretrained``, and no run."""
    return (source / "config.json").is_file()


def _check_meanings(source: Path, source_classes: ClassSet, classes: ClassSet) -> None:
    """Refuse classes in another order by their names: colours are for display, and ids differ between data sets."""
    pairs = zip(source_classes.names, classes.names, strict=False)
    for output, (before, now) in enumerate(pairs):
        if before != now:
            raise InputError(
                f"{FLAG}: output {output} of {source} is '{before}', and in --classes '{now}'; give the classes that "
                "it was trained with, in their order"
            )


def _read_weights(source: Path, model: nn.Module) -> tuple[FoundWeights, ClassSet | None]:
    """Weights, and what their outputs mean where that is known."""
    if source.is_file():
        return find_weights(source, model, FLAG), None
    if _is_saved(source):
        # building a network must not move the training's random numbers
        with torch.random.fork_rng(devices=[]):
            trained = open_trained(str(source))
        network, description = trained.network, trained.description
        if isinstance(network, PlainLogits):
            network = network.network
        weights, classes, notes = network.state_dict(), description.classes, []
    else:
        _, classes, checkpoint, state = saved_run(source)
        weights, description = state["model"], input_of_run(source)
        notes = [f"{FLAG}: {source}, checkpoint {checkpoint} ({chosen_by(checkpoint)})"]
    if description.order == "bgr":
        notes.append(
            f"{FLAG}: {source} saw images as {description.numbers}; training here has ImageNet's in RGB"
        )
    read = fitted(weights, model)
    return replace(read, notes=(*read.notes, *notes)), classes


def _other_heads(weights: Tensors, initial: Tensors) -> list[str]:
    """Names of the tensors that differ in their number of rows alone, C' in place of C, if none differs otherwise."""
    shared = sorted(initial.keys() & weights.keys())
    different = [name for name in shared if initial[name].shape != weights[name].shape]
    for name in different:
        if name.startswith(ENCODER) or initial[name].shape[1:] != weights[name].shape[1:]:
            return []
    return different


def normalisation(model: ModelConfig) -> PixelFormat:
    """8-bit RGB as the weights saw it that a training starts from; ImageNet's where there are none or none says."""
    if model.start_from is not None:
        start = Path(model.start_from)
        if not start.is_dir():
            return RGB
        saved = _is_saved(start)
        description = open_trained(str(start)).description if saved else input_of_run(start)
        is_rgb = description.order == "rgb" and description.pixels.is_rgb
        return description.pixels if is_rgb else RGB
    known = preprocessing(str(model.encoder)) if model.encoder_weights is not None else None
    return RGB if known is None else rgb_format(known["image_mean"], known["image_std"])
