"""Finished runs of a grid as one small file, and back: what a grid of many hours needs to go on on another machine.

    python benchmarks/kept_runs.py keep runs/seg-adaptation docs/results/seg_adaptation.jsonl
    python benchmarks/kept_runs.py restore docs/results/seg_adaptation.jsonl runs/seg-adaptation
    python benchmarks/kept_runs.py table docs/results/seg_adaptation.jsonl control  # of docs/adaptation.md
    python benchmarks/kept_runs.py table docs/results/seg_worlds.jsonl control --classes wall,fence

A line is a run of ``seg.benchmark`` or ``rl.benchmark``: its folder below the grid's, its settings, its scores, and the
evaluations of its training if it has any. A grid started on restored folders trains what is missing, and with
``--report-only`` writes its tables. No weights are kept, so a restored run cannot be resumed.
Lines that the file has already stay, and a folder that exists is left alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from dem_apps.report.intervals import difference_interval
from dem_apps.report.text_tables import markdown
from dem_apps.runtime.run_reader import read_metrics

_KEPT = ("config.yaml", "eval.json", "environment.json")


def keep(grid: Path, file: Path) -> None:
    """Add the finished runs below ``grid`` to the file."""
    lines = file.read_text().splitlines() if file.is_file() else []
    known = {json.loads(line)["run"] for line in lines}
    for scores in sorted(grid.rglob("eval.json")):
        name = scores.parent.relative_to(grid).as_posix()
        if name not in known:
            lines.append(json.dumps({"run": name, **_kept_files(scores.parent)}))
    file.write_text("".join(line + "\n" for line in lines))
    print(f"{file}: {len(lines)} runs, {len(lines) - len(known)} of them new")


def _kept_files(run: Path) -> dict[str, str]:
    """The text to keep of each file; of metrics.jsonl the evaluations, which are what curves are drawn from."""
    files = {name: (run / name).read_text() for name in _KEPT}
    evaluations = []
    for line in read_metrics(run):
        figures = {key: value for key, value in line.items() if key.startswith("eval/")}
        if figures:
            evaluations.append(json.dumps({"step": line["step"], **figures}))
    if evaluations:
        files["metrics.jsonl"] = "".join(line + "\n" for line in evaluations)
    return files


def restore(file: Path, grid: Path) -> None:
    """Write the runs of the file below ``grid``."""
    for number, line in enumerate(file.read_text().splitlines(), 1):
        run = json.loads(line)
        folder = grid / run["run"]
        if not folder.resolve().is_relative_to(grid.resolve()):
            raise SystemExit(f"{file}, line {number}: the run {run['run']!r} is not a folder below a grid's")
        if folder.exists():
            continue
        folder.mkdir(parents=True)
        for name in run.keys() & {*_KEPT, "metrics.jsonl"}:
            (folder / name).write_text(run[name])
        print(folder)


def table(file: Path, control: str, classes: list[str] | None) -> None:
    """Print mIoU % of each arm (rows) on each task (columns), the mean over seeds and its difference to the control.

    Tasks on which the control has not been run are left out. With ``classes`` it is the mean IoU of these, such as the
    tail of the grid. Where there are several tasks, the last column has the difference over all pairs of task and seed.
    """
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for line in file.read_text().splitlines():
        run = json.loads(line)
        task, arm, seed = ("", *run["run"].split("/"))[-3:]
        score = _score(json.loads(run["eval.json"]), classes)
        scores.setdefault(task, {}).setdefault(arm, {})[seed] = score
    scores = {task: of_task for task, of_task in scores.items() if control in of_task}
    if not scores:
        raise SystemExit(f"{file}: has no run of '{control}'")
    if len(scores) > 1:
        pairs: dict[str, dict[str, float]] = {}  # by arm; of a task and a seed
        for task, of_task in scores.items():
            for arm, seeds in of_task.items():
                pairs.setdefault(arm, {}).update({f"{task}/{seed}": score for seed, score in seeds.items()})
        scores["all tasks"] = pairs
    arms = dict.fromkeys(arm for of_task in scores.values() for arm in of_task)
    rows = [
        [
            arm.replace("-", " "),
            *(_cell(of_task.get(arm), of_task[control], arm == control) for of_task in scores.values()),
        ]
        for arm in sorted(arms, key=lambda arm: arm != control)
    ]
    print(markdown(["arm", *(task.replace("-", " ") or "mIoU %" for task in scores)], rows), end="")


def _score(scores: dict[str, Any], classes: list[str] | None) -> float:
    if classes is None:
        return 100.0 * scores["miou"]
    return 100.0 * fmean(iou for name in classes if (iou := scores["per_class_iu"][name]) is not None)


def _cell(ours: dict[str, float] | None, control: dict[str, float], is_control: bool) -> str:
    if ours is None:
        return ""
    mean = f"{sum(ours.values()) / len(ours):.1f}"
    if is_control:
        return f"{mean} ({len(ours)} runs)"
    apart = difference_interval(ours, control)
    ends = "" if apart.low is None else f" [{apart.low:+.1f}, {apart.high:+.1f}]"
    return f"{mean}, {apart.estimate:+.1f}{ends} ({apart.count})"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("keep", "restore", "table"))
    parser.add_argument("given", type=Path, help="the grid's folder, or the file that was kept")
    parser.add_argument("other", help="the file to keep in, the folder to restore to, or the table's control")
    parser.add_argument(
        "--classes", type=lambda names: names.split(","), help="the table's: their mean IoU in place of mIoU"
    )
    arguments = parser.parse_args()
    if arguments.what == "table":
        table(arguments.given, arguments.other, arguments.classes)
    else:
        (keep if arguments.what == "keep" else restore)(arguments.given, Path(arguments.other))


if __name__ == "__main__":
    main()
