"""The weights that a training starts from: ``--model.start-from`` puts those of a trained network into a new one.

They may lie in a run folder, in a folder of segmentation-models-pytorch's or transformers' ``save_pretrained``, or in a
file, a state dict as ``.pth`` or ``.safetensors``. C, C' are numbers of classes, ours and theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

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
from seg.trained.description import Description, PlainLogits
from seg.trained.open import open_network
from seg.trained.run_network import ENCODER, input_of_run, only_encoder, saved_run
from seg.trained.settings import NetworkSettings

FLAG = "--model.start-from"


class _Folder(NamedTuple):
    """A trained network as its folder holds it."""

    weights: Tensors
    classes: ClassSet | None  #: meaning of its outputs, where it is known
    description: Description  #: how it saw images
    notes: list[str]  #: for the user


@dataclass(frozen=True)
class Start:
    """What the weights of a training start from; a folder of a trained network is read once, when it is needed."""

    model: ModelConfig  #: of the network that is to be trained

    @property
    def pixels(self) -> PixelFormat:
        """8-bit RGB as the weights saw it; ImageNet's where there are none or none says."""
        model = self.model
        if model.start_from is None:
            known = preprocessing(str(model.encoder)) if model.encoder_weights else None
            return RGB if known is None else rgb_format(known["image_mean"], known["image_std"])
        if not Path(model.start_from).is_dir():
            return RGB
        description = self._folder.description
        is_rgb = description.order == "rgb" and description.pixels.is_rgb
        return description.pixels if is_rgb else RGB

    def put_into(self, network: nn.Module, classes: ClassSet | None = None) -> list[str]:
        """Put the weights of ``--model.start-from`` into a network that is to be trained.

        Where their number of classes is another, the heads' last layers keep the random values that they have.

        Args:
            network: its weights are replaced.
            classes: meaning of its outputs; None is not compared.

        Returns:
            Notes for the user.

        Raises:
            InputError: weights that do not fit, or as many classes of other meanings.
        """
        if self.model.start_from is None:
            return []
        source = Path(self.model.start_from)
        read, source_classes = self._found(source, network)
        initial, weights, notes = network.state_dict(), dict(read.tensors), [*read.notes]
        if only_encoder(weights):
            weights |= {
                name: value for name, value in initial.items() if not name.startswith(ENCODER)
            }
            notes.append(f"{FLAG}: {source} holds an encoder alone; the heads begin at random")
            source_classes = None
        for name, value in over_bands(weights, initial, ENCODER).items():
            bands = (
                f"{weights[name].shape[1]} bands; its weights are repeated over {value.shape[1]}"
            )
            notes.append(f"{FLAG}: {name} of {source} sees {bands}")
            weights[name] = value
        replaced = _other_heads(weights, initial)
        if replaced:
            rows = (
                f"{len(weights[replaced[0]])} classes and this training {len(initial[replaced[0]])}"
            )
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
        load_weights(network, weights, f"{FLAG}: {source} does not fit this network{hint}")
        return notes

    def _found(self, source: Path, network: nn.Module) -> tuple[FoundWeights, ClassSet | None]:
        """The network's weights in the source, and what their outputs mean where that is known."""
        if source.is_file():
            return find_weights(source, network, FLAG), None
        read = fitted(self._folder.weights, network)
        return replace(read, notes=(*read.notes, *self._folder.notes)), self._folder.classes

    @cached_property
    def _folder(self) -> _Folder:
        source = Path(str(self.model.start_from))
        if _is_saved(source):
            # building a network must not move the training's random numbers
            with torch.random.fork_rng(devices=[]):
                trained = open_network(NetworkSettings(model=str(source)))
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
        return _Folder(weights, classes, description, notes)


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


def _other_heads(weights: Tensors, initial: Tensors) -> list[str]:
    """Names of the tensors that differ in their number of rows alone, C' in place of C, if none differs otherwise."""
    shared = sorted(initial.keys() & weights.keys())
    different = [name for name in shared if initial[name].shape != weights[name].shape]
    for name in different:
        if name.startswith(ENCODER) or initial[name].shape[1:] != weights[name].shape[1:]:
            return []
    return different
