"""A program run as if only a few of the installed packages were there."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_alone(program: str, *packages: str) -> subprocess.CompletedProcess[str]:
    """Runs it where these distributions, all that they require, and this repository can be imported."""
    waiting = list(packages)
    with tempfile.TemporaryDirectory() as folder:
        for name in waiting:  # grows
            try:
                distribution = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:  # for another system or Python
                continue
            required = [line for line in distribution.requires or () if "extra ==" not in line]
            waiting += {re.split(r"[^\w.-]", line)[0] for line in required} - set(waiting)
            for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
                if not Path(folder, top).exists():
                    Path(folder, top).symlink_to(distribution.locate_file(top))
        return subprocess.run(
            [sys.executable, "-S", "-c", program],
            env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}, cwd=folder, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip
