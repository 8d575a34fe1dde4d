"""Nodes and commands that die, on a cluster in network namespaces, and results that are those of one machine.

    python tests/cluster/try_cluster.py [--only NAME] [--seeds N] [--out FILE]

For each of a grid of twelve ``rl.train`` runs, the same with ``--collect``, and a ``seg.tune`` search: an unbroken
local one, then on a head and two workers one in which a worker dies, and one whose command is killed and given again.
Of the grid also one whose head dies, with all that is Ray's on its machine: the command has to end by itself.
``metrics.jsonl`` without times, ``eval.json`` and, of the search, ``trials.csv`` have to be the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from namespaces import Cluster, permitted

ROOT = Path(__file__).resolve().parents[2]
GRID: dict[str, Any] = {
    "envs": {"MiniGrid-Empty-Random-5x5-v0": {}}, "arms": {"none": {"loss": "none"}, "adadem": {"loss": "adadem"}},
    "train": {"timesteps": 20480, "eval_freq": 2048}, "baseline": "none",
}  # fmt: skip
SEARCH = (
    "--config", "configs/seg/demo.yaml", "--trials", "6", "--steps", "30", "--share", "0.5", "--train.eval-every", "5",
    "--train.source.size", "128,64", "--train.target.size", "128,64", "--train.model.depth", "2",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A command, with the folder that it works in."""

    module: str
    flags: tuple[str, ...]
    folder_flag: str
    jobs: int

    def command(self, folder: Path, *more: str) -> list[str]:
        return [sys.executable, "-m", self.module, *self.flags, self.folder_flag, str(folder), *more]


def main() -> int:
    """Every case; status 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("grid", "head", "collected", "search"))
    parser.add_argument("--seeds", type=int, default=6, help="of each of the grid's two arms")
    parser.add_argument("--out", type=Path, help="file for the figures")
    options = parser.parse_args()
    if (why := permitted()) is not None:
        print(f"skipped: {why}")
        return 77
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    work = Path(tempfile.mkdtemp(prefix="try-cluster-"))
    (work / "grid.yaml").write_text(yaml.safe_dump({**GRID, "seeds": list(range(options.seeds))}))
    grid = Case("rl.benchmark", ("--config", str(work / "grid.yaml")), "--folder", 2 * options.seeds)
    search = Case("seg.tune", SEARCH, "--study-dir", 6)
    found: dict[str, Any] = {}
    try:
        if options.only != "search":
            local = made(grid, work / "local-grid")
        if options.only in (None, "grid"):
            found["grid"] = tried(grid, local, work / "grid")
        if options.only in (None, "head"):
            found["head"] = {"head killed": with_kill(grid, local, work / "grid-head", head_dies)}
        if options.only in (None, "collected"):
            found["collected"] = tried(grid, local, work / "collected", "--collect")
        if options.only in (None, "search"):
            found["search"] = tried(search, made(search, work / "local-search"), work / "search")
        print(json.dumps(found, indent=1))
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1) + "\n")
        same = all(case["differing"] == [] for pair in found.values() for case in pair.values())
        return 0 if same else 1
    finally:
        shutil.rmtree(work, ignore_errors=True)


def made(case: Case, folder: Path) -> Path:
    """The unbroken local one."""
    say(f"{folder.name}: one machine, unbroken")
    subprocess.run(case.command(folder, "--workers", "2"), check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return folder


def tried(case: Case, local: Path, folder: Path, *more: str) -> dict[str, Any]:
    """With a worker that dies, and with a command that dies."""
    return {
        "worker killed": with_kill(case, local, folder.with_name(f"{folder.name}-worker"), worker_dies, *more),
        "command killed": with_kill(case, local, folder.with_name(f"{folder.name}-command"), command_dies, *more),
    }


def with_kill(case: Case, local: Path, folder: Path, kill: Callable[..., dict[str, Any]], *more: str) -> dict[str, Any]:
    """What one kill did, and which files differ from the local ones."""
    say(f"{folder.name}: {kill.__name__.replace('_', ' ')}")
    began = time.monotonic()
    if "--collect" in more:  # what the workers write there they write for themselves
        folder.mkdir()
    with Cluster(private=folder if "--collect" in more else None) as cluster:
        command = case.command(folder, "--executor", "ray", "--ray-address", cluster.address, "--workers", "4", *more)

        def start() -> subprocess.Popen[str]:
            return cluster.on_head(command, stdout=open(f"{folder}.out", "a"), stderr=subprocess.STDOUT, cwd=ROOT)

        seen = kill(case, cluster, start, folder)
    output = Path(f"{folder}.out").read_text()
    names = sorted(set(results(local)) | set(results(folder)))
    left, right = results(local), results(folder)
    differing = [name for name in names if left.get(name) != right.get(name)]
    resumed = sum("--resume" in line for log in folder.rglob("*.log") for line in log.read_text().splitlines()[:200])
    if differing or seen["status"]:
        print(output[-3000:])
    say(f"  {seen}, {len(names) - len(differing)} of {len(names)} files the same")
    return {
        **seen, "seconds": round(time.monotonic() - began, 1), "files": len(names), "differing": differing,
        "resumed": resumed,
    }  # fmt: skip


def worker_dies(
    case: Case, cluster: Cluster, start: Callable[[], subprocess.Popen[str]], folder: Path
) -> dict[str, Any]:
    """Every process of a worker at once, in the middle; the rest goes on without it."""
    command = start()
    done = until_the_middle(case, folder, command)
    killed = cluster.machines[1].kill()
    return {"finished before": done, "processes killed": killed, "status": command.wait()}


def command_dies(
    case: Case, cluster: Cluster, start: Callable[[], subprocess.Popen[str]], folder: Path
) -> dict[str, Any]:
    """Without notice, in the middle; then the same command."""
    command = start()
    done = until_the_middle(case, folder, command)
    command.send_signal(signal.SIGKILL)
    command.wait()
    began = time.monotonic()
    while any("train" in Path(f"/proc/{pid}/cmdline").read_text() for pid in on_workers(cluster)):
        time.sleep(0.1)
    ended = round(time.monotonic() - began, 1)
    return {"finished before": done, "trainings gone after s": ended, "status": start().wait()}


def head_dies(case: Case, cluster: Cluster, start: Callable[[], subprocess.Popen[str]], folder: Path) -> dict[str, Any]:
    """Ray's part of the head's machine, in the middle; then Ray anew on all machines, and the same command."""
    command = start()
    done = until_the_middle(case, folder, command)
    killed, began = cluster.machines[0].kill(but=command.pid), time.monotonic()
    status = command.wait(timeout=600)
    ended, said = round(time.monotonic() - began, 1), Path(f"{folder}.out").read_text().splitlines()[-1]
    for machine in cluster.machines:
        machine.kill()
    cluster.start()
    return {
        "finished before": done, "processes killed": killed, "command ended after s": ended, "with status": status,
        "and said": said, "status": start().wait(),
    }  # fmt: skip


def on_workers(cluster: Cluster) -> list[int]:
    """Processes on the workers that are still there."""
    pids = [pid for machine in cluster.machines[1:] for pid in machine.processes()]
    return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists()]


def until_the_middle(case: Case, folder: Path, command: subprocess.Popen[str]) -> int:
    """A quarter of the jobs is finished, and others have checkpoints; how many are finished."""
    while True:
        done = len(list(folder.rglob("eval.json")))
        begun = len(list(folder.rglob("checkpoints/last.json")))
        if done >= case.jobs // 4 and (begun > done or "collected" in folder.name):
            return done
        if command.poll() is not None:
            raise RuntimeError(f"ended too soon:\n{Path(f'{folder}.out').read_text()[-3000:]}")
        time.sleep(0.05)


def results(folder: Path) -> dict[str, bytes]:
    """What has to be the same, by its path in the folder."""
    found = {}
    for name in ("metrics.jsonl", "eval.json", "trials.csv"):
        for file in folder.rglob(name):
            content = file.read_bytes()
            if name == "metrics.jsonl":
                lines = [json.loads(line) for line in content.splitlines()]
                kept = [{k: v for k, v in line.items() if not re.search("time|second", k)} for line in lines]
                content = "\n".join(json.dumps(line) for line in kept).encode()
            found[str(file.relative_to(folder))] = content
    return found


def say(text: str) -> None:
    """A line, at once."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
