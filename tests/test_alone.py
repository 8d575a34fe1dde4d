"""The core with torch and numpy alone, and the hook with stable-baselines3 and its requirements alone."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_alone(program, folder, *packages):
    """Output of a program that can import these distributions, all that they require, and this repository."""
    waiting = list(packages)
    for name in waiting:  # grows
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:  # for another system or Python
            continue
        required = [line for line in distribution.requires or () if "extra ==" not in line]
        waiting += {re.split(r"[^\w.-]", line)[0] for line in required} - set(waiting)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(distribution.locate_file(top))
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    command = [sys.executable, "-S", "-c", program]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


CORE = """
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
HOOK = """
import warnings
warnings.simplefilter("error", UserWarning)
import torch
from stable_baselines3 import A2C, PPO
import rl
from dem_apps import OBJECTIVE_NAMES
from rl.hook import with_entropy_objective

assert rl.with_entropy_objective is with_entropy_objective
for name in (*OBJECTIVE_NAMES, "none"):
    both = ((PPO, {"n_steps": 32, "batch_size": 16, "n_epochs": 2}), (A2C, {"n_steps": 8}))
    for algorithm, arguments in both if name == "adadem" else both[:1]:
        model = with_entropy_objective(algorithm, name)(
            "MlpPolicy", "CartPole-v1", ent_coef=0.01, seed=0, device="cpu", **arguments
        )
        before = [weight.detach().clone() for weight in model.policy.parameters()]
        model.learn(64)
        assert any(not torch.equal(one, two) for one, two in zip(before, model.policy.parameters(), strict=True))
    print(name)
"""


def test_every_objective_works_with_torch_and_numpy_only(tmp_path):
    assert "adadem" in run_alone(CORE, tmp_path, "torch", "numpy")


def test_every_objective_trains_a_policy_with_stable_baselines3_only(tmp_path):
    assert {"adadem", "entropy", "none"} <= set(run_alone(HOOK, tmp_path, "stable-baselines3"))
