"""The lowest version that pyproject.toml allows of every dependency, as pip's constraints: ``make test-lowest``.

A lower bound is a released version (``>=4.9.0.80``, not ``>=4.9``), since pip installs exactly that one. torch and
torchvision match if pip can install both: each torchvision requires the torch that it was built for.
"""

import sys
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

PYPROJECT: dict[str, Any] = tomllib.loads(
    (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text()
)
PROJECT: dict[str, Any] = PYPROJECT["project"]


def requirements(*extras: str) -> list[Requirement]:
    """The project's own dependencies, those of the extras, and those of the extras that these name in turn."""
    found, waiting = [Requirement(line) for line in PROJECT["dependencies"]], list(extras)
    for extra in waiting:  # grows
        for each in map(Requirement, PROJECT["optional-dependencies"][extra]):
            if each.name == PROJECT["name"]:
                waiting += each.extras - set(waiting)
            else:
                found.append(each)
    return found


def constraint(requirement: Requirement) -> str:
    """``name==version``; a ValueError without exactly one lower bound."""
    (bound,) = [
        specifier.version for specifier in requirement.specifier if specifier.operator == ">="
    ]
    return f"{requirement.name}=={bound}"


if __name__ == "__main__":
    lowest = PROJECT["requires-python"].removeprefix(">=")
    if not sys.version.startswith(f"{lowest}."):
        sys.exit(
            f"lowest versions are tested with Python {lowest}, this is {sys.version.split()[0]}; set PYTHON"
        )
    print("\n".join(map(constraint, requirements("dev"))))
