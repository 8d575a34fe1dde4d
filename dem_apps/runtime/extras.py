"""What a command needs that ``import dem_apps`` does not: told in one sentence before anything fails to import."""

from __future__ import annotations

import importlib.metadata
import re
import sys

_PROJECT = "dem-apps"


def command_needs(extra: str) -> None:
    """End the process with one sentence if it is a command of this package without the packages of its extra.

    Called by a package's ``__init__``, which ``python -m`` imports while ``sys.argv[0]`` is still ``-m``. Whoever
    imports the package to use a part of it is left alone: a part needs less than the commands.

    Args:
        extra: of pyproject.toml, such as ``seg``.
    """
    if sys.argv[:1] == ["-m"] and (missing := missing_packages(extra)):
        names = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
        print(f"error: this command needs {names}, not installed here; pip install -e '.[{extra}]'", file=sys.stderr)
        sys.exit(2)


def missing_packages(extra: str) -> list[str]:
    """Names of the packages of an extra, and of those that it names in turn, that are not installed."""
    missing: list[str] = []
    for name, extras in _requirements(extra):
        if name == _PROJECT:
            missing += [package for more in extras for package in missing_packages(more)]
        elif not is_installed(name):
            missing.append(name)
    return missing


def _requirements(extra: str) -> list[tuple[str, list[str]]]:
    """Name and extras of each requirement of an extra; none where the project is on a path and was never installed."""
    try:
        lines = importlib.metadata.requires(_PROJECT) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    wanted = re.compile(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    found = [re.match(r"([\w.-]+)(?:\[([^]]*)\])?", line) for line in lines if wanted.search(line)]
    return [(each[1], [name.strip() for name in (each[2] or "").split(",")]) for each in found if each]


def is_installed(name: str) -> bool:
    """Whether a package is, by its name on an index."""
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
