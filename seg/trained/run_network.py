"""The network of a run folder: built by its settings, with the weights of a checkpoint, and written back as a run."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
import yaml
from torch import Tensor, nn

from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import load_checkpoint, save_checkpoint
from dem_apps.runtime.documents import Document, required
from dem_apps.runtime.files import write_json
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.settings import from_dict
from seg.config import TrainConfig
from seg.data.files import checked_size
from seg.data.labels import ClassSet, load_classes
from seg.data.pixel_format import PIXELS_FILE, read_format
from seg.models.network import SegmentationNetwork
from seg.models.networks import NETWORK_FILE, build_model
from seg.models.settings import ModelConfig
from seg.models.weights_file import Tensors, load_weights
from seg.scores.checkpoints import chosen_by
from seg.trained.description import CLASSES_FILE, PREPROCESSOR_FILE, Description, copy_files
from seg.trained.trained_network import RE_ESTIMATED_ON, TrainedNetwork, Training

#: How the names of an encoder's tensors begin, in every network here.
ENCODER = "encoder."
#: The origin of a run's normalisation.
RUN_ORIGIN = "the run's own"


def build_network(
    settings: ModelConfig,
    num_classes: int,
    bands: int = 3,
    run: Path | None = None,
    with_weights: bool = True,
) -> SegmentationNetwork:
    """The network of a run's resolved settings, or of the description in a folder ``run``.

    It begins at random without ``with_weights``, and where ``--model.start-from`` replaces all of the encoder's.
    """
    architecture, weights = settings.architecture(), settings.encoder_weights
    if run is not None and (run / NETWORK_FILE).is_file():
        architecture["encoder"] = str(run)
    if not with_weights or (settings.start_from is not None and settings.name != "pretrained"):
        weights = None
    return build_model(**architecture, num_classes=num_classes, weights=weights, bands=bands)


def saved_run(run: Path, checkpoint: str = "auto") -> tuple[TrainConfig, ClassSet, str, Document]:
    """The settings of a run, its classes, and the name and content of a checkpoint; ``auto`` is best, else last."""
    config = from_dict(TrainConfig, read_config(run), str(run / "config.yaml"))
    if checkpoint == "auto":
        checkpoint = "best" if (run / "checkpoints" / "best.pt").is_file() else "last"
    state = load_checkpoint(run / "checkpoints", checkpoint)
    required(state, f"{run}, checkpoint {checkpoint}", model=dict)
    return config, load_classes(classes_of_run(run, config.classes)), checkpoint, state


def only_encoder(weights: Tensors) -> bool:
    """Return whether the weights belong to an encoder without heads."""
    return bool(weights) and all(str(name).startswith(ENCODER) for name in weights)


def classes_of_run(run: Path, file: str | None) -> str | None:
    """The file of a run's classes: its own copy, else the ``file`` in its settings."""
    copy = run / CLASSES_FILE
    return str(copy) if copy.is_file() else file


def input_of_run(run: Path) -> Description:
    """Normalisation of a run's images; that of an adapted run may be another than it trained with."""
    if not (run / PREPROCESSOR_FILE).is_file():
        return Description(read_format(run), origin=RUN_ORIGIN)
    return Description.read(run)


def open_run(run: Path, checkpoint: str = "auto") -> TrainedNetwork:
    """The network of a run folder."""
    config, classes, checkpoint, state = saved_run(run, checkpoint)
    where = f"{run}, checkpoint {checkpoint}"
    if only_encoder(state["model"]):
        raise InputError(
            f"{where} holds an encoder without heads; train from it with --model.start-from {run}"
        )
    pixels = read_format(run)
    config = config.resolved()  # a run of an older version did not record what was open
    network = build_network(config.model, len(classes), pixels.bands, run, with_weights=False)
    config = config.for_network(network)
    load_weights(network, state["model"], where)
    training = Training(run, checkpoint, state["step"], state.get(RE_ESTIMATED_ON))
    description = replace(
        input_of_run(run),
        size=checked_size(config.target.size, f"{run}, target.size"),
        classes=classes,
        align_corners=config.model.align_corners,
    )
    # a copy of the whole writes the copied network, which a closure would not
    write = partial(_write_run, network, config, training, _running_means(network))
    spec = f"{where} ({chosen_by(checkpoint)}), step {training.step:,}"
    return TrainedNetwork(spec, network, len(classes), description, write, training, config)


def _running_means(network: nn.Module) -> Tensor:
    buffers = network.named_buffers()
    means = [mean.cpu() for name, mean in buffers if name.endswith("running_mean")]
    return torch.cat([torch.zeros(0), *means])


def _write_run(
    network: nn.Module,
    config: TrainConfig,
    training: Training,
    means: Tensor,
    new: Path,
    description: Description,
) -> None:
    """Write a run folder with a checkpoint ``last`` and nothing that was logged; ``means`` are those that were read."""
    re_estimated_on = training.re_estimated_on
    if not torch.equal(means, _running_means(network)):
        re_estimated_on = "the images that it was adapted to"
    state = {"model": network.state_dict(), "step": training.step, RE_ESTIMATED_ON: re_estimated_on}
    save_checkpoint(new / "checkpoints", "last", state)
    copy_files((PIXELS_FILE, NETWORK_FILE), training.run, new)
    if description.origin != RUN_ORIGIN:
        description.write(new)
    elif description.classes is not None:
        write_json(new / CLASSES_FILE, description.classes.document())
    settings = asdict(config) | {"run_dir": None, "resume": False}
    settings["target"]["size"] = description.size and list(description.size)
    (new / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
