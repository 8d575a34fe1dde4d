"""The core with torch and numpy alone."""

from support.run_alone import run_alone


def test_every_objective_works_with_torch_and_numpy_only():
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
    done = run_alone(program, "torch", "numpy")
    assert done.returncode == 0, done.stderr
    assert "adadem" in done.stdout.split()
