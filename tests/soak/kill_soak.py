"""Kill trainings many times, compare what they come to with runs that were never killed, and count.

    python tests/soak/kill_soak.py --kills 20 --out docs/results/soak_kills.json

Each training is killed at ``--kills`` random moments, and once at every stage of everything that it writes: a file
half written, written, flushed, renamed, removed, a line of metrics half written. Several kills fall on each run. The
exit status is 1 if any run ended otherwise than the one that was never killed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from kill_runs import Tally, Training, killed_at_every_stage, killed_at_random
from kill_trainings import SOAKED, flags, write_pair

from dem_apps.checkpoint import write_atomically

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from machine import processor


def soak(name: str, folder: Path, kills: int, seed: int, until: float) -> Tally:
    """Everything that is done to one training.

    Args:
        name: of the training.
        folder: for its runs.
        kills: random ones.
        seed: of their moments.
        until: no run is begun after this time of ``time.monotonic()``.
    """
    module, arguments = flags(name, write_pair(folder / "pair"))
    training = Training(module, arguments, folder / "runs")
    whole, tally = training.folder / "whole", Tally()
    training.run(training.folder / "first")  # the server imports torch meanwhile, which must not count as its time
    started = time.monotonic()
    ended = training.run(whole)
    if ended.status:
        tally.faults.append(f"{name}: status {ended.status} without any kill: {ended.printed[-300:]}")
        return tally
    killed_at_random(training, whole, time.monotonic() - started, kills, seed, tally, until)
    if time.monotonic() < until:
        killed_at_every_stage(training, whole, tally)
    return tally


def table(tallies: dict[str, Tally]) -> str:
    """One line per training."""
    lines = [
        "| training | random kills | kills in writes | resumed | runs compared | faults |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {tally.random_kills} | {tally.targeted_kills} | {tally.resumes} | {tally.compared} "
        f"| {len(tally.faults)} |"
        for name, tally in tallies.items()
    ]
    return "\n".join(lines)


def about(options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """When, where and how."""
    return {
        "date": time.strftime("%Y-%m-%d"), "seconds": round(seconds), "random_kills": options.kills,
        "seed": options.seed,
        "machine": {
            "processor": processor()[0], "cores": os.cpu_count(), "system": platform.system(),
            "python": platform.python_version(), "torch": torch.__version__,
        },
    }  # fmt: skip


def append(file: Path, document: dict[str, Any]) -> None:
    """Add one soak to a JSON list of them."""
    earlier = json.loads(file.read_text()) if file.is_file() else []
    write_atomically(file, (json.dumps([*earlier, document], indent=1) + "\n").encode())


def main() -> None:
    """Soak and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="random kills of each training")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after this time")
    parser.add_argument("--trainings", nargs="+", default=list(SOAKED), choices=SOAKED, help="which to soak")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--out", type=Path, help="add the counts to the list in this JSON file")
    options = parser.parse_args()
    started, tallies = time.monotonic(), {}
    for number, name in enumerate(options.trainings):
        folder = Path(tempfile.mkdtemp(prefix="soak-"))
        try:
            until = started + options.seconds
            tallies[name] = soak(name, folder, options.kills, options.seed + number, until)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"{name}: {time.monotonic() - started:,.0f} s so far", flush=True)
        for fault in tallies[name].faults:
            print(f"  fault: {fault}", flush=True)
    document = about(options, time.monotonic() - started)
    print(f"\n{table(tallies)}\n\n{document['date']}, {document['machine']['processor']}, {document['seconds']} s")
    if options.out is not None:
        counts = {name: dataclasses.asdict(tally) for name, tally in tallies.items()}
        append(options.out, {**document, "trainings": counts})
    if any(tally.faults for tally in tallies.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
