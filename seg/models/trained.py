"""Trained networks by SPEC, whoever trained them: the one way in for commands and for ``seg.load``.

A SPEC is a run folder, a folder of segmentation-models-pytorch's ``save_pretrained``, one of transformers'
``AutoModelForSemanticSegmentation.save_pretrained`` (extra ``hf``), one of ``seg.export_model``, or
``package.module:function`` with a file of weights. To add a format, write a reader in a file of its own and enter it
in ``READERS``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError
from dem_apps.runtime.files import read_json
from seg.models.formats.exported import is_exported, read_exported
from seg.models.formats.function import is_function, read_function
from seg.models.formats.run import is_run, read_run
from seg.models.formats.smp_folder import read_smp
from seg.models.formats.trained_network import TrainedNetwork as TrainedNetwork
from seg.models.formats.transformers_folder import read_transformers
from seg.models.smp_network import is_smp
from seg.models.transformers_network import is_transformers

SPEC_HELP = (
    "run folder, folder of segmentation-models-pytorch's or transformers' save_pretrained, or package.module:function"
)
#: Folders with a ``config.json``: what it looks like, and who reads it.
READERS: tuple[tuple[Callable[[dict[str, Any]], bool], Callable[[Path], TrainedNetwork]], ...] = (
    (is_exported, read_exported),
    (is_transformers, read_transformers),
    (is_smp, read_smp),
)


def open_trained(spec: str, weights: str | None = None) -> TrainedNetwork:
    """A trained network, on the CPU and in ``eval()`` mode. Nothing is downloaded, and no code of a file is run.

    Args:
        spec: see this module.
        weights: file for ``package.module:function``: a state dict (``.pth``) or ``.safetensors``.

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
    if is_run(folder):
        return read_run(folder)
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{spec}: holds neither config.yaml, as a run does, nor config.json, as save_pretrained writes"
        )
    config = read_json(folder / "config.json")
    for looks_like, read in READERS:
        if isinstance(config, dict) and looks_like(config):
            return read(folder)
    raise InputError(
        f"{folder / 'config.json'}: names neither model_type, as transformers writes it, nor _model_class, as "
        "segmentation-models-pytorch does"
    )
