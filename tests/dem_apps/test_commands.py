"""Configurations are found from any folder, and a command without its extra says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dem_apps.runtime.arguments import CONFIGS, found, shipped_with
from dem_apps.runtime.settings import parse_config
from seg.config import TrainConfig
from seg.data.labels import load_classes

ROOT = Path(__file__).resolve().parents[2]


def test_configs_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_config(TrainConfig, "x", "x", ["--config", "best"]) != TrainConfig()
    for name in ("folders", "configs/seg/folders.yaml"):
        classes = parse_config(TrainConfig, "x", "x", ["--config", name]).classes
        assert len(load_classes(classes)) > 1
    assert shipped_with(TrainConfig)["folders"] == found("configs/seg/folders.yaml") == CONFIGS / "seg" / "folders.yaml"
    assert found("configs/seg/none.yaml") == Path("configs/seg/none.yaml")
    assert found("configs/../../pyproject.toml") == Path("configs/../../pyproject.toml")
    (tmp_path / "configs" / "seg").mkdir(parents=True)
    own = tmp_path / "configs" / "seg" / "folders.yaml"
    own.write_text("seed: 3\n")
    assert found("configs/seg/folders.yaml").resolve() == own  # what is here wins


@pytest.mark.parametrize(
    ("module", "needed"),
    [
        ("seg.train", "rich, not installed here; pip install -e '.[seg]'"),
        ("seg.data", "rich, not installed here; pip install -e '.[seg]'"),
        ("rl.train", "rich, not installed here; pip install -e '.[rl]'"),
        ("dem_apps.report", "jinja2, not installed here; pip install -e '.[commands]'"),
    ],
)
def test_a_command_without_its_extra_says_so(module, needed, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in ('rich', 'jinja2') else found(name, *rest)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", module, "--help"]
    # elsewhere: what stands in the folder that a command starts in comes first, our own installation among it
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: this command needs {needed}\n")
