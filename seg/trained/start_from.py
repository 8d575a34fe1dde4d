"""``--model.start-from``: puts the weights of a trained network into one that is to be trained.

They may lie in a run folder, in a folder of segmentation-models-pytorch's or transformers' ``save_pretrained``, or in a
file, a state dict as ``.pth`` or ``.safetensors``. C, C' are numbers of classes, ours and theirs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from dem_apps.errors import InputError
from seg.data.labels import ClassSet
from seg.data.pixel_format import RGB, PixelFormat, rgb_format
from seg.models.settings import ModelConfig
from seg.models.smp_network import preprocessing
from seg.models.weights_file import FoundWeights, find_weights, fitted, load_weights, over_bands
from seg.scores.checkpoints import chosen_by
from seg.trained.description import PlainLogits
from seg.trained.open import open_trained
from seg.trained.run_network import ENCODER, as_seen, only_encoder, saved_run

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
    found, theirs = _found(source, model)
    own, given, notes = model.state_dict(), dict(found.tensors), list(found.notes)
    if only_encoder(given):
        given |= {name: value for name, value in own.items() if not name.startswith(ENCODER)}
        notes.append(f"{FLAG}: {source} holds an encoder alone; the heads begin at random")
        theirs = None
    for name, value in over_bands(given, own, ENCODER).items():
        bands = f"{given[name].shape[1]} bands; its weights are repeated over {value.shape[1]}"
        notes.append(f"{FLAG}: {name} of {source} sees {bands}")
        given[name] = value
    replaced = _other_heads(given, own)
    if replaced:
        rows = f"{len(given[replaced[0]])} classes and this training {len(own[replaced[0]])}"
        notes.append(
            f"{FLAG}: {source} predicts {rows}, so the last layer of every head begins at random "
            f"({', '.join(replaced)})"
        )
        given |= {name: own[name] for name in replaced}
    elif classes is not None and theirs is not None:
        _check_meanings(source, theirs, classes)
    hint = ""
    if (source / "config.json").is_file():
        hint = " (--model.name pretrained trains the one that it describes)"
    load_weights(model, given, f"{FLAG}: {source} does not fit this network{hint}")
    return notes


def _check_meanings(source: Path, theirs: ClassSet, ours: ClassSet) -> None:
    """Refuse classes in another order by their names: colours are for display, and ids differ between data sets."""
    for output, (their, our) in enumerate(zip(theirs.names, ours.names, strict=False)):
        if their != our:
            raise InputError(
                f"{FLAG}: output {output} of {source} is '{their}', and in --classes '{our}'; give the classes that it "
                "was trained with, in their order"
            )


def _found(source: Path, model: nn.Module) -> tuple[FoundWeights, ClassSet | None]:
    """Weights, and what their outputs mean where that is known."""
    if source.is_file():
        return find_weights(source, model, FLAG), None
    if (source / "config.json").is_file():
        # building a network must not move the training's random numbers
        with torch.random.fork_rng(devices=[]):
            trained = open_trained(str(source))
        network, description = trained.network, trained.description
        if isinstance(network, PlainLogits):
            network = network.network
        weights, classes, notes = network.state_dict(), description.classes, []
    else:
        _, classes, checkpoint, state = saved_run(source)
        weights, description = state["model"], as_seen(source)
        notes = [f"{FLAG}: {source}, checkpoint {checkpoint} ({chosen_by(checkpoint)})"]
    if description.order == "bgr":
        seen = f"{source} saw images as {description.numbers}"
        notes.append(f"{FLAG}: {seen}; training here has ImageNet's in RGB")
    found = fitted(weights, model)
    return dataclasses.replace(found, notes=(*found.notes, *notes)), classes


def _other_heads(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors that differ in their number of rows alone, C' in place of C, if none differs otherwise."""
    different = [
        name for name, value in own.items() if name in given and given[name].shape != value.shape
    ]
    for name in different:
        if name.startswith(ENCODER) or own[name].shape[1:] != given[name].shape[1:]:
            return []
    return sorted(different)


def normalisation(model: ModelConfig) -> PixelFormat:
    """8-bit RGB as the weights saw it that a training starts from; ImageNet's where there are none or none says."""
    if model.start_from is not None:
        start = Path(model.start_from)
        if not start.is_dir():
            return RGB
        saved = (start / "config.json").is_file()
        description = open_trained(str(start)).description if saved else as_seen(start)
        return (
            description.pixels if description.order == "rgb" and description.pixels.is_rgb else RGB
        )
    if model.encoder_weights is not None:
        found = preprocessing(str(model.encoder))
        if found is not None:
            return rgb_format(found["image_mean"], found["image_std"])
    return RGB
