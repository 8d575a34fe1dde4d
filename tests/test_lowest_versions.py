"""What `make test-lowest` installs is what pyproject.toml promises."""

from __future__ import annotations

import ast
import importlib.metadata
import sys
import tomllib
from pathlib import Path
from typing import Any

import lowest_versions
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


#: What `import dem_apps` needs, and torch's other half: installed one by one the two do not match.
CORE = {"torch", "torchvision", "numpy"}
#: Extras of their own, and what comes with optuna and transformers.
NOT_NAMED = {
    "imageio-ffmpeg", "rasterio", "ray", "sqlalchemy", "transformers", "huggingface-hub",
    "onnx", "onnxruntime", "onnxscript",
}  # fmt: skip


def lines_of(table: dict[str, Any], extra: str) -> list[str]:
    """Of an extra and of the project's extras that it names."""
    lines = []
    for line in table["optional-dependencies"][extra]:
        requirement = Requirement(line)
        ours = requirement.name == table["name"]
        lines += [more for name in requirement.extras for more in lines_of(table, name)] if ours else [line]
    return lines


def test_every_dependency_is_there_with_its_lower_bound(pyproject: dict[str, Any]) -> None:
    table = pyproject["project"]
    lines = {*table["dependencies"], *lines_of(table, "dev")}
    constraints = lowest_versions.constraints(table)
    assert len(constraints) == len(lines) > 25
    bounds = {constraint.partition("==")[0]: constraint.partition("==")[2] for constraint in constraints}
    for line in lines:
        requirement = Requirement(line)
        assert requirement.specifier.contains(bounds[requirement.name])
        assert f">={bounds[requirement.name]}" in line.replace(" ", "")


def test_the_extras_are_those_that_are_promised(pyproject: dict[str, Any]) -> None:
    table = pyproject["project"]
    assert {Requirement(line).name for line in table["dependencies"]} == CORE
    names = {"seg", "rl", "cluster", "hf", "geo", "video", "dev", "all"}
    assert names <= set(table["optional-dependencies"])
    everything = set(lines_of(table, "all"))
    assert all(set(lines_of(table, name)) <= everything for name in names - {"dev"})


@pytest.mark.parametrize("extra", ["seg", "rl"])
def test_an_application_installs_what_it_imports(extra: str, pyproject: dict[str, Any]) -> None:
    table = pyproject["project"]
    owners = importlib.metadata.packages_distributions()
    names = {*CORE, *(Requirement(line).name for line in lines_of(table, extra)), *NOT_NAMED}
    installed = {canonicalize_name(name) for name in names}
    files = [*(ROOT / extra).rglob("*.py"), *(ROOT / "dem_apps").rglob("*.py")]
    imported = set().union(*(imported_packages(file.read_text(encoding="utf-8")) for file in files))
    others = imported - {"dem_apps", "seg", "rl", "__future__"} - sys.stdlib_module_names
    missing = {
        name for name in others if not installed & {canonicalize_name(owner) for owner in owners.get(name, [name])}
    }
    assert not missing, f"the extra '{extra}' lacks the packages that bring {sorted(missing)}"


def imported_packages(source: str) -> set[str]:
    """Top-level names that a module imports, wherever in the file."""
    nodes = list(ast.walk(ast.parse(source)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0]
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("specifiers", ["", "<2.1", ">=1.0,>=1.1"])
def test_a_dependency_without_one_lower_bound_is_named(specifiers: str) -> None:
    with pytest.raises(ValueError, match="'numpy' needs one lower bound, such as"):
        lowest_versions.lower_bound(SpecifierSet(specifiers), "numpy")


def test_the_checks_are_made_for_the_lowest_python(pyproject: dict[str, Any]) -> None:
    lowest = str(lowest_versions.lowest_python(pyproject["project"]))
    assert pyproject["tool"]["mypy"]["python_version"] == lowest
    assert pyproject["tool"]["ruff"]["target-version"] == "py" + lowest.replace(".", "")
