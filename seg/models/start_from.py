"""``--model.start-from``: puts the weights of a trained network into one that is to be trained.

They may lie in a run folder, in a folder of segmentation-models-pytorch's or transformers' ``save_pretrained``, or in a
file, a state dict as ``.pth`` or ``.safetensors``. C, C' are numbers of classes, ours and theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from dem_apps.errors import InputError
from seg.data.labels import ClassSet
from seg.models.description import Description, PlainLogits
from seg.models.run_network import ENCODER, only_encoder, read_run
from seg.models.trained import open_trained
from seg.models.weights_file import load_weights, read_weights, without_prefix

FLAG = "--model.start-from"
#: smp's head for whole images, which training has no use for.
_UNUSED = "classification_head."
_SHOWN = 4


def start_from(model: nn.Module, source: Path, classes: ClassSet | None = None) -> list[str]:
    """Put the weights of a folder or file into a network that is to be trained; returns notes for the user.

    Where their number of classes is another, the tensors that depend on it, those of the heads' last layers, keep the
    random values that the network was built with. So do heads where only an encoder is brought, as :mod:`seg.convert`
    makes one of the weights that ADVENT starts from.

    Raises InputError: nothing that can be read, weights of another network, or as many classes with other meanings than
    ``classes``.
    """
    weights, theirs, description = _found(source)
    weights = {name: value for name, value in weights.items() if not name.startswith(_UNUSED)}
    own, (given, _) = model.state_dict(), without_prefix(weights, model)
    notes: list[str] = []
    alone = _of_the_encoder(given, own)
    if alone:
        given |= {name: value for name, value in own.items() if not name.startswith(ENCODER)}
        notes.append(f"{FLAG}: {source} holds an encoder alone; the heads begin at random")
    for name in _over_bands(given, own):
        before, now = given[name].shape[1], own[name].shape[1]
        notes.append(f"{FLAG}: {name} of {source} sees {before} bands; its weights are repeated over {now}")
        # scaled so that bands alike give what they gave before
        given[name] = given[name][:, [band % before for band in range(now)]] * (before / now)
    replaced = _of_other_classes(given, own)
    if replaced:
        name = min(replaced)
        names = ", ".join(sorted(replaced)[:_SHOWN]) + (", …" if len(replaced) > _SHOWN else "")
        notes.append(
            f"{FLAG}: {source} predicts {given[name].shape[0]} classes and this training {own[name].shape[0]}, so the "
            f"last layer of every head begins at random ({names})"
        )
        given |= {name: own[name] for name in replaced}
    elif classes is not None and theirs is not None and not alone:
        _refuse_other_classes(source, theirs, classes)
    hint = " (--model.name pretrained trains the one that it describes)" if (source / "config.json").is_file() else ""
    load_weights(model, given, f"{FLAG}: {source} does not fit this network{hint}")
    return notes + _about_images(source, description)


def _found(source: Path) -> tuple[dict[str, Tensor], ClassSet | None, Description]:
    """Weights, what their outputs mean where that is known, and what images went through before them."""
    if source.is_file():
        return read_weights(source, FLAG)[0], None, Description()
    if not (source / "config.json").is_file():
        _, classes, _, state = read_run(source)
        return state["model"], classes, Description()
    with torch.random.fork_rng(devices=[]):  # building a network must not move the training's random numbers
        trained = open_trained(str(source))
    network = trained.network.network if isinstance(trained.network, PlainLogits) else trained.network
    return network.state_dict(), trained.description.classes, trained.description


def _of_the_encoder(given: dict[str, Tensor], own: Mapping[str, Tensor]) -> bool:
    """Whether the weights are those of an encoder; where they lack its prefix they get it."""
    if only_encoder(given):
        return True
    inside = {name.removeprefix(ENCODER) for name in own if name.startswith(ENCODER)}
    bare = {name for name in given if name not in own}
    if not inside or not inside <= given.keys() or bare - inside:
        return False
    for name in inside:
        given[f"{ENCODER}{name}"] = given.pop(name)
    return True


def _of_other_classes(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> set[str]:
    """Names of the tensors that differ by having C' rows in place of C; none if anything else differs too."""
    different = {name for name, value in own.items() if name in given and given[name].shape != value.shape}
    pairs = {(own[name].shape[:1], given[name].shape[:1]) for name in different}
    alike = all(own[name].shape[1:] == given[name].shape[1:] and not name.startswith(ENCODER) for name in different)
    return different if alike and len(pairs) == 1 else set()


def _over_bands(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """Names of the encoder's convolutions that differ by the number of bands that they see and by nothing else."""
    pairs = {name: (value, given[name]) for name, value in own.items() if name.startswith(ENCODER) and name in given}
    return [
        name
        for name, (ours, theirs) in pairs.items()
        if ours.ndim == theirs.ndim == 4 and ours.shape != theirs.shape and ours[:, 0].shape == theirs[:, 0].shape
    ]


def _refuse_other_classes(source: Path, theirs: ClassSet, ours: ClassSet) -> None:
    """Compares names in their order: colours are for display, and ids differ between data sets."""
    for output, (their, our) in enumerate(zip(theirs.names, ours.names, strict=False)):
        if their != our:
            raise InputError(
                f"{FLAG}: output {output} of {source} is '{their}', and in --classes '{our}'; give the classes that it "
                "was trained with, in their order"
            )


def _about_images(source: Path, description: Description) -> list[str]:
    """A note on what its images went through, if training here does something else."""
    usual = Description()
    if (description.order, description.mean, description.std) == (usual.order, usual.mean, usual.std):
        return []
    mean, std = (" ".join(f"{value:.3g}" for value in values) for values in (description.mean, description.std))
    return [
        f"{FLAG}: {source} saw images as {description.order.upper()} with mean {mean} and deviation {std}; training "
        "here normalises by ImageNet's in RGB"
    ]
