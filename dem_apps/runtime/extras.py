"""The packages that a command needs and ``import dem_apps`` does not."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def command_needs(extra: str, *modules: str) -> None:
    """End the process with one sentence if it is a command of this package without the modules of its extra.

    A package's ``__init__`` calls this, which ``python -m`` imports while ``sys.argv[0]`` is still ``-m``. An import of
    a part of the package is left alone, since a part needs less than the commands.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if sys.argv[:1] == ["-m"] and missing:
        names = ", ".join(missing)
        print(f"error: this command needs {names}, not installed here; pip install -e '.[{extra}]'", file=sys.stderr)
        sys.exit(2)
