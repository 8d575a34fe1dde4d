"""The constraints of ``make test-lowest`` and the extras follow pyproject.toml and the imports."""

import importlib.metadata
import sys
from pathlib import Path

import pytest
from lowest_versions import PROJECT, PYPROJECT, constraint, requirements
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.imports import imported_packages

ROOT = Path(__file__).resolve().parents[1]
#: The requirements of `import dem_apps`, and torchvision, which must match torch.
CORE = {"torch", "torchvision", "numpy"}
#: Extras of their own, and packages that come with torch, optuna and transformers.
NOT_NAMED = {
    "rasterio", "ray", "sqlalchemy", "transformers", "torchmetrics", "triton", "onnx", "onnxruntime", "onnxscript",
}  # fmt: skip


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
    missing = {name for name in others if not installed & set(map(canonicalize_name, owners.get(name, [name])))}
    assert not missing, f"the extra '{extra}' lacks the packages of {sorted(missing)}"


def test_the_checks_are_made_for_the_lowest_python():
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert PYPROJECT["tool"]["mypy"]["python_version"] == lowest
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + lowest.replace(".", "")
