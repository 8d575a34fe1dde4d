"""``python -m seg.export_model``: a run's network as a folder that others load, and as ONNX.

What is written depends on the network: an architecture of segmentation-models-pytorch becomes a folder of its
``save_pretrained``, one of transformers a folder of theirs, and networks of our own (``deeplabv2``) a folder that
``seg.load`` reads: safetensors with a description.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dem_apps.errors import InputError
from dem_apps.runtime.command import run_command
from dem_apps.runtime.setting_checks import check_paths, check_settings
from dem_apps.runtime.settings import option, parse_config
from seg.data.files import LARGEST_SIDE
from seg.scores.checkpoints import CHECKPOINT_HELP, CHECKPOINTS


@dataclass(frozen=True)
class ExportModelConfig:
    """Write a run's network as a folder that others load."""

    run: str = option("", "run folder", value="RUN", group="what is read and written", needed=True, exists=True)
    out: str = option("", "folder to write to, new or empty", value="DIR", needed=True)
    checkpoint: str = option("auto", CHECKPOINT_HELP, CHECKPOINTS)
    onnx: bool = option(False, "write model.onnx as well, compared with the network (extra onnx)", group="ONNX")
    size: list[int] | None = option(
        None, "width and height of its images; default: the run's target size, else 512,512",
        at_least=1, at_most=LARGEST_SIDE, value="W,H",
    )  # fmt: skip


def export_model(config: ExportModelConfig) -> Path:
    """Do what the command does; returns the folder.

    Raises InputError: a flag is missing, a folder is in use, or a check between two forms of the network failed.
    """
    check_settings(config)
    if config.size is not None and (len(config.size) != 2 or not config.onnx):
        raise InputError("--size: expected W,H such as 1024,512, together with --onnx, which is made for one size")
    from seg.trained.export_folder import export_folder

    size = None if config.size is None else (config.size[0], config.size[1])
    export_folder(Path(config.run), Path(config.out), config.checkpoint, config.onnx, size)
    return Path(config.out)


def main() -> None:
    """The command."""
    example = "python -m seg.export_model --run runs/a --out models/a"
    config = parse_config(ExportModelConfig, "python -m seg.export_model", example)
    check_paths(config)
    export_model(config)


if __name__ == "__main__":
    run_command(main)
