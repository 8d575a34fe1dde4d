"""``--tile`` in the commands: the same scores and maps as of whole images, and a protocol that says so."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from support.untrained_run import write_run

import seg.evaluate
from seg import load
from seg.export import ExportConfig, export
from seg.models.settings import ModelConfig


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_config):
    """A network of stride 8 with a small field: its encoder is cut short."""
    model = ModelConfig("unet", "resnet18", depth=3)
    return write_run(tmp_path_factory.mktemp("runs") / "run", 0, target=tiny_config.target, model=model)


def test_scores_by_tiles_are_those_of_the_whole(run, tmp_path, run_here):
    def evaluated(name, *flags):
        done = run_here(seg.evaluate.main, "--run", str(run), "--out", str(tmp_path / name), *flags)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / name).read_text())

    whole, tiled = evaluated("whole"), evaluated("tiled", "--tile", "64")
    assert tiled["mean_entropy"] == pytest.approx(whole["mean_entropy"], rel=0.05)
    assert tiled["mean_entropy"] != whole["mean_entropy"]
    assert tiled["protocol"]["tile"] == 64
    assert "tile" not in whole["protocol"]
    assert evaluated("one", "--tile", "512")["mean_entropy"] == whole["mean_entropy"]


def test_a_large_image_is_no_thumbnail_in_tiles(run, tmp_path, capsys):
    small = tmp_path / "small"  # as if it had been trained on images of 64 × 32
    shutil.copytree(run, small)
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["target"]["size"] = [64, 32]
    (small / "config.yaml").write_text(yaml.safe_dump(settings))
    image, images = np.random.default_rng(0).integers(0, 256, (256, 256, 3)).astype(np.uint8), tmp_path / "images"
    images.mkdir()
    Image.fromarray(image).save(images / "a.png")

    def exported(name, run, **flags):
        capsys.readouterr()
        config = ExportConfig(run=str(run), images=str(images), out=str(tmp_path / name), device="cpu", **flags)
        assert not export(config)
        return (tmp_path / name / "a_prediction.png").read_bytes(), capsys.readouterr().out

    native, _ = exported("native", run, tile=128, size=None)
    tiled, said = exported("tiled", small, tile=128)
    assert tiled == native
    assert "--tile: images at their own size; this run was trained at 64×32 (--size own)" in said
    shrunk, said = exported("shrunk", small)
    assert shrunk != native
    assert "a.png has 256×256 pixels, and the network sees it at 64×32; --tile 512 shows it all of them" in said
    assert exported("asked", small, tile=128, size="own")[0] == shrunk
    loaded = load(small, tile=128, device="cpu").predict(image)
    whole = load(run, size=None, device="cpu").predict(image)
    assert torch.equal(loaded.logits, load(run, size=None, tile=128, device="cpu").predict(image).logits)
    assert np.abs(loaded.probabilities - whole.probabilities).mean() < 0.2 * whole.probabilities.std()


def test_memory_of_tiles_grows_by_the_pictures_alone(tmp_path):
    """In bytes a pixel that is added: the logits of 32 classes have 128, the picture and its maps about 25."""
    program = """
import resource, sys
import torch
from PIL import Image
from seg.export import ExportConfig, export
import own
for number, height in enumerate((256, 1536)):
    Image.new("RGB", (512, height)).save(f"{number}.png")
    export(ExportConfig(model="own:network", images=f"{number}.png", out=f"out{number}", tile=128, device="cpu"))
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    own = "import torch\ndef network(): return torch.nn.Conv2d(3, 32, 1), {'mean': [0.5] * 3, 'std': [0.5] * 3}\n"
    (tmp_path / "own.py").write_text(own)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    small, large = (1024 * int(peak) for peak in re.findall(r"peak (\d+)", done.stdout))
    assert (large - small) / (512 * 1280) < 50
