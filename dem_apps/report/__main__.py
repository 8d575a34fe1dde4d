"""``python -m dem_apps.report RUN [RUN …] --out report.html``: a page about one run, or about several compared."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import Parser

_EXAMPLES = """\
examples:
  python -m dem_apps.report runs/my-run
  python -m dem_apps.report runs/control runs/adadem --out report.html
  python -m dem_apps.report runs/demo-grid --out grid.html"""


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = Parser(
        prog="python -m dem_apps.report",
        usage="python -m dem_apps.report RUN [RUN ...] [--out FILE] [options]",
        description="Make a self-contained page of one run, or of several compared.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folders, or the folder of a grid"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the page; default: report.html in the run's folder",
    )
    arguments = parser.parse_args(argv)
    runs, folder = arguments.runs, Path()
    if len(runs) == 1:
        folder = runs[0]
        if not (folder / "config.yaml").is_file():
            below = sorted(file.parent for file in folder.glob("**/metrics_info.json"))
            runs = below or runs
    # after the arguments: matplotlib and numpy take a second
    from dem_apps.report.page import write_report

    out = write_report(runs, arguments.out or folder / "report.html")
    print(f"report: {out} (runs: {len(runs)}, {out.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    run_command(main)
