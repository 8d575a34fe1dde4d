"""Opens trained networks by SPEC, for commands and for ``seg.load``.

A SPEC is a run folder, one of ``save_pretrained`` of segmentation-models-pytorch, transformers (extra ``hf``) or a
network here, as ``seg.export_model`` writes it, or ``package.module:function`` with a file of weights.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import shutil
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor, nn

from dem_apps.errors import InputError, nearest, passed_on
from dem_apps.runtime.checkpoint import load_checkpoint, save_checkpoint
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.documents import read_json, required
from dem_apps.runtime.files import write_json
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.settings import from_dict
from dem_apps.test_time_methods.copies import deep_copy
from dem_apps.test_time_methods.network import refuse_probabilities
from seg.config import TrainConfig
from seg.data.files import checked_size
from seg.data.labels import ClassSet, load_classes, named_classes
from seg.data.pixel_format import PIXELS_FILE, read_format, rgb_format
from seg.models import smp_network, transformers_network
from seg.models.network import OUR_KEY, OUR_VERSION, SegmentationNetwork
from seg.models.networks import NETWORK_FILE, build_model
from seg.models.settings import ModelConfig
from seg.models.weights_file import SAFETENSORS, FoundWeights, find_weights, load_weights, written
from seg.trained.description import (
    ASSUMED,
    CLASSES_FILE,
    DESCRIPTION_FILES,
    Description,
    PlainLogits,
    read_description,
    write_description,
)
from seg.trained.trained_network import RE_ESTIMATED_ON, TrainedNetwork, Training

#: How the names of an encoder's tensors begin, in every network here.
ENCODER = "encoder."
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
#: What a function may return: a normalisation, and fields of a description, but for the last two.
_FACTS = ["mean", "std", *(each.name for each in dataclasses.fields(Description)[1:-2])]
#: (width, height) of the image that shows how many classes a function's network has; of patches of 14 and 16 pixels.
_SIZE = (224, 224)


def load(
    spec: str | Path,
    weights: str | Path | None = None,
    *,
    checkpoint: str = "auto",
    device: str = "auto",
    size: tuple[int, int] | str | None = "auto",
    tile: int | None = None,
    tile_overlap: int | None = None,
) -> TrainedNetwork:
    """A trained network that predicts images, see :meth:`TrainedNetwork.predict`.

    Args:
        spec: see :mod:`seg.trained.open`.
        weights: file for ``package.module:function``.
        checkpoint: of a run, ``last``, ``selected`` or ``best``; ``auto`` is best where target labels chose one, else
            last.
        device: ``cpu``, ``cuda``, or ``auto``.
        size: (width, height) that the network sees; ``own`` is its folder's, a run's target size; None is
            the images'; ``auto`` is ``own``, and None with ``tile``. Predictions have the images' size in any case.
        tile: side of the tiles that larger images go by.
        tile_overlap: pixels that tiles share; None is a quarter.

    Raises InputError: a network that cannot be read, a size or a tile that makes no sense.

    >>> import tempfile, warnings, numpy as np, segmentation_models_pytorch as smp
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
    ...     _ = smp.Unet("resnet18", encoder_weights=None, classes=3).save_pretrained(folder)
    ...     predictor = load(folder, device="cpu")
    >>> predictor.predict(np.zeros((64, 96, 3), np.uint8)).classes.shape
    (64, 96)
    """
    trained = open_trained(str(spec), None if weights is None else str(weights), checkpoint)
    trained = trained.seeing(size, tile, tile_overlap)
    trained.network.to(torch_device(device))
    for note in trained.description.notes:
        warnings.warn(note, stacklevel=2)
    return trained


@torch.inference_mode(False)
def open_trained(spec: str, weights: str | None = None, checkpoint: str = "auto") -> TrainedNetwork:
    """A trained network, on the CPU and in ``eval()`` mode. Nothing is downloaded, and no code of a file is run."""
    folder = Path(spec)
    if _FUNCTION.fullmatch(spec) and not folder.exists():
        return _read_function(spec, None if weights is None else Path(weights))
    if weights is not None:
        raise InputError(f"--weights: {spec} has its own; give it with package.module:function")
    if not folder.is_dir():
        raise InputError(
            f"{spec}: no such folder; expected a run folder, a folder of segmentation-models-pytorch's or "
            "transformers' save_pretrained, or package.module:function with --weights FILE; nothing is downloaded"
        )
    if (folder / "config.yaml").is_file():
        return open_run(folder, checkpoint)[0]
    if not (folder / CONFIG_FILE).is_file():
        raise InputError(f"{folder}: holds neither config.yaml, as a run does, nor {CONFIG_FILE}")
    return _read_saved(folder)


def build_network(
    settings: ModelConfig, num_classes: int, own: Path | None = None, weights: str | None = None, bands: int = 3
) -> SegmentationNetwork:
    """The network of a run's settings, or of the description in the run folder ``own``, with random weights."""
    architecture = settings.architecture()
    if own is not None and (own / NETWORK_FILE).is_file():
        architecture["encoder"] = str(own)
    return build_model(**architecture, num_classes=num_classes, weights=weights, bands=bands)


def read_run(run: Path, checkpoint: str = "auto") -> tuple[TrainConfig, ClassSet, str, dict[str, Any]]:
    """The settings of a run, its classes, and the name and content of a checkpoint; ``auto`` is best, else last."""
    config = from_dict(TrainConfig, read_config(run), str(run / "config.yaml"))
    if checkpoint == "auto":
        checkpoint = "best" if (run / "checkpoints" / "best.pt").is_file() else "last"
    state = load_checkpoint(run / "checkpoints", checkpoint)
    required(state, f"{run}, checkpoint {checkpoint}", model=dict)
    return config, load_classes(classes_of_run(run, config.classes)), checkpoint, state


def only_encoder(weights: Mapping[str, Tensor]) -> bool:
    """Whether the weights are of an encoder without heads."""
    return bool(weights) and all(str(name).startswith(ENCODER) for name in weights)


def classes_of_run(run: Path, file: str | None) -> str | None:
    """The file of a run's classes: its own copy, else the ``file`` in its settings."""
    own = run / CLASSES_FILE
    return str(own) if own.is_file() else file


def open_run(run: Path, checkpoint: str = "auto") -> tuple[TrainedNetwork, Training]:
    """The network of a run folder, and how it was trained."""
    config, classes, checkpoint, state = read_run(run, checkpoint)
    where = f"{run}, checkpoint {checkpoint}"
    if only_encoder(state["model"]):
        raise InputError(f"{where}: holds an encoder without heads; train from it with --model.start-from {run}")
    pixels = read_format(run)
    config = config.resolved()  # of a run that did not record what was open
    network = build_network(config.model, len(classes), own=run, bands=pixels.bands)  # the checkpoint has every weight
    config = config.for_network(network)
    load_weights(network, state["model"], where)
    training = Training(config, checkpoint, state["step"], state.get(RE_ESTIMATED_ON))
    size = checked_size(config.target.size, f"{run}, target.size")
    description = Description(pixels, size=size, classes=classes, align_corners=config.model.align_corners)
    write = partial(_write_run, network, run, training, classes)
    return TrainedNetwork(f"{run}, {training.described}", network, len(classes), description, write, training), training


def _write_run(network: nn.Module, run: Path, training: Training, classes: ClassSet, new: Path) -> None:
    """A run folder with a checkpoint ``last`` and nothing that was logged."""
    marked = {} if training.re_estimated_on is None else {RE_ESTIMATED_ON: training.re_estimated_on}
    save_checkpoint(new / "checkpoints", "last", {"model": network.state_dict(), "step": training.step, **marked})
    write_json(new / CLASSES_FILE, classes.document())
    _copy((PIXELS_FILE, NETWORK_FILE), run, new)
    settings = dataclasses.asdict(dataclasses.replace(training.config, run_dir=None, resume=False))
    (new / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


def _read_saved(folder: Path) -> TrainedNetwork:
    """A folder of ``save_pretrained``, a library's or ours. One output per pixel becomes two classes, no and yes."""
    file = folder / CONFIG_FILE
    config = required(read_json(file), str(file))
    network: SegmentationNetwork
    if OUR_KEY in config:
        config = required({"align_corners": True, **config}, str(file), num_classes=int, align_corners=bool, name=str)
        if config[OUR_KEY] != OUR_VERSION:
            raise InputError(f"{file}: {OUR_KEY} is {config[OUR_KEY]!r:.50}, and this version reads {OUR_VERSION}")
        if config["name"] == "pretrained":
            raise InputError(f"{file}: name is 'pretrained', which is the network of another folder")
        unused = (OUR_KEY, "align_corners", "weights")  # all weights are in the folder
        with passed_on(str(file)):
            network = build_model(**{key: value for key, value in config.items() if key not in unused})
        load_weights(network, find_weights(folder / WEIGHTS_FILE, network).tensors, str(folder / WEIGHTS_FILE))
        outputs: int = config["num_classes"]
        description = read_description(folder, align_corners=config["align_corners"])
    elif "model_type" in config:
        network = of_library = transformers_network.network_of_folder(folder)
        outputs = of_library.network.config.num_labels
        document, classes = transformers_network.processor_of_folder(folder), _classes_of_labels(config, outputs)
        description = read_description(folder, document, outputs, align_corners=False, classes=classes)
    else:
        outputs, bands = config.get("classes", 1), config.get("in_channels", 3)
        description = read_description(folder, smp_network.preprocessing(config), outputs)
        if bands != description.pixels.bands:
            raise InputError(
                f"{folder}: in_channels is {bands}, and the normalisation of the bands is unknown; write "
                f"{PIXELS_FILE} beside it, with bands, dtype, mean, std and shown, as a run has it"
            )
        network = smp_network.network_of_folder(str(folder), config)
    whole = network if outputs > 1 else PlainLogits(network, description)
    write = partial(_write_saved, network, folder, description)
    return TrainedNetwork(str(folder), whole, max(outputs, 2), description, write)


def _write_saved(network: SegmentationNetwork, folder: Path, description: Description, new: Path) -> None:
    network.save_pretrained(new, config={"align_corners": description.align_corners})
    write_description(description, new)
    _copy(DESCRIPTION_FILES, folder, new)


def _classes_of_labels(config: Mapping[str, Any], outputs: int) -> ClassSet | None:
    """From transformers' ``id2label``, unless these are the names that it gives where there are none."""
    names = config.get("id2label")
    ordered: list[Any] = [names.get(str(index)) for index in range(outputs)] if isinstance(names, Mapping) else []
    if len(ordered) < 2 or not all(isinstance(name, str) and not name.startswith("LABEL_") for name in ordered):
        return None
    return named_classes(ordered)


def _read_function(spec: str, file: Path | None) -> TrainedNetwork:
    """The network that a function returns, alone or with facts, the fields of a description; ``classes`` as names."""
    network, facts = _called_function(spec)
    if file is not None and isinstance(network, torch.jit.ScriptModule):
        raise InputError(f"{spec}: gives a ScriptModule, which has weights already; leave out --weights")
    found = FoundWeights({}) if file is None else find_weights(file, network)
    if file is not None:
        load_weights(network, found.tensors, f"--weights: {file} does not fit the network of {spec}")
    with passed_on(f"{spec}: is no network to predict with"):
        network.float().eval()
    names, description = list(network.state_dict()), _said(spec, facts, network, found.notes)
    width, height = description.size or _SIZE
    noise = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))
    with passed_on(f"{spec}: cannot be copied"):
        copied = deep_copy(network)  # which may keep what it makes for this size
    unlike = "or its copy does not, of which hooks must not hold the network itself"
    takes = passed_on(f"{spec}: takes no image of {width} × {height}, {unlike}; 'size' among its facts names another")
    with takes, torch.no_grad():
        output = copied(noise)
    if not {"multiple", "size"} & facts.keys():
        description = dataclasses.replace(description, multiple=_multiple_of(network))
    with passed_on(f"{spec}: 'output' among its facts has to be the key of its logits"):
        logits = description.logits(output)
    if logits.ndim != 4:
        raise InputError(f"{spec}: its logits have shape {tuple(logits.shape)}; expected (B, C, h, w), one a pixel")
    if "probabilities" not in facts:
        refuse_probabilities(logits, spec, "or say 'probabilities' among its facts, True or, of logits, False")
    name = "weights.safetensors" if file is None else file.name
    write = partial(_write_weights, network, names, name, found.prefix, found.key)
    whole = network if logits is output else PlainLogits(network, description)
    return TrainedNetwork(spec, whole, logits.shape[1], description, write)


def _write_weights(network: nn.Module, names: list[str], file: str, prefix: str, key: str | None, new: Path) -> None:
    """A file of the same name, kind, key and prefix."""
    now = network.state_dict()
    # clones, because safetensors refuses tensors that share memory, and torch would write the whole of it
    state = {f"{prefix}{name}": now[name].cpu().clone().contiguous() for name in names}
    if Path(file).suffix == SAFETENSORS:
        with written():
            save_file(state, new / file, metadata={"format": "pt"})
    else:
        torch.save(state if key is None else {key: state}, new / file)


def _multiple_of(network: nn.Module) -> int:
    """The least of 1, 8, 16 and 32 of which the network takes odd multiples as sides; 1 where it takes none."""
    for multiple in (1, 8, 16, 32):
        try:
            with torch.no_grad():
                deep_copy(network)(torch.zeros(1, 3, 64 + multiple, 64 + multiple))
            return multiple
        except (RuntimeError, ValueError):
            continue
    return 1


def _called_function(spec: str) -> tuple[nn.Module, Mapping[str, Any]]:
    module_name, _, name = spec.partition(":")
    with passed_on(f"{spec}: cannot be imported; run the command in the folder that holds the module"):
        module = importlib.import_module(module_name)
    if not callable(getattr(module, name, None)):
        raise InputError(f"{spec}: '{module_name}' has no function '{name}'{nearest(name, vars(module))}")
    with passed_on(f"{spec}: cannot be called"):
        made = getattr(module, name)()
    network, facts = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
    if not isinstance(network, nn.Module) or not isinstance(facts, Mapping):
        raise InputError(
            f"{spec}: returned a {type(made).__name__}; expected a torch.nn.Module, or one with a mapping of facts"
        )
    return network, facts


def _said(spec: str, facts: Mapping[str, Any], network: nn.Module, notes: tuple[str, ...]) -> Description:
    for fact in facts:
        if fact not in _FACTS:
            raise InputError(f"{spec}: unknown fact '{fact}'{nearest(fact, _FACTS)}; known are {', '.join(_FACTS)}")
    found = _normalisation_of(network) or ASSUMED
    if "assumed" in found and "mean" not in facts:
        said = "'mean', 'std' and 'order' among its facts would say another"
        notes += (f"{spec} does not say how images are normalised: assumed is {found['assumed']}; {said}",)
    given: dict[str, Any] = {"align_corners": False, "mean": found["image_mean"], "std": found["image_std"], **facts}
    with passed_on(spec):
        pixels = rgb_format(given.pop("mean"), given.pop("std"))
        if given.get("classes") is not None:
            given["classes"] = named_classes(given["classes"])
        if given.get("size") is not None:
            given["size"] = tuple(given["size"])
        return Description(pixels, **given, notes=notes)


def _normalisation_of(network: nn.Module) -> Mapping[str, Any] | None:
    """What a network of segmentation-models-pytorch, or a part of timm's, was trained with."""
    config = getattr(network, "config", None)
    if isinstance(config, Mapping) and "encoder_name" in config:
        return smp_network.preprocessing(config)
    for module in nn.Module.modules(network):
        if isinstance(known := getattr(module, "pretrained_cfg", None), Mapping) and "mean" in known:
            return {"image_mean": known["mean"], "image_std": known["std"]}
    return None


def _copy(names: tuple[str, ...], folder: Path, new: Path) -> None:
    for name in names:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, new / name)
