"""``python -m dem_apps`` lists every command; ``dem-apps seg train …`` is ``python -m seg.train …``."""

from __future__ import annotations

import os
import runpy
import sys

from dem_apps.errors import InputError, nearest
from dem_apps.runtime.command import run_command
from dem_apps.runtime.command_list import COMMANDS, listing


def main() -> None:
    """The console script ``dem-apps``."""
    run_command(_main)


def _main() -> None:
    prefix = "python -m " if sys.argv[0].endswith("__main__.py") else "dem-apps "
    package, *rest = sys.argv[1:] or ["--help"]
    if package in ("-h", "--help"):
        print("\n\n".join(listing(each, prefix) for each in COMMANDS))
        print("\n--help behind a command lists its settings.")
        return
    if package in COMMANDS["dem_apps"]:  # dem-apps report
        package, rest = "dem_apps", [package, *rest]
    known = [*COMMANDS, *COMMANDS["dem_apps"]]
    if package not in COMMANDS:
        raise InputError(f"dem-apps: '{package}' is not one of {', '.join(known)}{nearest(package, known)}")
    if not rest or rest[0] in ("-h", "--help"):
        print(listing(package, "dem-apps "))
        return
    names, name = sorted({each.split()[0] for each in COMMANDS[package]}), rest[0].replace("-", "_")
    if name not in names:
        raise InputError(f"dem-apps {package}: '{rest[0]}' is not one of {', '.join(names)}{nearest(name, names)}")
    sys.path.insert(0, os.getcwd())  # as python -m does: a user's own networks and environments are there
    sys.argv = ["-m", *rest[1:]]  # what it is under python -m while the package is imported
    runpy.run_module(f"{package}.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
