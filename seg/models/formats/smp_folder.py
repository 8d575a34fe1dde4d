"""Folders of segmentation-models-pytorch's ``save_pretrained`` as trained networks.

Their ``config.json`` says nothing about normalisation or about what the classes are. Two files that others know may
say it: ``preprocessor_config.json`` as transformers has it, and our own ``classes.json``.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from dem_apps.errors import InputError
from dem_apps.runtime.files import read_json
from seg.data.labels import load_classes
from seg.data.pixel_format import PIXELS_FILE
from seg.models.formats.preprocessor import PREPROCESSOR_FILE, read_preprocessor
from seg.models.formats.trained_network import PlainLogits, TrainedNetwork
from seg.models.formats.weights_file import WeightsFile, read_weights
from seg.models.load_model import CLASSES_FILE, load_weights
from seg.models.preprocessing import Preprocessing
from seg.models.smp_network import network_of_config, outputs_of

CONFIG_FILE = "config.json"
#: In the order in which the library looks for them.
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
#: Of a head for whole images, which is kept and not used.
_UNUSED = "classification_head."
_KEPT_FILES = (CONFIG_FILE, PREPROCESSOR_FILE, CLASSES_FILE, PIXELS_FILE)


def read_smp(folder: Path) -> TrainedNetwork:
    """The network of such a folder. One output a pixel (``classes=1``) becomes two classes, no and yes.

    Raises:
        InputError: an architecture, an option or weights that do not fit.
    """
    where = str(folder / CONFIG_FILE)
    config = read_json(folder / CONFIG_FILE)
    preprocessing = read_preprocessor(folder) or Preprocessing()
    bands = config.get("in_channels", 3)
    if bands != preprocessing.channels:
        raise InputError(
            f"{where}: in_channels is {bands!r:.50}, and nothing says what becomes 0 and 1 of each band; write "
            f"{PIXELS_FILE} beside it, with bands, dtype, mean, std and shown, as a run has it"
        )
    outputs = outputs_of(config, where)
    network = network_of_config(config, outputs, where)
    weights, unused = smp_weights(folder)
    try:
        load_weights(network, weights.fitted(network), str(weights.file))
    except InputError as error:
        raise InputError(f"{error} of {where}") from error
    classes = load_classes(str(folder / CLASSES_FILE)) if (folder / CLASSES_FILE).is_file() else None

    def write(new: Path) -> None:
        for name in _KEPT_FILES:
            if (folder / name).is_file():
                (new / name).write_bytes((folder / name).read_bytes())
        weights.write({**network.state_dict(), **unused}, new)

    whole: nn.Module = network if outputs > 1 else PlainLogits(network)
    # the network itself takes images of any size, so that it does so too where it is adapted
    return TrainedNetwork(str(folder), "smp", whole, max(outputs, 2), classes, preprocessing, True, write)


def smp_weights(folder: Path) -> tuple[WeightsFile, dict[str, Tensor]]:
    """The weights of such a folder, and those among them that belong to no segmentation.

    Raises:
        InputError: there is no file of weights, or it cannot be read.
    """
    file = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise InputError(f"{folder}: holds no weights; expected {' or '.join(_WEIGHTS)} beside {CONFIG_FILE}")
    read = read_weights(file, "weights")
    unused = {name: value for name, value in read.tensors.items() if name.startswith(_UNUSED)}
    used = {name: value for name, value in read.tensors.items() if name not in unused}
    return WeightsFile(file, used, read.key), unused
