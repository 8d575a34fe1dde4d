"""A command without the packages of its extra says so in one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


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
