"""``--model.start-from``: puts the weights of a trained network into one that is to be trained.

They may lie in a run folder, in a folder of segmentation-models-pytorch's or transformers' ``save_pretrained``, or in a
file, a state dict as ``.pth`` or ``.safetensors``. C, C' are numbers of classes, ours and theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from dem_apps.errors import InputError
from dem_apps.runtime.files import read_json
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.settings import from_dict
from seg.config import TrainConfig
from seg.data.labels import ClassSet, load_classes
from seg.models.folders import classes_of_labels, smp_weights
from seg.models.load_model import CLASSES_FILE, ENCODER, load_weights, only_encoder, run_classes, saved_weights
from seg.models.preprocessing import Preprocessing, read_preprocessor
from seg.models.smp_network import is_smp
from seg.models.transformers_network import TransformersNetwork, is_transformers, network_of_folder
from seg.models.weights_file import WeightsFile, read_weights

FLAG = "--model.start-from"
_SHOWN = 4


@dataclass(frozen=True)
class _Found:
    """Weights, what their outputs mean where that is known, and what images went through before them."""

    weights: WeightsFile
    classes: ClassSet | None = None
    preprocessing: Preprocessing | None = None


def start_from(model: nn.Module, source: Path, classes: ClassSet | None = None) -> list[str]:
    """Put weights into a network that is to be trained.

    Where their number of classes is another, the tensors that depend on it, those of the heads' last layers, keep the
    random values that the network was built with. So do heads where only an encoder is brought, as :mod:`seg.convert`
    makes one of the weights that ADVENT starts from.

    Args:
        model: takes the weights.
        source: a folder or a file, see this module.
        classes: what the model's C outputs are to mean, if C others are to be refused.

    Returns:
        sentences about what begins at random and what else to know; often none.

    Raises:
        InputError: nothing that can be read, weights of another network, or as many classes with other meanings.
    """
    found = _found(source, model)
    own = model.state_dict()
    given = found.weights.fitted(model)
    notes: list[str] = []
    alone = _of_the_encoder(given, own)
    if alone:
        given |= {name: value for name, value in own.items() if not name.startswith(ENCODER)}
        notes.append(f"{FLAG}: {source} brings an encoder, and the heads begin at random")
    repeated = _over_bands(given, own)
    if repeated:
        before, now = given[repeated[0]].shape[1], own[repeated[0]].shape[1]
        notes.append(
            f"{FLAG}: {source} sees {before} bands and this training {now}, so the weights of its first convolution "
            f"are repeated over them ({', '.join(repeated)})"
        )
        given |= {name: _repeated(given[name], now) for name in repeated}
    replaced, theirs = _of_other_classes(given, own)
    if replaced:
        names = ", ".join(sorted(replaced)[:_SHOWN]) + (", …" if len(replaced) > _SHOWN else "")
        ours = own[next(iter(replaced))].shape[0]
        notes.append(
            f"{FLAG}: {source} predicts {theirs} classes and this training {ours}, so the last layer of every head "
            f"begins at random ({names})"
        )
        given |= {name: own[name] for name in replaced}
    elif classes is not None and found.classes is not None and not alone:
        _refuse_other_classes(source, found.classes, classes)
    try:
        load_weights(model, given, str(source))
    except InputError as error:
        raise InputError(f"{FLAG}: {error}{_right_flags(source)}") from error
    return notes + _about_images(source, found.preprocessing)


def _found(source: Path, model: nn.Module) -> _Found:
    if source.is_file():
        return _Found(read_weights(source, FLAG))
    if not (source / "config.yaml").is_file() and (source / "config.json").is_file():
        config = read_json(source / "config.json")
        if isinstance(config, dict) and is_transformers(config):
            return _of_transformers(source, config, model)
        if isinstance(config, dict) and is_smp(config):
            file = source / CLASSES_FILE
            known = load_classes(str(file)) if file.is_file() else None
            return _Found(smp_weights(source)[0], known, read_preprocessor(source))
        raise InputError(
            f"{FLAG}: {source / 'config.json'} is neither segmentation-models-pytorch's nor transformers'; give the "
            "file of weights itself"
        )
    weights = WeightsFile(source, saved_weights(source))
    if only_encoder(weights.tensors):
        return _Found(weights)
    config = from_dict(TrainConfig, read_config(source), str(source / "config.yaml"))
    return _Found(weights, run_classes(source, config.classes))


def _of_transformers(source: Path, config: dict[str, object], model: nn.Module) -> _Found:
    if not isinstance(model, TransformersNetwork):
        raise InputError(
            f"{FLAG}: {source} holds a network of transformers; add --model.name pretrained, which trains that network"
        )
    weights = TransformersNetwork(network_of_folder(source, config)).state_dict()
    return _Found(WeightsFile(source, weights), classes_of_labels(config), read_preprocessor(source))


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


def _of_other_classes(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> tuple[set[str], int]:
    """Names of the tensors that differ by having C' rows in place of C, and C'; none if anything else differs too."""
    shapes = {name: tuple(value.shape) for name, value in given.items() if isinstance(value, Tensor)}
    different = {name for name, value in own.items() if name in shapes and shapes[name] != tuple(value.shape)}
    pairs = set()
    for name in different:
        ours, theirs = tuple(own[name].shape), shapes[name]
        if len(ours) == 0 or len(theirs) != len(ours) or theirs[1:] != ours[1:] or name.startswith(ENCODER):
            return set(), 0
        pairs.add((ours[0], theirs[0]))
    return (different, next(iter(pairs))[1]) if len(pairs) == 1 else (set(), 0)


def _over_bands(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """Names of the encoder's convolutions that differ by the number of bands that they see and by nothing else."""
    found = []
    for name, value in own.items():
        theirs = tuple(given[name].shape) if isinstance(given.get(name), Tensor) else ()
        ours = tuple(value.shape)
        if len(ours) == len(theirs) == 4 and name.startswith(ENCODER) and ours[1] != theirs[1]:
            found += [name] if (ours[0], *ours[2:]) == (theirs[0], *theirs[2:]) else []
    return found


def _repeated(weight: Tensor, bands: int) -> Tensor:
    """(O, B', k, k) over B bands in turn, scaled so that bands alike give what they gave before."""
    theirs = weight.shape[1]
    return weight[:, [band % theirs for band in range(bands)]] * (theirs / bands)


def _refuse_other_classes(source: Path, theirs: ClassSet, ours: ClassSet) -> None:
    """Names decide, in their order: colours are for people, and data sets may number the same classes differently."""
    for output, (their, our) in enumerate(zip(theirs.names, ours.names, strict=False)):
        if their != our:
            raise InputError(
                f"{FLAG}: output {output} of {source} is '{their}', and in --classes '{our}'; give the "
                f"classes that it was trained with, in their order"
            )


def _right_flags(source: Path) -> str:
    """Of a folder that describes its network itself."""
    if (source / "config.json").is_file():
        return "; --model.name pretrained trains the network that the folder describes"
    return ""


def _about_images(source: Path, preprocessing: Preprocessing | None) -> list[str]:
    """What its images went through, if training here does something else."""
    usual = Preprocessing()
    if preprocessing is None or (preprocessing.order, preprocessing.mean, preprocessing.std) == (
        usual.order, usual.mean, usual.std,
    ):  # fmt: skip
        return []
    mean, std = (" ".join(f"{value:.3g}" for value in values) for values in (preprocessing.mean, preprocessing.std))
    return [
        f"{FLAG}: {source} saw images as {preprocessing.order.upper()} with mean {mean} and deviation {std}, and "
        "training here normalises by ImageNet's in RGB; the first steps have that to learn"
    ]
