"""A command without the packages of its extra says so in one sentence; imports of a part are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run(arguments: list[str], installed: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{installed}:{ROOT}"}
    # elsewhere: what stands in the folder that a command starts in comes first, our own installation among it
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=installed, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A folder on the path with a sitecustomize that hides two packages."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in ('rich', 'jinja2') else found(name, *rest)\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("seg.train", "needs rich, not installed here; pip install -e '.[seg]'"),
        ("seg.data", "needs rich, not installed here; pip install -e '.[seg]'"),
        ("rl.train", "needs rich, not installed here; pip install -e '.[rl]'"),
        ("dem_apps.report", "needs jinja2, not installed here; pip install -e '.[commands]'"),
    ],
)
def test_a_command_without_its_extra_says_so(module: str, sentence: str, blocked: Path) -> None:
    done = run(["-m", module, "--help"], blocked)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: this command {sentence}\n")


def test_a_part_is_used_without_the_rest(blocked: Path) -> None:
    done = run(["-c", "from rl import with_entropy_objective; from seg import build_model; print('fine')"], blocked)
    assert done.stdout == "fine\n", done.stderr
