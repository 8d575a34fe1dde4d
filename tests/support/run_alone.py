"""``python run_alone.py PACKAGES PROGRAM`` runs a program as if only these packages were installed.

Other installed packages, except for requirements of these and for this repository, can neither be imported nor asked
for their version.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

OURS = {"dem_apps", "seg", "rl"}


class Without:
    """A finder of ``sys.meta_path`` that does not find these top-level names, nor other distributions than these."""

    def __init__(self, finder: Any, names: set[str], distributions: set[str]) -> None:
        self._finder, self._names, self._distributions = finder, names, distributions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        missing = name.partition(".")[0] in self._names
        return None if missing else self._finder.find_spec(name, path, target)

    def find_distributions(self, *context: Any) -> Iterator[importlib.metadata.Distribution]:
        find = getattr(self._finder, "find_distributions", None)
        for distribution in find(*context) if find else ():
            if normal(distribution.metadata["Name"]) in self._distributions:
                yield distribution


def with_requirements(names: Sequence[str]) -> set[str]:
    """The distributions and all that they require, extras left out."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = normal(waiting.pop())
        if name in found:
            continue
        found.add(name)
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # for another system or Python
            continue
        waiting += [re.match(r"[\w.-]+", line).group() for line in lines if "extra ==" not in line]  # type: ignore[union-attr]
    return found


def modules_of_others(distributions: set[str]) -> set[str]:
    """Top-level names that only other distributions bring."""
    owners = importlib.metadata.packages_distributions().items()
    kept = {module for module, names in owners if any(normal(name) in distributions for name in names)}
    return {module for module, _ in owners} - kept - OURS


def normal(name: str) -> str:
    """As package indices compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    distributions = with_requirements(sys.argv[1].split(","))
    names = modules_of_others(distributions)
    sys.meta_path[:] = [Without(finder, names, distributions | {"dem-apps"}) for finder in sys.meta_path]
    exec(compile(sys.argv[2], "<program>", "exec"), {"__name__": "__main__"})
