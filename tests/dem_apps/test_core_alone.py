"""The core with torch and numpy alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUN_ALONE = Path(__file__).resolve().parents[1] / "support" / "run_alone.py"


def run_alone(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUN_ALONE), "torch,numpy", program], capture_output=True, text=True, timeout=120
    )


def test_every_objective_works_with_torch_and_numpy_only() -> None:
    program = """
import torch
from dem_apps import OBJECTIVE_NAMES, build_objective

for name in OBJECTIVE_NAMES:
    for backend in ("auto", "eager", "reference"):
        objective = build_objective(name, num_classes=5, backend=backend)
        logits = torch.randn(2, 5, 8, 8, requires_grad=True)
        for reduction in ("mean", "balanced"):
            objective(logits, reduction=reduction).backward()
        assert logits.grad.isfinite().all() and logits.grad.abs().sum() > 0, name
    print(name)
"""
    done = run_alone(program)
    assert done.returncode == 0, done.stderr
    assert "adadem" in done.stdout.split()


def test_a_mistake_is_one_sentence() -> None:
    done = run_alone("from dem_apps import build_objective\nbuild_objective('adadme', num_classes=5)")
    assert "did you mean 'adadem'?" in done.stderr.splitlines()[-1]


def test_other_packages_cannot_be_imported() -> None:
    for name in ("rich", "scipy", "jsonargparse", "gymnasium", "stable_baselines3", "segmentation_models_pytorch"):
        done = run_alone(f"import {name}")
        assert f"No module named '{name}'" in done.stderr
