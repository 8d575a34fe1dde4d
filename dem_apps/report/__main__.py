"""``python -m dem_apps.report RUN [RUN …] --out report.html``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from dem_apps.errors import InputError
from dem_apps.report.page import Options, write_report
from dem_apps.runtime.command import run_command
from dem_apps.runtime.command_help import EXAMPLE, CommandHelp

_TAIL = "classes to mark as rare; default: those with less than 1 %% of the labelled pixels, where eval.json says which"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see python -m dem_apps.report --help")


def _options(argv: Sequence[str] | None) -> Options:
    parser = _Parser(
        prog="python -m dem_apps.report",
        usage="python -m dem_apps.report RUN [RUN ...] [--FLAG VALUE ...]",
        description="Make a self-contained page of one run, or of several compared.",
        epilog=f"{EXAMPLE}python -m dem_apps.report runs/entropy runs/adadem --out report.html",
        formatter_class=CommandHelp,
        allow_abbrev=False,
    )
    parser.add_argument_group("what is shown").add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folders, such as runs/*/"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="FILE", help="the page (default: report.html)"
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="RUN", help="the run to compare the others with; default: the first"
    )
    parser.add_argument("--tail", default="", metavar="CLASS,CLASS", help=_TAIL)
    given: Any = parser.parse_args(argv)
    for name in ("out", "baseline", "tail"):
        if isinstance(getattr(given, name), list):  # what argparse makes of --out=--
            raise InputError(f"--{name}: expected one argument")
    tail = tuple(name.strip() for name in given.tail.split(",") if name.strip())
    return Options(tuple(given.runs), given.out, given.baseline, tail)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    options = _options(argv)
    out = write_report(options)
    print(f"report: {out} ({len(options.runs)} run{'s' * (len(options.runs) > 1)}, {out.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    run_command(main)
