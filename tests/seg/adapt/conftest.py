import importlib
import sys

import numpy as np
import pytest
from PIL import Image
from support import noise, save
from support.adapting import IMAGENET, NETWORKS, parsed, spec

from seg.adaptation.decision import Verdict


@pytest.fixture
def networks(tmp_path, monkeypatch):
    """The module of the networks above."""
    (tmp_path / "own_adapted.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_adapted", raising=False)
    return importlib.import_module("own_adapted")


@pytest.fixture
def images(tmp_path):
    """Nine images of patches, two of another size, one below a folder, and a label of each."""
    for index in range(9):
        width, height = (24, 16) if index not in (3, 4) else (16, 24)
        patches = Image.fromarray(noise(index, 4, 4)).resize(
            (width, height), Image.Resampling.BILINEAR
        )
        name = f"deep/{index}.png" if index == 8 else f"{index}.png"
        save(tmp_path / "images" / name, np.asarray(patches))
        save(tmp_path / "labels" / name, noise(index, width, height)[..., 0] % 4)
    return tmp_path / "images"


@pytest.fixture
def config(networks, images, tmp_path):
    flags = {
        **spec(networks, "build", tmp_path),
        "images": str(images),
        "out": str(tmp_path / "out"),
    }
    return parsed(**flags, **IMAGENET, device="cpu", batch_size=2, method="tent")


@pytest.fixture
def accepted(monkeypatch):
    """Every adaptation is accepted."""
    monkeypatch.setattr(
        "seg.adaptation.decision.decide", lambda *_: Verdict(True, "the test says so")
    )
