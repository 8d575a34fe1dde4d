"""Two commands at once on one folder, many times, each slowed down between what it checks and what it does.

    python tests/soak/pair_soak.py --pairs 200 --out docs/results/soak_pairs.json

Before anything that a command opens, makes, renames, links, removes or locks it may wait for some milliseconds, so that
the other one comes in between. Afterwards the folder has to hold the work of one, or of both where they may share it;
a command that is refused says one sentence. The exit status is 1 if any pair ended otherwise.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from kill_soak import about, append
from pair_kinds import KINDS, Kind

from dem_apps.errors import InputError

_ACTS = {
    "open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "fcntl.flock",
    "fcntl.lockf", "os.symlink", "os.truncate",
}  # fmt: skip
DONE, CRASHED, REFUSED = 0, 1, 2


def pair(kind: Kind, folder: Path, seed: int, slowest: float) -> list[str]:
    """Let two processes do the same to one folder, and look at what they come to.

    Args:
        kind: what they do.
        folder: for them, new.
        seed: of the delays.
        slowest: seconds that one of them may last.

    Returns:
        what is wrong.
    """
    kind.prepare(folder)
    context = multiprocessing.get_context("fork")
    logs = [folder.with_name(f"{folder.name}.{who}") for who in (0, 1)]
    processes = [context.Process(target=_attempt, args=(kind, folder, who, seed, slowest, logs[who])) for who in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    hung = [process for process in processes if process.is_alive()]
    for process in hung:
        process.kill()
        process.join()
    outcomes = [process.exitcode for process in processes]
    said = [log.read_text() if log.is_file() else "" for log in logs]
    faults = ["a process hung"] if hung else []
    faults += [text for text, outcome in zip(said, outcomes, strict=True) if outcome not in (DONE, REFUSED)]
    faults += [f"no sentence: {text!r}" for text, outcome in zip(said, outcomes, strict=True)
               if outcome == REFUSED and (not text or "\n" in text)]  # fmt: skip
    return faults or kind.verdict(folder, [outcome == DONE for outcome in outcomes])


def _attempt(kind: Kind, folder: Path, who: int, seed: int, slowest: float, log: Path) -> None:
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    delays, inside = random.Random(2 * seed + who), str(folder)

    def wait(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _ACTS and any(inside in str(each) for each in arguments[:2]) and delays.random() < 0.5:
            time.sleep(delays.uniform(0, slowest))

    sys.addaudithook(wait)
    try:
        kind.attempt(folder, who)
    except InputError as error:
        log.write_text(str(error))
        os._exit(REFUSED)
    except BaseException:
        log.write_text(traceback.format_exc())
        os._exit(CRASHED)
    os._exit(DONE)


def main() -> None:
    """Soak and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="of each kind of folder")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS, help="which to soak")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no further pair after this long")
    parser.add_argument("--slowest", type=float, default=0.02, help="seconds of a delay at most")
    parser.add_argument("--seed", type=int, default=0, help="of the delays")
    parser.add_argument("--out", type=Path, help="add the counts to the list in this JSON file")
    options = parser.parse_args()
    started, counts = time.monotonic(), Counter[str]()
    faults: list[str] = []
    place = Path(tempfile.mkdtemp(prefix="pairs-"))
    try:
        for number in range(options.pairs):
            for name in options.kinds:
                if time.monotonic() - started > options.seconds:
                    break
                folder = place / f"{name.replace(' ', '-')}-{number}"
                found = pair(KINDS[name], folder, options.seed + number, options.slowest)
                counts[name] += 1
                faults += [f"{name}, pair {number}: {fault}" for fault in found]
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    options.kills = 0
    document = {**about(options, time.monotonic() - started), "pairs": dict(counts), "faults": faults}
    del document["random_kills"]
    print("\n".join(f"{name:20} {count:>5} pairs" for name, count in counts.items()))
    print("\n".join([f"{counts.total()} pairs, {len(faults)} faults", *faults]))
    if options.out is not None:
        append(options.out, document)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
