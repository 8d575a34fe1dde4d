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
from seg.trained.description import Description, PlainLogits
from seg.trained.open import open_trained
from seg.trained.run_network import ENCODER, as_seen, only_encoder, saved_run

FLAG = "--model.start-from"
_SHOWN = 4


def start_from(model: nn.Module, source: Path, classes: ClassSet | None = None) -> list[str]:
    """Put the weights of a folder or file into a network that is to be trained; returns notes for the user.

    Where their number of classes is another, the heads' last layers keep the random values that they have. As many
    classes of other meanings than ``classes`` are refused.
    """
    found, theirs = _found(source, model)
    own, given, notes = model.state_dict(), dict(found.tensors), list(found.notes)
    alone = only_encoder(given)
    if alone:
        given |= {name: value for name, value in own.items() if not name.startswith(ENCODER)}
        notes.append(f"{FLAG}: {source} holds an encoder alone; the heads begin at random")
    for name, value in over_bands(given, own, ENCODER).items():
        before, now = given[name].shape[1], value.shape[1]
        notes.append(
            f"{FLAG}: {name} of {source} sees {before} bands; its weights are repeated over {now}"
        )
        given[name] = value
    replaced = _of_other_classes(given, own)
    if replaced:
        name = min(replaced)
        names = ", ".join(sorted(replaced)[:_SHOWN]) + (", …" if len(replaced) > _SHOWN else "")
        said = f"{FLAG}: {source} predicts {given[name].shape[0]} classes and this training {own[name].shape[0]}"
        notes.append(f"{said}, so the last layer of every head begins at random ({names})")
        given |= {name: own[name] for name in replaced}
    elif classes is not None and theirs is not None and not alone:
        # names in their order: colours are for display, and ids differ between data sets
        for output, (their, our) in enumerate(zip(theirs.names, classes.names, strict=False)):
            if their != our:
                said = f"output {output} of {source} is '{their}', and in --classes '{our}'"
                raise InputError(
                    f"{FLAG}: {said}; give the classes that it was trained with, in their order"
                )
    hint = (
        " (--model.name pretrained trains the one that it describes)"
        if (source / "config.json").is_file()
        else ""
    )
    load_weights(model, given, f"{FLAG}: {source} does not fit this network{hint}")
    return notes


def _found(source: Path, model: nn.Module) -> tuple[FoundWeights, ClassSet | None]:
    """Weights, and what their outputs mean where that is known."""
    if source.is_file():
        return _in_file(source, model), None
    if not (source / "config.json").is_file():
        _, classes, checkpoint, state = saved_run(source)
        found = fitted(state["model"], model)
        note = f"{FLAG}: {source}, checkpoint {checkpoint} ({chosen_by(checkpoint)})"
        return dataclasses.replace(
            found, notes=(*found.notes, note, *_of_bgr(source, as_seen(source)))
        ), classes
    # building a network must not move the training's random numbers
    with torch.random.fork_rng(devices=[]):
        trained = open_trained(str(source))
    network = (
        trained.network.network if isinstance(trained.network, PlainLogits) else trained.network
    )
    found = fitted(network.state_dict(), model)
    notes = [f"{FLAG}: of {source} {note}" for note in found.notes] + _of_bgr(
        source, trained.description
    )
    return dataclasses.replace(found, notes=tuple(notes)), trained.description.classes


def _of_bgr(source: Path, description: Description) -> list[str]:
    seen = (
        f"{FLAG}: {source} saw images as {description.numbers}; training here has ImageNet's in RGB"
    )
    return [seen] if description.order == "bgr" else []


def _in_file(file: Path, model: nn.Module) -> FoundWeights:
    """Weights of the network, of transformers' network in it, or of its encoder alone, as a classifier has them."""
    found = find_weights(file, model, FLAG)
    for part in dict(model.named_children()).keys() & {"network", "encoder"}:
        inner = None if found.complete else find_weights(file, model.get_submodule(part), FLAG)
        if inner is not None and inner.complete:
            return dataclasses.replace(
                inner, tensors={f"{part}.{name}": inner.tensors[name] for name in inner.tensors}
            )
    return found


def _of_other_classes(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> set[str]:
    """Names of the tensors that differ by having C' rows in place of C; none if anything else differs too."""
    different = {
        name for name, value in own.items() if name in given and given[name].shape != value.shape
    }
    pairs = {(own[name].shape[:1], given[name].shape[:1]) for name in different}
    alike = all(
        own[name].shape[1:] == given[name].shape[1:] and not name.startswith(ENCODER)
        for name in different
    )
    return different if alike and len(pairs) == 1 else set()


def normalisation(model: ModelConfig) -> PixelFormat:
    """8-bit RGB as the weights saw it that a training starts from; ImageNet's where there are none or none says."""
    pixels, start = RGB, None if model.start_from is None else Path(model.start_from)
    if start is None and model.encoder_weights is not None:
        found = preprocessing(
            {"encoder_name": model.encoder, "encoder_weights": model.encoder_weights}
        )
        pixels = RGB if found is None else rgb_format(found["image_mean"], found["image_std"])
    elif start is not None and start.is_dir():
        saved = (start / "config.json").is_file()
        description = open_trained(str(start)).description if saved else as_seen(start)
        pixels = description.pixels if description.order == "rgb" else RGB
    return pixels if pixels.is_rgb else RGB
