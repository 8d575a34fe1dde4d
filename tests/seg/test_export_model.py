"""A run's network as a folder of smp, transformers or ONNX, with the same numbers."""

import dataclasses
import sys

import pytest
import segmentation_models_pytorch as smp
import torch
from support import refuses
from support.trained_networks import open_trained
from support.untrained_run import write_run

from seg.export_model import ExportModelConfig, export_model
from seg.models.settings import ModelConfig
from seg.trained.trained_network import TrainedNetwork

IMAGES = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    models = {
        "fpn": ModelConfig("fpn", "resnet18", depth=4),
        "deeplabv2": ModelConfig("deeplabv2", "resnet18"),
    }
    return {name: write_run(folder / name, 0, model=model) for name, model in models.items()}


@pytest.fixture
def onnxruntime():
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    return pytest.importorskip("onnxruntime")


@pytest.mark.parametrize(
    ("name", "library"), [("fpn", "segmentation-models-pytorch"), ("deeplabv2", "dem-apps")]
)
@torch.no_grad()
def test_what_was_exported_is_opened(runs, name, library, tmp_path, capsys):
    out = export_model(ExportModelConfig(run=str(runs[name]), out=str(tmp_path / "model")))
    assert f"{out} for {library}" in capsys.readouterr().out
    ours, opened = open_trained(str(runs[name])), open_trained(str(out))
    expected = ours.logits(IMAGES)
    if name == "fpn":
        torch.testing.assert_close(
            smp.from_pretrained(out).eval()(IMAGES), expected, rtol=1e-4, atol=1e-4
        )
    assert torch.equal(opened.logits(IMAGES), expected)
    assert opened.description == ours.description
    next(opened.network.parameters()).mul_(1.1)
    opened.save(tmp_path / "adapted")
    assert torch.equal(
        open_trained(str(tmp_path / "adapted")).logits(IMAGES), opened.logits(IMAGES)
    )
    text = (out / "config.json").read_text()
    (out / "config.json").write_text(text.replace('"resnet18"', '"resnet19"'))
    refuses(r"encoder: 'resnet19' is not known", open_trained, str(out))


def test_onnx_gives_the_same_logits_at_any_size(onnxruntime, runs, tmp_path, capsys):
    config = ExportModelConfig(
        run=str(runs["deeplabv2"]), out=str(tmp_path / "model"), onnx=True, size=[96, 64]
    )
    out = export_model(config)
    said = "images (B, 3, H, W), normalised, H and W multiples of 32, to logits (B, 19, H, W)"
    assert said in capsys.readouterr().out
    session = onnxruntime.InferenceSession(
        str(out / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    for images in (IMAGES, torch.randn(3, 3, 160, 32, generator=torch.Generator().manual_seed(1))):
        (logits,) = session.run(None, {"images": images.numpy()})
        with torch.no_grad():
            expected = open_trained(str(runs["deeplabv2"])).logits(images)
        torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=1e-4, atol=1e-4)


OWN = """
import torch
from timm.layers import Conv2dSame
from torch.nn import functional as F
class Pooled(torch.nn.Conv2d):
    def forward(self, images):
        return F.interpolate(F.adaptive_avg_pool2d(super().forward(images), 5), images.shape[2:])
FACTS = {"mean": [0.5] * 3, "std": [0.5] * 3}
def plain(): return torch.nn.Conv2d(3, 4, 1), FACTS
def pooled(): return Pooled(3, 4, 1), FACTS
def padded(): return Conv2dSame(3, 4, 3), FACTS
"""


@pytest.fixture
def own_onnx(onnxruntime, tmp_path, monkeypatch):
    """Export a network of the module above at a size."""
    (tmp_path / "own_of_onnx.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)

    def exported(name, size):
        out = str(tmp_path / "model")
        return export_model(
            ExportModelConfig(model=f"own_of_onnx:{name}", out=out, onnx=True, size=list(size))
        )

    return exported


def test_onnx_whose_logits_differ_is_not_kept(own_onnx, tmp_path, monkeypatch):
    """Planted: 1 is added in the check."""
    plain = TrainedNetwork.logits
    more = lambda self, images: plain(self, images) + (not torch.compiler.is_exporting())  # noqa: E731
    monkeypatch.setattr(TrainedNetwork, "logits", more)
    refuses(
        r"--onnx: the file's logits differ from the network's by up to 1",
        own_onnx,
        "plain",
        (96, 64),
    )
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("name", "size"), [("pooled", (96, 64)), ("plain", (90, 60)), ("padded", (96, 64))]
)
@pytest.mark.slow
def test_onnx_of_one_size_where_parts_depend_on_it(name, size, own_onnx, capsys):
    own_onnx(name, size)
    sides = f"{size[1]}, {size[0]}"
    assert (
        f"images (1, 3, {sides}), normalised, to logits (1, 4, {sides})" in capsys.readouterr().out
    )


def test_without_the_extra_onnx_is_a_sentence(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    config = ExportModelConfig(run=str(runs["fpn"]), out=str(tmp_path / "model"), size=[64, 64])
    refuses(r"--size: expected together with --onnx, which is compared at it", export_model, config)
    refuses(
        r"--onnx needs the package .*; run pip install 'dem-apps\[onnx\]'",
        export_model,
        dataclasses.replace(config, onnx=True),
    )
    assert not (tmp_path / "model").exists()
