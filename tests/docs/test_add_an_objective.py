"""docs/howto/add_an_objective.md, followed step by step in a copy of the repository."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pages = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("pages.py"))))
PAGE = pages.ROOT / "docs" / "howto" / "add_an_objective.md"
NEEDED = ("dem_apps", "rl", "tests/dem_apps", "tests/rl/test_fast_update.py", "pyproject.toml")
TESTS = ("tests/dem_apps/test_objective_against_paper.py", "tests/dem_apps/test_objectives.py", "tests/rl")


def in_copy(folder: Path, *command: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, input=given, capture_output=True, text=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="the page uses git apply")
def test_the_steps_are_complete(tmp_path: Path) -> None:
    for name in NEEDED:
        copy = shutil.copytree if (pages.ROOT / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy(pages.ROOT / name, tmp_path / name)
    patches = [block for block in pages.blocks(PAGE.read_text(encoding="utf-8")) if block.language == "diff"]
    assert len(patches) == 2
    for patch in patches:
        applied = in_copy(tmp_path, "git", "apply", "--verbose", "-", given=patch.text)
        assert applied.returncode == 0, f"line {patch.line}: {applied.stderr}"
    # the page's own name, and the tests of the list of names; the page says to run them all
    chosen = ("-k", "squares or names or options_are", "-p", "no:cacheprovider")
    done = in_copy(tmp_path, sys.executable, "-m", "pytest", "-q", *chosen, *TESTS)
    assert done.returncode == 0, done.stdout[-3000:]
