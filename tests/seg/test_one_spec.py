"""One SPEC in every command: what was trained, and what seg.adapt made of it, goes on into all others."""

import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch
from PIL import Image
from support import cases, noise, refuses, save

import seg.adapt
import seg.adaptation.command
import seg.evaluate
import seg.export
import seg.export_model
from seg import load

MAINS = {"seg.export": seg.export.main, "seg.export_model": seg.export_model.main}
#: Ids by a pixel's red; 11 is no class.
LABELS = np.repeat(np.array([11, 1, 2, 0], np.uint8), 64)
IMAGENET = ("--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225")


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Flags of images and of their labels, and beside them a file of weights, a folder and a function."""
    for index in range(3):
        save(tmp_path / "images" / f"{index}.png", noise(index, 32, 32))
        save(tmp_path / "labels" / f"{index}.png", LABELS[noise(index, 32, 32)[..., 0]])
    torch.manual_seed(0)
    network = smp.Unet("resnet18", encoder_weights=None, classes=3, activation=None)
    network.save_pretrained(tmp_path / "folder")
    torch.save({"model": network.state_dict()}, tmp_path / "a.pth")
    (tmp_path / "mine_of_spec.py").write_text(
        "import segmentation_models_pytorch as smp\n"
        "def build(): return smp.Unet('resnet18', encoder_weights=None, classes=3)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_of_spec", raising=False)
    return ["--images", "images", "--labels", "labels"]


SPECS = {
    "weights": [
        "--model",
        "a.pth",
        "--architecture",
        "Unet",
        "--encoder",
        "resnet18",
        "--classes",
        "a,b,c",
    ],
    "function": ["--model", "mine_of_spec:build", "--weights", "a.pth", "--classes", "a,b,c"],
}


@pytest.mark.parametrize("kind", SPECS)
def test_what_was_adapted_goes_on(kind, folders, run_here):
    labels = [*folders, "--ignore", "11"]
    spec = [*SPECS[kind], *IMAGENET, "--device", "cpu"]
    flags = ("--out", "out", "--accept", "--bn-alpha", "1", "--method", "bn")
    printed = run_here(seg.adapt.main, *spec, *labels, *flags).out
    seen = "RGB from 0 to 1, mean 0.485 0.456 0.406, deviation 0.229 0.224 0.225"
    assert f"seen as:  {seen} (the user)" in printed
    commands = [
        line.partition("python -m ")[2] for line in printed.splitlines() if "python -m " in line
    ][-2:]
    assert [command.split()[0] for command in commands] == ["seg.export", "seg.export_model"]
    words = shlex.split(commands[0].replace("DIR", "images"))
    assert seen in run_here(MAINS[words[0]], *words[1:], "--label-ids", "--device", "cpu").out
    for index in range(3):
        files = (f"{folder}/{index}_pred_labelIds.png" for folder in ("out/after", "predictions"))
        first, again = (np.asarray(Image.open(file)) for file in files)
        assert (first != again).mean() < 0.01
    words = shlex.split(commands[1].removesuffix(" --onnx"))
    run_here(MAINS[words[0]], *words[1:])
    words = words[1 : words.index("--out")]
    run_here(seg.evaluate.main, *words, *labels, "--out", "scores.json", "--device", "cpu")
    miou = json.loads(Path("scores.json").read_text())["miou"]
    assert miou == pytest.approx(
        json.loads(Path("out/adapt.json").read_text())["labels"]["after"], abs=0.01
    )
    if kind == "function":  # no code runs that a file names
        refuses(r"give --model=mine_of_spec:build --weights=out/adapted/a\.pth", load, "out")
    else:
        assert (
            load("out", device="cpu").description.origin
            == "the network's own preprocessor_config.json"
        )


@cases(
    ([], "--model: is missing"),
    (["--model", "nowhere"], "--model: nowhere: no such folder or file; expected a run folder"),
    (
        ["--model", "a.pth"],
        "a.pth is a file of weights; give --architecture, --encoder and --classes",
    ),
    (
        ["--model", "folder", "--architecture", "Unet"],
        "--architecture: folder is no file of weights",
    ),
    (["--model", "folder", "--mean", "1,2,3"], "--std: is missing; --mean R,G,B and --std R,G,B"),
    (
        ["--model", "folder", "--mean", "1,2", "--std", "1,2"],
        "--mean: expected three numbers R,G,B, got 2",
    ),
    (["--model", "folder", "--scale", "128"], "--scale: expected 255 or 1, got 128"),
    (["--model", "folder", "--channels", "brg"], "--channels: 'brg' is not one of rgb, bgr"),
)
def test_what_names_no_network_is_one_sentence_in_every_command(flags, message, folders, run_here):
    for main in (seg.adapt.main, seg.export.main, seg.evaluate.main, seg.export_model.main):
        given = (
            ["--images", "images"] if main not in (seg.export_model.main, seg.evaluate.main) else []
        )
        out = ["--out", "new"] if main is not seg.evaluate.main else []
        said = run_here(main, *flags, *given, *out, status=2).err
        assert message in said or (not flags and main is seg.adapt.main)
        assert not Path("new").exists()


def test_a_device_that_is_not_there_is_refused_before_the_demo_is_made(monkeypatch):
    monkeypatch.setattr(seg.adaptation.command, "foggy_target", pytest.fail)
    refuses(
        r"^--device: torch cannot use 'cuda:7' here",
        seg.adapt.adapt,
        seg.adapt.AdaptConfig(device="cuda:7"),
    )
