"""Commands and configurations are found: listed by their packages, from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dem_apps.runtime.arguments import CONFIGS, found, shipped_with
from dem_apps.runtime.command_list import COMMANDS
from dem_apps.runtime.settings import parse_config
from seg.config import TrainConfig
from seg.data.labels import load_classes

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("package", COMMANDS)
def test_every_command_is_listed(package: str) -> None:
    files = [file for file in (ROOT / package).glob("*.py") if file.stem != "__main__"]
    modules = {file.stem for file in files if '__name__ == "__main__"' in file.read_text()}
    modules |= {file.parent.name for file in (ROOT / package).glob("*/__main__.py")}
    assert {name.split()[0] for name in COMMANDS[package]} == modules


@pytest.mark.parametrize("package", COMMANDS)
def test_a_package_lists_its_commands(package: str, tmp_path: Path) -> None:
    done = run("-m", package, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in COMMANDS["seg" if package == "dem_apps" else package]:  # that of dem_apps lists all
        assert f"python -m {'seg' if package == 'dem_apps' else package}.{name} " in done.stdout


def test_configs_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
