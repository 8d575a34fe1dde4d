"""Constraints of ``make test-lowest``, extras, and what works with torch and numpy or stable-baselines3 alone."""

import importlib.metadata
import re
import sys

import pytest
from lowest_versions import PROJECT, PYPROJECT, constraint, requirements
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support import ROOT, imported_packages, python

#: The requirements of `import dem_apps`, and torchvision, which must match torch.
CORE = {"torch", "torchvision", "numpy"}
#: Extras of their own, and packages that come with torch, optuna and transformers.
NOT_NAMED = {"rasterio", "ray", "sqlalchemy", "transformers", "torchmetrics", "triton"}
NOT_NAMED |= {"onnx", "onnxruntime", "onnxscript"}


def test_every_dependency_has_its_lower_bound_as_constraint():
    required = {each.name: each for each in requirements("dev")}
    assert len(required) > 25
    for name, each in required.items():
        pinned, bound = constraint(each).split("==")
        assert (pinned, each.specifier.contains(bound)) == (name, True)


def test_the_extras_are_the_promised_ones():
    assert {Requirement(line).name for line in PROJECT["dependencies"]} == CORE
    names = {"seg", "rl", "cluster", "hf", "geo", "dev", "all"}
    assert names <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("extra", ["seg", "rl"])
def test_an_application_installs_its_imports(extra):
    owners = importlib.metadata.packages_distributions()
    required = {each.name for each in requirements(extra)}
    installed = {canonicalize_name(name) for name in required | NOT_NAMED}
    files = [*(ROOT / extra).rglob("*.py"), *(ROOT / "dem_apps").rglob("*.py")]
    imported = set().union(*(imported_packages(file.read_text(encoding="utf-8")) for file in files))
    others = imported - {"dem_apps", "seg", "rl", "__future__"} - sys.stdlib_module_names
    missing = {
        name
        for name in others
        if not installed & set(map(canonicalize_name, owners.get(name, [name])))
    }
    assert not missing, f"the extra '{extra}' lacks the packages of {sorted(missing)}"


def test_the_checks_are_made_for_the_lowest_python():
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert PYPROJECT["tool"]["mypy"]["python_version"] == lowest
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + lowest.replace(".", "")


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
    return python("-S", "-c", program, folder=folder, PYTHONPATH=f"{folder}:{ROOT}").split()


OF_THE_CORE = """
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
OF_THE_HOOK = """
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
    for algorithm, given in both if name == "adadem" else both[:1]:
        given |= {"ent_coef": 0.01, "seed": 0, "device": "cpu"}
        model = with_entropy_objective(algorithm, name)("MlpPolicy", "CartPole-v1", **given)
        before = [weight.detach().clone() for weight in model.policy.parameters()]
        model.learn(64)
        assert any(not torch.equal(one, two) for one, two in zip(before, model.policy.parameters(), strict=True))
    print(name)
"""


def test_every_objective_works_with_torch_and_numpy_only(tmp_path):
    assert "adadem" in run_alone(OF_THE_CORE, tmp_path, "torch", "numpy")


def test_every_objective_trains_a_policy_with_stable_baselines3_only(tmp_path):
    assert {"adadem", "entropy", "none"} <= set(
        run_alone(OF_THE_HOOK, tmp_path, "stable-baselines3")
    )
