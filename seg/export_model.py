"""``python -m seg.export_model``: a network as a folder that others load, and as ONNX.

What is written depends on the network: an architecture of segmentation-models-pytorch becomes a folder of its
``save_pretrained``, one of transformers a folder of theirs, and networks of our own (``deeplabv2``) a folder that
``seg.load`` reads: safetensors with a description. A function or a file of weights gives a file of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dem_apps.errors import InputError
from dem_apps.runtime.command import run_command
from dem_apps.runtime.setting_checks import check_paths
from dem_apps.runtime.settings import option, parse_config
from seg.trained.settings import RunSettings

_EXAMPLES = """\
python -m seg.export_model --run runs/a --out models/a
python -m seg.export_model --run runs/a --out models/a --onnx
python -m seg.export_model --model adapted --out models/adapted"""


@dataclass(frozen=True)
class ExportModelConfig(RunSettings):
    """Write a network as a folder that others load."""

    out: str = option(
        "", "folder to write to, new or empty", value="DIR", needed=True, group="what is written"
    )
    onnx: bool = option(
        False,
        "also write model.onnx, for images of any size where the network allows it, and compare "
        "its logits with the network's (needs the extra onnx)",
    )


def export_model(config: ExportModelConfig) -> Path:
    """Do what the command does, or raise an InputError; returns the folder."""
    config.check_network()
    if isinstance(config.size, list) and not config.onnx:
        raise InputError(
            "--size: expected together with --onnx, which is compared at it, such as 1024,512"
        )
    from seg.trained.export_folder import export_folder

    export_folder(config, Path(config.out), config.onnx)
    return Path(config.out)


def main() -> None:
    """The command."""
    config = parse_config(ExportModelConfig, "python -m seg.export_model", _EXAMPLES)
    check_paths(config)
    export_model(config)


if __name__ == "__main__":
    run_command(main)
