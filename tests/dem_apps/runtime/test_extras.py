"""A command without the packages of its extra says so in one sentence; imports of a part are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
METADATA = """Metadata-Version: 2.1
Name: dem-apps
Version: 0.1.0
Provides-Extra: commands
Requires-Dist: torch>=2.6
Requires-Dist: rich>=13.0; extra == "commands"
Requires-Dist: no-such-reader>=1.0; extra == "commands"
Requires-Dist: dem-apps[commands]; extra == "seg"
Requires-Dist: no.such-network>=0.4; extra == "seg"
Requires-Dist: dem-apps[commands]; extra == "rl"
"""


def run(arguments: list[str], installed: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{installed}:{ROOT}"}
    # elsewhere: what stands in the folder that a command starts in comes first, our own installation among it
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=installed, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with an installation of ours whose extras name packages that nobody has."""
    folder = tmp_path / "dem_apps-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("seg.train", "needs no-such-reader and no.such-network, not installed here; pip install -e '.[seg]'"),
        ("seg.data", "needs no-such-reader and no.such-network, not installed here; pip install -e '.[seg]'"),
        ("rl.train", "needs no-such-reader, not installed here; pip install -e '.[rl]'"),
        ("dem_apps.report", "needs no-such-reader, not installed here; pip install -e '.[commands]'"),
    ],
)
def test_a_command_without_its_extra_says_so(module: str, sentence: str, installed: Path) -> None:
    done = run(["-m", module, "--help"], installed)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: this command {sentence}\n")


def test_a_part_is_used_without_the_rest(installed: Path) -> None:
    done = run(["-c", "from rl import with_entropy_objective; from seg import build_model; print('fine')"], installed)
    assert done.stdout == "fine\n", done.stderr
