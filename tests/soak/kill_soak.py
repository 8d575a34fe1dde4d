"""Kill trainings many times, compare what they come to with runs that were never killed, and count.

    python tests/soak/kill_soak.py --kills 20 --out docs/results/soak_kills.json

Each training is killed at ``--kills`` random moments, gets a quarter as many SIGTERMs, and is killed once at every
stage of everything that it writes: a file half written, written, flushed, renamed, removed, a line of metrics half
written. Several kills fall on each run. The exit status is 1 if any run ended otherwise than the one left alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from kill_commands import KILLED, KilledCommand, write_given
from kill_runs import Tally, Training, ended_at_random, killed_at_every_stage
from kill_trainings import SOAKED, flags, write_pair

from dem_apps.runtime.checkpoint import write_atomically
from dem_apps.runtime.device import processor

NAMES = (*SOAKED, *KILLED)


def soak(name: str, folder: Path, kills: int, seed: int) -> Tally:
    """Everything that is done to one training or other command; the latter are killed at random moments only.

    Args:
        name: of the command.
        folder: for its runs.
        kills: random ones.
        seed: of their moments.
    """
    training = _command(name, folder)
    whole, tally = training.folder / "whole", Tally()
    training.run(training.folder / "first")  # the server imports torch meanwhile, which must not count as its time
    started = time.monotonic()
    ended = training.run(whole)
    if ended.status:
        tally.faults.append(f"{name}: status {ended.status} without any kill: {ended.printed[-300:]}")
        return tally
    seconds = time.monotonic() - started
    groups = isinstance(training, KilledCommand) and training.groups
    ended_at_random(training, whole, seconds, kills, seed, tally, groups=groups)
    if isinstance(training, KilledCommand):
        return tally
    ended_at_random(training, whole, seconds, kills // 4, seed, tally, signal.SIGTERM)
    killed_at_every_stage(training, whole, ended.stages, tally)
    return tally


def _command(name: str, folder: Path) -> Training:
    if name in KILLED:
        write_given(folder / "given")
        return KilledCommand(KILLED[name], folder / "given", folder / "runs")
    module, arguments = flags(name, write_pair(folder / "pair"))
    return Training(module, arguments, folder / "runs")


def table(trainings: dict[str, dict[str, Any]]) -> str:
    """One line per training."""
    columns = ("random_kills", "random_sigterms", "kills_in_writes", "resumes", "runs_compared")
    lines = ["| training | " + " | ".join(columns).replace("_", " ") + " | faults |", "|---" * 7 + "|"]
    for name, counts in trainings.items():
        cells = [name, *(str(counts[column]) for column in columns), str(len(counts["faults"]))]
        lines.append(f"| {' | '.join(cells)} |")
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
    parser.add_argument("--trainings", nargs="+", default=list(NAMES), choices=NAMES, help="which to soak")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--out", type=Path, help="add the counts to the list in this JSON file")
    options = parser.parse_args()
    started = time.monotonic()
    trainings: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(options.trainings):
        folder = Path(tempfile.mkdtemp(prefix="soak-"))
        try:
            trainings[name] = soak(name, folder, options.kills, options.seed + number).document()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"{name}: {time.monotonic() - started:,.0f} s so far", flush=True)
        for fault in trainings[name]["faults"]:
            print(f"  fault: {fault}", flush=True)
    document = {**about(options, time.monotonic() - started), "trainings": trainings}
    print(f"\n{table(trainings)}\n\n{document['date']}, {document['machine']['processor']}, {document['seconds']} s")
    if options.out is not None:
        append(options.out, document)
    if any(counts["faults"] for counts in trainings.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
