"""``python -m dem_apps`` lists every command; ``dem-apps seg train …`` is ``python -m seg.train …``."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from pathlib import Path

from dem_apps.errors import InputError, nearest
from dem_apps.runtime.command import run_command
from dem_apps.runtime.command_list import COMMANDS, listing, shadow
from dem_apps.runtime.extras import missing_packages

_HELP = ("-h", "--help")


def main() -> None:
    """The console script ``dem-apps``."""
    run_command(_main)


def _main() -> None:
    script = not sys.argv[0].endswith("__main__.py")
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in _HELP:
        prefix = "dem-apps " if script else "python -m "
        print("\n\n".join(listing(package, prefix) for package in COMMANDS))
        print("\n--help behind a command lists its settings.")
        sys.path.insert(0, os.getcwd())
        for package in COMMANDS:
            if (place := shadow(package)) is not None:
                print(f"\nwarning: {_hidden(package, place)}")
        return
    package, rest = _package(arguments)
    if not rest or rest[0] in _HELP:
        print(listing(package, "dem-apps "))
        return
    _run(package, rest)


def _hidden(package: str, place: Path) -> str:
    return (
        f"{place}: hides the package '{package}' of dem-apps, which has the same name; rename it, or run the command "
        "from another folder"
    )


def _package(arguments: list[str]) -> tuple[str, list[str]]:
    """The package of a command line, and what follows; ``report`` and ``figures`` go without one."""
    first = arguments[0]
    if first in COMMANDS:
        return first, arguments[1:]
    if first in COMMANDS["dem_apps"]:
        return "dem_apps", arguments
    known = [*COMMANDS, *COMMANDS["dem_apps"]]
    raise InputError(f"dem-apps: '{first}' is not one of {', '.join(known)}{nearest(first, known)}")


def _run(package: str, rest: list[str]) -> None:
    names = {name.split()[0] for name in COMMANDS[package]}
    name = rest[0].replace("-", "_")
    if name not in names:
        raise InputError(
            f"dem-apps {package}: '{rest[0]}' is not one of {', '.join(sorted(names))}{nearest(name, names)}"
        )
    # first, as of python -m: a user's own networks and environments are there, and so do the jobs of a grid start
    sys.path.insert(0, os.getcwd())
    if (place := shadow(package)) is not None:
        raise InputError(_hidden(package, place))
    extra = package if package != "dem_apps" else "commands"
    if missing := missing_packages(extra):
        raise InputError(
            f"this command needs {', '.join(missing)}, not installed here; pip install 'dem-apps[{extra}]'"
        )
    sys.argv = [f"dem-apps {package} {rest[0]}", *rest[1:]]
    importlib.import_module(package)
    runpy.run_module(f"{package}.{name}", run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main()
