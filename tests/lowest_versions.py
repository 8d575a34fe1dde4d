"""The lowest version that pyproject.toml allows of every dependency, as pip's constraints: ``make test-lowest``.

A lower bound has to be a released version (``>=4.9.0.80``, not ``>=4.9``), since pip is asked for exactly that one.
torch and torchvision match if pip can install both: each torchvision names the one torch that it was built for.
"""

from __future__ import annotations

import sys
import tomllib
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


def constraints(table: dict[str, Any], extras: tuple[str, ...] = ("dev",)) -> list[str]:
    """``name==version`` for every dependency, and for those of the extras."""
    lists = [table["dependencies"], *(table["optional-dependencies"][extra] for extra in extras)]
    requirements = [Requirement(line) for lines in lists for line in lines]
    return [f"{each.name}=={lower_bound(each.specifier, each.name)}" for each in requirements]


def lowest_python(table: dict[str, Any]) -> Version:
    """The lowest Python that the project promises to run on."""
    return lower_bound(SpecifierSet(table["requires-python"]), "requires-python")


if __name__ == "__main__":
    lowest = lowest_python(project())
    if sys.version_info[:2] != lowest.release[:2]:
        sys.exit(f"lowest versions are tested with Python {lowest}, this is {sys.version.split()[0]}; set PYTHON")
    print("\n".join(constraints(project())))
