"""What `make test-lowest` installs is what pyproject.toml promises."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import lowest_versions
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_dependency_is_there_with_its_lower_bound(pyproject: dict[str, Any]) -> None:
    table = pyproject["project"]
    lines = [*table["dependencies"], *table["optional-dependencies"]["dev"]]
    constraints = lowest_versions.constraints(table)
    assert len(constraints) == len(lines) > 25
    for line, constraint in zip(lines, constraints, strict=True):
        name, _, version = constraint.partition("==")
        requirement = Requirement(line)
        assert requirement.name == name
        assert requirement.specifier.contains(version)
        assert f">={version}" in line.replace(" ", "")


@pytest.mark.parametrize("specifiers", ["", "<2.1", ">=1.0,>=1.1"])
def test_a_dependency_without_one_lower_bound_is_named(specifiers: str) -> None:
    with pytest.raises(ValueError, match="'numpy' needs one lower bound, such as"):
        lowest_versions.lower_bound(SpecifierSet(specifiers), "numpy")


def test_the_checks_are_made_for_the_lowest_python(pyproject: dict[str, Any]) -> None:
    lowest = str(lowest_versions.lowest_python(pyproject["project"]))
    assert pyproject["tool"]["mypy"]["python_version"] == lowest
    assert pyproject["tool"]["ruff"]["target-version"] == "py" + lowest.replace(".", "")
