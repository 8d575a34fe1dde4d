"""What is fuzzed: each target reads bytes as one kind of file from a stranger, and may succeed or refuse, no more.

A file of several parts (a checkpoint, a run folder) is one input: the parts behind each other, each after a line
``=== NAME``. The checksum of a checkpoint is put right, since no mutation would ever hit it.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import yaml

from dem_apps.errors import InputError
from dem_apps.report.part import build_part
from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.images import opened_image
from dem_apps.runtime.run_reader import read_config, read_metrics, read_run
from dem_apps.runtime.safe_io import parsed_yaml
from dem_apps.runtime.settings import from_dict, parse_config, to_dict
from rl.config import TrainConfig as RlConfig
from rl.envs.zoo import hyperparameter, normalisation
from rl.results.read_runs import read_results
from rl.training.entries import ALGORITHMS, check_entry
from seg.adaptation.work import Work
from seg.config import TrainConfig as SegConfig
from seg.convert import read_state_dict
from seg.data.image_io import read_index_image
from seg.data.image_pixels import read_header, read_pixels
from seg.data.labels import load_classes
from seg.data.pixel_format import RGB, PixelFormat
from seg.models.trained import open_trained

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-"))
_PART = re.compile(rb"^=== (\S+)\n", re.MULTILINE)
_OF_A_NETWORK = ("config.json", "preprocessor_config.json", "classes.json", "model.safetensors")
_FILES = ("config.yaml", "metrics.jsonl", "eval.json", "environment.json", "classes.json", "metrics_info.json")


def settings(content: bytes) -> None:
    """A run folder's settings: what is taken can be written and read again."""
    kind = RlConfig if content[:1] == b"r" else SegConfig
    values = parsed_yaml(content[1:].decode("utf-8", "replace"), "config.yaml")
    config = from_dict(kind, values, "config.yaml")
    again = from_dict(kind, yaml.safe_load(yaml.safe_dump(to_dict(config))), "config.yaml")
    if again != config:
        raise AssertionError(f"settings change when they are written and read again: {config} {again}")


def config_file(content: bytes) -> None:
    """``--config FILE``."""
    file = _FOLDER / "settings.yaml"
    file.write_bytes(content)
    parse_config(SegConfig, "x", "x", ["--config", str(file)])


def checkpoint(content: bytes) -> None:
    """A checkpoint's JSON and its tensors."""
    parts = _parts(content)
    tensors = parts.get("tensors", b"")
    digest = hashlib.sha256(tensors).hexdigest().encode()
    (_FOLDER / "last.1.safetensors").write_bytes(tensors)
    (_FOLDER / "last.json").write_bytes(parts.get("json", b"").replace(b"SHA256", digest))
    state = load_checkpoint(_FOLDER, "last")
    if not isinstance(state, dict):
        raise AssertionError(f"a checkpoint became {type(state)}")


def run_folder(content: bytes) -> None:
    """Every file that readers of a run folder look at, and what a report makes of it."""
    parts = _parts(content)
    for name in _FILES:
        (_FOLDER / name).unlink(missing_ok=True)
        if name in parts:
            (_FOLDER / name).write_bytes(parts[name])
    for read in (read_config, read_metrics, lambda path: read_results([path])):
        _refused(lambda read=read: read(_FOLDER))  # type: ignore[misc]
    _refused(lambda: load_classes(str(_FOLDER / "classes.json")))
    build_part([read_run(_FOLDER)], None, (), 0)  # the page without its template, whose turn is slow


def image(content: bytes) -> None:
    """An image of any format, and a label."""
    file = _FOLDER / "image.png"
    file.write_bytes(content)
    _refused(lambda: read_index_image(file))
    with opened_image(file) as picture:
        picture.load()


def raster(content: bytes) -> None:
    """An image of any bands and numbers, TIFF above all, and a label in one."""
    file = _FOLDER / "image.tif"
    file.write_bytes(content)
    _refused(lambda: read_index_image(file))
    header = read_header(file)
    ones = (1.0,) * header.bands
    values = read_pixels(file, RGB if header.is_rgb else PixelFormat(header.bands, header.dtype, ones, ones)).values
    if values.shape[:2] != header.size[::-1]:
        raise AssertionError(f"{header.size} pixels became {values.shape}")


def weights(content: bytes) -> None:
    """A file of weights from elsewhere: tensors alone, and no code of it is run."""
    file = _FOLDER / "weights.pth"
    file.write_bytes(content)
    for name, tensor in read_state_dict(file).items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise AssertionError(f"{name!r}: {type(tensor)}")


def hyperparameters(content: bytes) -> None:
    """An entry of a file of hyperparameters."""
    entry = parsed_yaml(content.decode("utf-8", "replace"), "entry.yaml")
    if not isinstance(entry, dict):
        return
    for algo in ALGORITHMS:
        _refused(lambda algo=algo: check_entry(entry, algo, "entry.yaml"))  # type: ignore[misc]
    for key, value in entry.items():
        _refused(lambda key=key, value=value: hyperparameter(key, value))  # type: ignore[misc]
    _refused(lambda: normalisation(entry.get("normalize", False)))


def network_folder(content: bytes) -> None:
    """A folder of somebody's ``save_pretrained`` or of ``seg.export_model``."""
    folder = _emptied("network")
    for name, part in _parts(content).items():
        if name in _OF_A_NETWORK:
            (folder / name).write_bytes(part)
    trained = open_trained(str(folder))
    if not trained.num_classes > 1:
        raise AssertionError(f"{trained.num_classes} classes")


def adaptation_folder(content: bytes) -> None:
    """What an adaptation that was killed has left."""
    folder = _emptied("adaptation")
    (folder / "work").mkdir()
    for name, part in _parts(content).items():
        if name in ("settings.json", "before.jsonl"):
            (folder / "work" / name).write_bytes(part)
    work = Work(folder, {"lr": 0.1}, ["a.png"])
    try:
        for row in work.rows("before").values():
            np.asarray(row["pixels"], np.int64)
    finally:
        work.close()


def _emptied(name: str) -> Path:
    folder = _FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _refused(call: Callable[[], object]) -> None:
    try:
        call()
    except InputError as error:
        check(error)


def check(error: InputError) -> None:
    """A refusal is one line that is safe to print."""
    text = str(error)
    if "\n" in text or not text or any(ord(character) < 32 for character in text):
        raise AssertionError(f"no sentence: {text!r}") from error


def _parts(content: bytes) -> dict[str, bytes]:
    pieces = _PART.split(content)
    names = [name.decode("utf-8", "replace") for name in pieces[1::2]]
    return dict(zip(names, (piece.removesuffix(b"\n") for piece in pieces[2::2]), strict=True))


TARGETS: dict[str, Callable[[bytes], None]] = {
    "settings": settings,
    "config_file": config_file,
    "checkpoint": checkpoint,
    "run_folder": run_folder,
    "image": image,
    "raster": raster,
    "weights": weights,
    "hyperparameters": hyperparameters,
    "network_folder": network_folder,
    "adaptation_folder": adaptation_folder,
}
#: Pieces that mutations of plain bytes would hardly find.
TOKENS = [
    b"&a ", b"*a", b"<<: ", b"!!python/object/apply:os.system ", b"!!binary ", b"null", b".nan", b"1e400", b"9" * 40,
    b"[[[[[[[[", b"{a: ", b"\x1b[2J", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"__tensor__", b"__pairs__", b"__tuple__",
    b"__array__", b"../", b"\\ud800", b"NaN", b"-Infinity", b"1" + b"0" * 300, b"=== metrics.jsonl\n",
    b"=== metrics_info.json\n", b"\n- ", b"? ",
    b"<script>alert(1)</script>", b'"data_offsets"', b'"step"', b"step", b"source", b"model", b"hyperparameters",
]  # fmt: skip
