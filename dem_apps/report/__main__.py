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
from dem_apps.runtime.run_reader import is_run

_TAIL = "classes to mark as rare; default: those below 1 %% of the labelled pixels scored, where eval.json says which"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see python -m dem_apps.report --help")


def _options(argv: Sequence[str] | None) -> Options:
    parser = _Parser(
        prog="python -m dem_apps.report",
        usage="python -m dem_apps.report RUN [RUN ...] [--FLAG VALUE ...]",
        description="Make a self-contained page of one run, or of several compared.",
        epilog=f"{EXAMPLE}python -m dem_apps.report runs/control runs/adadem --out report.html",
        formatter_class=CommandHelp,
        allow_abbrev=False,
    )
    parser.add_argument_group("what is shown").add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folders, such as runs/*/, or the folder of a grid"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE",
        help="the page; default: report.html in the run's or the grid's folder, of several in the current one",
    )  # fmt: skip
    parser.add_argument(
        "--baseline", type=Path, metavar="RUN", help="the run to compare the others with; default: the first"
    )
    parser.add_argument("--tail", default="", metavar="CLASS,CLASS", help=_TAIL)
    given: Any = parser.parse_args(argv)
    runs, folder = _runs_below(given.runs)
    if given.out is None:
        given.out = folder / "report.html"
    for name in ("out", "baseline", "tail"):
        if isinstance(getattr(given, name), list):  # what argparse makes of --out=--
            raise InputError(f"--{name}: expected one argument")
    tail = tuple(name.strip() for name in given.tail.split(",") if name.strip())
    return Options(runs, given.out, given.baseline, tail)


def _runs_below(given: Sequence[Path]) -> tuple[tuple[Path, ...], Path]:
    """The runs that are meant, and where their page goes: a single folder that holds runs, at most three floors below,
    is a grid's."""
    if len(given) > 1:
        return tuple(given), Path()
    (folder,) = given
    found = [file.parent for depth in ("*", "*/*", "*/*/*") for file in sorted(folder.glob(f"{depth}/config.yaml"))]
    return (tuple(given), folder) if is_run(folder) or not found else (tuple(found), folder)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    options = _options(argv)
    out = write_report(options)
    print(f"report: {out} ({len(options.runs)} run{'s' * (len(options.runs) > 1)}, {out.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    run_command(main)
