"""The lowest version that pyproject.toml allows of every dependency, as pip's constraints: ``make test-lowest``.

A lower bound is a released version (``>=4.9.0.80``, not ``>=4.9``), since pip installs exactly that one. torch and
torchvision match if pip can install both: each torchvision requires the torch that it was built for.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def project() -> dict[str, Any]:
    """The table ``[project]``."""
    table: dict[str, Any] = tomllib.loads(PYPROJECT.read_text())["project"]
    return table


def lower_bound(specifiers: SpecifierSet, of: str) -> Version:
    """The version after ``>=``.

    Raises:
        ValueError: there is none, or more than one.
    """
    bounds = [Version(specifier.version) for specifier in specifiers if specifier.operator == ">="]
    if len(bounds) != 1:
        raise ValueError(f"pyproject.toml: '{of}' needs one lower bound, such as '{of}>=1.0'")
    return bounds[0]


def requirements(table: dict[str, Any], extras: Iterable[str] = ("dev",)) -> list[Requirement]:
    """The project's own dependencies, those of the extras, and those of the extras that these name in turn."""
    found = [Requirement(line) for line in table["dependencies"]]
    named: set[str] = set()
    waiting = list(extras)
    while waiting:
        extra = waiting.pop()
        if extra not in named:
            named.add(extra)
            own = [Requirement(line) for line in table["optional-dependencies"][extra]]
            waiting += [more for requirement in own if requirement.name == table["name"] for more in requirement.extras]
            found += [requirement for requirement in own if requirement.name != table["name"]]
    return found


def constraints(table: dict[str, Any], extras: Iterable[str] = ("dev",)) -> list[str]:
    """``name==version`` for every dependency, and for those of the extras."""
    return [f"{each.name}=={lower_bound(each.specifier, each.name)}" for each in requirements(table, extras)]


def lowest_python(table: dict[str, Any]) -> Version:
    """The lowest supported Python."""
    return lower_bound(SpecifierSet(table["requires-python"]), "requires-python")


if __name__ == "__main__":
    lowest = lowest_python(project())
    if sys.version_info[:2] != lowest.release[:2]:
        sys.exit(f"lowest versions are tested with Python {lowest}, this is {sys.version.split()[0]}; set PYTHON")
    print("\n".join(constraints(project())))
