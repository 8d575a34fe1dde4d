"""Opens trained networks by SPEC, for commands and for ``seg.load``.

A SPEC is a run folder, a folder of segmentation-models-pytorch's ``save_pretrained``, one of transformers'
``AutoModelForSemanticSegmentation.save_pretrained`` (extra ``hf``), one of ``seg.export_model``, or
``package.module:function`` with a file of weights. To add a format, write a reader and enter it in ``FOLDERS`` of
:mod:`seg.models.folders`.
"""

from __future__ import annotations

from pathlib import Path

from dem_apps.errors import InputError
from seg.models.folders import read_folder, read_run
from seg.models.function import is_function, read_function
from seg.models.trained_network import TrainedNetwork as TrainedNetwork
from seg.models.trained_network import Training as Training

SPEC_HELP = (
    "run folder, folder of segmentation-models-pytorch's or transformers' save_pretrained, or package.module:function"
)


def open_trained(spec: str, weights: str | None = None, checkpoint: str = "auto") -> TrainedNetwork:
    """A trained network, on the CPU and in ``eval()`` mode. Nothing is downloaded, and no code of a file is run.

    Args:
        spec: see this module.
        weights: file for ``package.module:function``: a state dict (``.pth``) or ``.safetensors``.
        checkpoint: of a run ``last``, ``selected`` (chosen without labels), ``best`` (chosen with target labels), or
            ``auto``: selected where there is one, else last.

    Raises:
        InputError: it is none of these, or what is there cannot be used.
    """
    folder = Path(spec)
    if is_function(spec) and not folder.exists():
        return read_function(spec, None if weights is None else Path(weights))
    if weights is not None:
        raise InputError(f"--weights: {spec} brings its own; a file of weights goes with package.module:function")
    if folder.is_file():
        raise InputError(
            f"{spec}: is a file; give the folder that it lies in, or package.module:function --weights {spec}"
        )
    if not folder.is_dir():
        raise InputError(
            f"{spec}: no such folder; expected a {SPEC_HELP}, and a name on a hub is not downloaded: fetch it "
            "to a folder first"
        )
    return read_folder(folder, checkpoint)


def open_run(run: Path, checkpoint: str = "auto") -> tuple[TrainedNetwork, Training]:
    """The network of a run folder, and how it was trained.

    Raises:
        InputError: another kind of folder, no such checkpoint, or weights that do not fit the settings.
    """
    trained = read_run(run, checkpoint)
    assert trained.training is not None  # of every run
    return trained, trained.training
