"""Finished runs of a grid as one small file, and back: what a grid of many hours needs to go on on another machine.

    python benchmarks/kept_runs.py keep runs/seg-adaptation docs/results/seg_adaptation.jsonl
    python benchmarks/kept_runs.py restore docs/results/seg_adaptation.jsonl runs/seg-adaptation

A line is a run: its folder below the grid's, its settings, its scores. A grid started on restored folders trains
what is missing, and with ``--report-only`` writes its tables. No weights are kept, so a restored run cannot be resumed.
Lines that the file has already stay, and a folder that exists is left alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

_KEPT = ("config.yaml", "eval.json", "environment.json")


def keep(grid: Path, file: Path) -> None:
    """Add the finished runs below ``grid`` to the file."""
    lines = file.read_text().splitlines() if file.is_file() else []
    known = {json.loads(line)["run"] for line in lines}
    for scores in sorted(grid.rglob("eval.json")):
        name = scores.parent.relative_to(grid).as_posix()
        if name not in known:
            lines.append(json.dumps({"run": name, **{each: (scores.parent / each).read_text() for each in _KEPT}}))
    file.write_text("".join(line + "\n" for line in lines))
    print(f"{file}: {len(lines)} runs, {len(lines) - len(known)} of them new")


def restore(file: Path, grid: Path) -> None:
    """Write the runs of the file below ``grid``."""
    for line in file.read_text().splitlines():
        run = json.loads(line)
        folder = grid / run["run"]
        if folder.exists():
            continue
        folder.mkdir(parents=True)
        for name in _KEPT:
            (folder / name).write_text(run[name])
        print(folder)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("keep", "restore"))
    parser.add_argument("given", type=Path, help="the grid's folder, or the file to restore from")
    parser.add_argument("made", type=Path, help="the file, or the folder to restore to")
    arguments = parser.parse_args()
    (keep if arguments.what == "keep" else restore)(arguments.given, arguments.made)


if __name__ == "__main__":
    main()
