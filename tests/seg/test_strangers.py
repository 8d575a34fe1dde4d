"""Runs, weights and images from strangers: evaluate, export, resume and convert take them whole or say one sentence."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from hypothesis import given
from hypothesis import strategies as st
from support.strangers import Payload, places, replaced
from support.strangers import refused as one_line

import seg.convert
import seg.evaluate
import seg.export
import seg.train
from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import load_checkpoint, save_checkpoint
from dem_apps.runtime.reproducibility import seed_everything
from dem_apps.runtime.settings import parse_config, to_dict
from seg import build_model
from seg.config import ModelConfig, SourceConfig, TargetDataConfig, TrainConfig
from seg.convert import convert, read_state_dict
from seg.data.check import check_file, check_pair
from seg.data.datasets import SegmentationDataset
from seg.data.domains import open_pair
from seg.data.image_pixels import read_pixels
from seg.models.load_model import load_weights, open_trained, saved_weights
from seg.scores.checkpoint_selection import CheckpointSelector
from seg.step import TrainState, training_step
from seg.training.optimization import MicroBatch

CPU = torch.device("cpu")
CLASSES = 19


def refused(main: Any, argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> str:
    """The one line with which a command ends."""
    monkeypatch.setattr("sys.argv", ["command", *argv])
    return one_line(main, capsys)


# -- pickles for seg.convert --------------------------------------------------------------------------------------


def malicious(kind: str, marker: Path, outside: Path) -> bytes:
    payload = pickle.dumps(Payload(marker))
    if kind == "pickle":
        return payload
    content = io.BytesIO()
    if kind in ("torch", "old torch"):
        state = {"conv1.weight": torch.zeros(2), "evil": Payload(marker)}
        torch.save(state, content, _use_new_zipfile_serialization=kind == "torch")
        return content.getvalue()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/data.pkl", payload)
        archive.writestr("archive/version", "3")
        archive.writestr(f"../../{outside.name}", "written")
        archive.writestr(str(outside), "written")
    return content.getvalue()


@pytest.mark.parametrize("kind", ["pickle", "torch", "old torch", "zip with paths"])
def test_weights_that_bring_code_are_refused_and_nothing_runs(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    marker, outside, file = tmp_path / "marker", tmp_path / "outside", tmp_path / "deep" / "weights.pth"
    file.parent.mkdir()
    file.write_bytes(malicious(kind, marker, outside))
    line = refused(seg.convert._main, ["--advent", str(file), "--run-dir", str(tmp_path / "run")], monkeypatch, capsys)
    assert "weights.pth is no checkpoint" in line
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["deep", "weights.pth"]
    if kind != "zip with paths":
        with contextlib.suppress(Exception):
            torch.load(file, weights_only=False)
        assert marker.exists(), "opened without care it does run, so this test can fail"


def test_weights_that_are_no_plain_tensors(tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    for content in ({3: torch.zeros(1)}, [torch.zeros(1)], {"a": 1}, {}):
        torch.save(content, file)
        with pytest.raises(InputError, match="holds no flat mapping of names to tensors"):
            read_state_dict(file)
    os.mkfifo(tmp_path / "pipe.pth")
    with pytest.raises(InputError, match="is no file"):
        read_state_dict(tmp_path / "pipe.pth")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda w: w.to_sparse(), "no plain tensor of real numbers"),
        (lambda w: w.to(torch.complex64), "no plain tensor of real numbers"),
        (lambda w: torch.full_like(w, math.nan), "holds NaN or infinite values"),
        (lambda w: torch.zeros(1).expand(1 << 30, 1 << 10), r"has shape \[1073741824, 1024\] instead of"),
    ],
)
def test_a_tensor_that_no_network_has(value: Any, message: str, tmp_path: Path) -> None:
    layout = seg.convert._advent_layout(CLASSES)
    weights = {name: torch.zeros(ours.shape, dtype=ours.dtype) for name, ours in layout.items()}
    weights["conv1.weight"] = value(weights["conv1.weight"])
    with pytest.raises(InputError, match=f"^here: .*conv1.weight.*{message}"):
        seg.convert.from_advent(weights, CLASSES, "here")
    torch.save({"x": torch.zeros(1)}, tmp_path / "x.pth")
    with pytest.raises(InputError):
        convert(tmp_path / "x.pth", tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- run folders --------------------------------------------------------------------------------------------------

SMALL = ModelConfig(encoder="resnet18", depth=3, output_stride=8)


@pytest.fixture(scope="module")
def good(tmp_path_factory, tiny_pair) -> Path:
    """A run folder as a stranger might send one, good as it is."""
    run = tmp_path_factory.mktemp("runs") / "run"
    run.mkdir()
    config = TrainConfig(
        model=SMALL, maps=0, max_steps=3, run_dir=str(run), source=SourceConfig(str(tiny_pair.source_root)),
        target=TargetDataConfig(str(tiny_pair.target_root)),
    )  # fmt: skip
    (run / "config.yaml").write_text(yaml.safe_dump(to_dict(config)))
    torch.manual_seed(0)
    save_checkpoint(
        run / "checkpoints",
        "last",
        {"model": build_model(**SMALL.architecture(), num_classes=CLASSES).state_dict(), "step": 3},
        "3",
    )
    return run


@pytest.fixture
def run(good: Path, tmp_path: Path) -> Path:
    """A copy to spoil; the tensors are shared."""
    copied = tmp_path / "run"
    (copied / "checkpoints").mkdir(parents=True)
    (copied / "config.yaml").write_text((good / "config.yaml").read_text())
    (copied / "checkpoints" / "last.json").write_text((good / "checkpoints" / "last.json").read_text())
    (file,) = good.glob("checkpoints/*.safetensors")
    os.link(file, copied / "checkpoints" / file.name)
    return copied


def test_the_good_run_opens(run: Path) -> None:
    assert open_trained(run, "last", CPU).step == 3
    assert saved_weights(run)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("max_steps", "many", "max_steps: expected int, got 'many'"),
        ("max_steps", None, "max_steps: expected int, got null"),
        ("model", None, "model: expected a mapping"),
        ("model", {"depth": "deep"}, "depth: expected int or null, got 'deep'"),
        ("model", {"encoder": ["resnet18"]}, "encoder: expected str, got"),
        ("model", {"encoder": "tu-hf-hub:stranger/network"}, "is no network of timm"),
        ("model", {"encoder": "../../evil"}, "is not known to segmentation-models-pytorch"),
        ("model", {"output_stride": 3}, "output_stride: 3 is not one of"),
        ("model", {"name": "__import__"}, "is not one of deeplabv2"),
        ("target", {"size": "big"}, "size: expected list of int or null, got 'big'"),
        ("target", {"root": "a\x00b"}, r"holds the control character \x00"),
        ("target", {"layout": "mine"}, "layout: 'mine' is not one of"),
        ("classes", 3, "classes: expected str or null, got 3"),
        ("optimizer", {"lr": math.nan}, "lr: expected a finite number, got nan"),
        ("run_dir", "\x1b]0;x\x07", "holds the control character"),
        ("loss", "evil", "loss: 'evil' is not one of"),
        ("evil", {}, "unknown key 'evil'"),
    ],
)
def test_settings_with_wrong_types(key: str, value: Any, message: str, run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    config[key] = {**config[key], **value} if isinstance(value, dict) and key in config else value
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(InputError) as evaluated:
        open_trained(run, "last", CPU)
    assert message in str(evaluated.value)
    assert "\x1b" not in str(evaluated.value)


def respoilt(run: Path, change: Any) -> None:
    """Write the checkpoint again after a change to its state."""
    state = load_checkpoint(run / "checkpoints", "last")
    changed = change(state)
    save_checkpoint(run / "checkpoints", "last", state if changed is None else changed, "3")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("model") and None, "holds no 'model'"),
        (lambda s: s.pop("step") and None, "holds no 'step'"),
        (lambda s: s.update(step="3"), "'step' is of the wrong type (str)"),
        (lambda s: s.update(step=-1), "'step' is -1, which no training has reached"),
        (lambda s: s.update(model=[1, 2]), "'model' is of the wrong type (list)"),
        (lambda s: s["model"].popitem() and None, "1 of its names are missing"),
        (lambda s: s["model"].update(evil=torch.ones(1)), "1 of its names are unknown (evil)"),
        (lambda s: s["model"].update({"main_head.branches.0.bias": torch.ones(3)}), "has shape [3] instead of [19]"),
        (lambda s: s["model"].update({"main_head.branches.0.bias": torch.ones(19, dtype=torch.int8)}), "torch.int8"),
        (lambda s: s["model"].update({"main_head.branches.0.bias": "x"}), "is a str, no plain tensor"),
    ],
)
def test_a_checkpoint_with_wrong_content(change: Any, message: str, run: Path) -> None:
    respoilt(run, change)
    with pytest.raises(InputError) as opened:
        open_trained(run, "last", CPU)
    assert message in str(opened.value)


def test_weights_that_are_no_numbers(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.Tensor.isfinite", lambda tensor: torch.ones_like(tensor, dtype=torch.bool))
    bias = torch.full((CLASSES,), math.nan)
    respoilt(run, lambda s: s["model"].update({"main_head.branches.0.bias": bias}))
    monkeypatch.undo()
    for use in (lambda: open_trained(run, "last", CPU), lambda: convert_start(run)):
        with pytest.raises(InputError, match=r"main_head.branches.0.bias holds NaN or infinite values"):
            use()


def convert_start(run: Path) -> None:
    """What --model.start-from does."""
    load_weights(build_model(**SMALL.architecture(), num_classes=CLASSES), saved_weights(run), str(run))


@pytest.mark.parametrize("command", ["seg.evaluate", "seg.export", "seg.train"])
def test_the_commands_end_with_one_line(
    command: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (run / "checkpoints" / "last.json").write_bytes(pickle.dumps(Payload(tmp_path / "marker")))
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"x")
    main, argv = {
        "seg.evaluate": (seg.evaluate._main, ["--run", str(run)]),
        "seg.export": (
            seg.export._main, ["--run", str(run), "--images", str(tmp_path / "images"), "--out", str(tmp_path / "out")],
        ),
        "seg.train": (seg.train._main, ["--resume", str(run)]),
    }[command]  # fmt: skip
    assert "it is not a checkpoint of this program" in refused(main, argv, monkeypatch, capsys)
    assert not (tmp_path / "marker").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["\x1b[2Jroad", "a\nb", "x" * 101, ""])
def test_class_names_that_would_steer_the_terminal(name: str, run: Path) -> None:
    rows = [{"name": name, "color": [1, 2, 3]}] + [{"name": f"c{i}", "color": [1, 2, 3]} for i in range(18)]
    (run / "classes.json").write_text(json.dumps({"classes": rows}))
    with pytest.raises(InputError, match=r"classes\[0\], name: "):
        open_trained(run, "last", CPU)


# -- resume: anything anywhere ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> tuple[TrainState, CheckpointSelector, list[MicroBatch]]:
    """A train state after a step, which checkpoints it kept, and a micro-batch."""
    AcceleratorState._reset_state()
    config = TrainConfig(method="advent", model=SMALL, max_steps=5)
    seed_everything(0)
    state = seg.train.build_state(config, 4, Accelerator(cpu=True))
    source = {"image": torch.randn(1, 3, 32, 64), "label": torch.randint(0, 4, (1, 32, 64)), "name": ["s"]}
    micro_batches = [MicroBatch(source, {"image": torch.randn(1, 3, 32, 64), "name": ["t"]})]
    training_step(state, micro_batches)
    selector = CheckpointSelector("im")
    selector.update(1, {"label_free": {"im": 0.5}, "miou": 0.25})
    return state, selector, micro_batches


JUNK = st.sampled_from([
    None, True, -1, 10**30, 1e308, math.nan, "x", "", [], [1], {}, {"a": 1}, (), KeyError, torch.zeros(0),
    torch.ones(3), torch.full((1,), math.nan), torch.ones(2, 2, dtype=torch.int8),
])  # fmt: skip


@given(st.data())
def test_a_state_with_anything_anywhere_is_whole_or_refused(trained: Any, data: st.DataObject) -> None:
    genuine, selector, micro_batches = trained
    state = {**genuine.state(), "choice": selector.state()}
    path = data.draw(st.sampled_from([place for place in places(state) if place]))
    spoilt = replaced(state, path, data.draw(JUNK))
    again = copy.deepcopy(genuine)
    try:
        again.restore(spoilt)
        CheckpointSelector("im").restore(spoilt.get("choice"))
    except InputError as error:
        sentence = str(error)
    else:
        # whatever is taken must be good for a step
        training_step(again, micro_batches)
        return
    assert "\n" not in sentence


# -- images -------------------------------------------------------------------------------------------------------


def bomb() -> bytes:
    """A PNG of some hundred bytes that claims 50,000 x 50,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    chunks = chunk(b"IHDR", struct.pack(">IIBBBBB", 50_000, 50_000, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + chunks + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"


CUT = b"\x89PNG\r\n\x1a\n" + bytes(50)


@pytest.mark.parametrize("content", [bomb(), EPS, b"", CUT], ids=["bomb", "eps", "empty", "cut"])
@pytest.mark.parametrize("layout", ["gta5", "synthia"])
def test_no_reader_unpacks_or_starts_anything(content: bytes, layout: str, tmp_path: Path) -> None:
    images, labels = {"gta5": ("images", "labels"), "synthia": ("RGB", "GT/LABELS")}[layout]
    for folder in (images, labels):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.png").write_bytes(content)
    dataset = SegmentationDataset(tmp_path, layout, "train", labelled=True)
    for read in (lambda: dataset[0], lambda: dataset.layout.read_ids(tmp_path / labels / "a.png"),
                 lambda: read_pixels(tmp_path / images / "a.png"), lambda: dataset.write_copies(0)):  # fmt: skip
        with pytest.raises(InputError, match=r"a\.png: (the image cannot be read|more than 89,478,485 pixels)"):
            read()
    assert len(check_file(dataset, 0).errors) == 2


def test_names_of_files_do_not_steer_the_terminal(tiny_pair, tmp_path: Path, capsys: Any) -> None:
    name = "evil\x1b[2J[red]:car:.png"
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(b"")
    pair = open_pair(SourceConfig(str(tmp_path), "gta5"), TargetDataConfig(str(tiny_pair.target_root)))
    assert check_pair(pair) == 1
    shown = capsys.readouterr().out
    assert r"evil\x1b[2J[red]:car:.png: the image cannot be read" in shown
    assert "\x1b" not in shown


def test_a_config_that_resumes_must_be_sound(run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, "batch_size": None}))
    with pytest.raises(InputError, match=r"config\.yaml, batch_size: expected int, got null"):
        parse_config(TrainConfig, "x", "x", ["--resume", str(run)])
