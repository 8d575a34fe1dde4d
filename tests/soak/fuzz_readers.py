"""Fuzz what reads files from strangers: ``python tests/soak/fuzz_readers.py --seconds 600 --out FILE``.

Guided by coverage where Atheris is installed (pip install atheris); without it the same inputs are mutated blindly.
Either way an input is good if it is read or refused in one line; anything else is a fault, kept under ``--faults``.
Targets share the time. Exit status 1 if there is a fault. Interesting inputs are kept by hand in ``seeds/TARGET/``.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib.util
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: Bytes of an input at most: longer ones are slower and seldom tell more.
_LONGEST = 4096


def main() -> None:
    """Share the time among the targets and sum up."""
    options = _options()
    if options.target is not None:
        _run_target(options)
        return
    from fuzz_targets import TARGETS

    results: dict[str, Any] = {}
    for target in TARGETS:
        results[target] = _in_a_process(target, options, options.seconds / len(TARGETS))
        print(
            f"{target:12} {results[target]['inputs']:>9,} inputs, {len(results[target]['faults'])} faults", flush=True
        )
    faults = sum(len(result["faults"]) for result in results.values())
    summary = {
        "what": "readers of files from strangers",
        "command": "python tests/soak/fuzz_readers.py",
        "engine": _engine(),
        "inputs": sum(result["inputs"] for result in results.values()),
        "faults": faults,
        "seconds": options.seconds,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "targets": results,
    }
    print(
        f"{summary['inputs']:,} inputs, {faults} faults, {summary['date']}, {summary['engine']}, {summary['machine']}"
    )
    if options.out is not None:
        options.out.write_text(json.dumps(summary, indent=2) + "\n")
    sys.exit(1 if faults else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="for all targets together")
    parser.add_argument("--out", type=Path, help="write the summary to this JSON file")
    parser.add_argument("--faults", type=Path, default=Path("runs/fuzz-faults"), help="folder for inputs with a fault")
    parser.add_argument("--corpus", type=Path, help="keep what Atheris finds interesting in this folder")
    parser.add_argument("--target", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help="of the mutations")
    return parser.parse_args()


def _engine() -> str:
    guided = importlib.util.find_spec("atheris") is not None
    return "Atheris, guided by coverage" if guided else "blind mutations (Atheris is not installed)"


def _in_a_process(target: str, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """A target in a process of its own, since Atheris ends the one it runs in."""
    faults = options.faults / target
    command = [
        sys.executable, __file__, "--target", target, "--seconds", str(seconds), "--faults", str(faults), "--seed",
        str(options.seed), *(["--corpus", str(options.corpus / target)] if options.corpus else []),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    counted = re.findall(r"(?:number_of_executed_units: |inputs tried: )(\d+)", done.stderr)
    found = sorted(file.name for file in faults.glob("*.txt")) if faults.is_dir() else []
    if not counted:  # out of memory, out of time for one input, or a crash of the interpreter
        found.append(f"the process ended with {done.returncode}: {' '.join(done.stderr[-600:].split())}")
    return {"inputs": int(counted[-1]) if counted else 0, "faults": found}


def _run_target(options: argparse.Namespace) -> None:
    warnings.simplefilter("ignore")
    seeds = HERE / "seeds" / options.target
    if importlib.util.find_spec("atheris") is None:
        _blindly(options, seeds)
    else:
        _guided(options, seeds)


def _guided(options: argparse.Namespace, seeds: Path) -> None:
    import atheris

    with atheris.instrument_imports(
        include=[
            "dem_apps",
            "fuzz_targets",
            "yaml",
            "json",
            "seg.data",
            "rl.results",
            "rl.envs.zoo",
            "rl.training.entries",
        ]
    ):
        from fuzz_targets import TARGETS, TOKENS

    corpus = options.corpus or Path(tempfile.mkdtemp(prefix="corpus-"))
    corpus.mkdir(parents=True, exist_ok=True)
    dictionary = Path(tempfile.mkdtemp()) / "tokens"
    dictionary.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in token) + '"\n' for token in TOKENS))
    tried = Tried(TARGETS[options.target], options.faults)
    flags = [
        f"-max_total_time={max(1, round(options.seconds))}", f"-max_len={_LONGEST}", "-timeout=20",
        "-rss_limit_mb=4096", f"-dict={dictionary}", f"-seed={options.seed + 1}", "-print_final_stats=1",
        "-verbosity=0", f"-artifact_prefix={corpus.parent}/",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *flags, str(corpus), str(seeds)], tried)
    atheris.Fuzz()


def _blindly(options: argparse.Namespace, seeds: Path) -> None:
    from fuzz_targets import TARGETS

    tried = Tried(TARGETS[options.target], options.faults)
    end = time.monotonic() + options.seconds
    for content in mutations(seeds, options.seed):
        if time.monotonic() >= end:
            break
        tried(content)
    print(f"inputs tried: {tried.count}", file=sys.stderr)


def mutations(seeds: Path, seed: int) -> Iterator[bytes]:
    """The files of a folder with pieces cut out, put in and exchanged, without end; the same ones for the same seed."""
    from fuzz_targets import TOKENS

    rng = random.Random(seed)
    corpus = [file.read_bytes() for file in sorted(seeds.iterdir())]
    while True:
        content = bytearray(rng.choice(corpus))
        for _ in range(rng.randint(1, 6)):
            at, other = rng.randint(0, len(content)), rng.choice(corpus)
            start = rng.randint(0, len(other))
            content[at : at + rng.choice([0, 0, 1, 4, 16])] = rng.choice([
                rng.choice(TOKENS), rng.randbytes(rng.randint(0, 4)), other[start : start + rng.randint(1, 40)],
            ])  # fmt: skip
        yield bytes(content[:_LONGEST])


class Tried:
    """Calls a target, and keeps an input for every new kind of fault."""

    def __init__(self, target: Any, faults: Path) -> None:
        from fuzz_targets import check

        from dem_apps.errors import InputError

        self._target, self._faults, self._refusal, self._check = target, faults, InputError, check
        self.count = 0

    def __call__(self, content: bytes) -> None:
        self.count += 1
        try:
            try:
                self._target(content)
            except self._refusal as error:
                self._check(error)
        except Exception as error:
            self._keep(content, error)

    def _keep(self, content: bytes, error: Exception) -> None:
        frames = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        name = hashlib.sha256(f"{type(error).__name__} {frames[-1]}".encode()).hexdigest()[:12]
        self._faults.mkdir(parents=True, exist_ok=True)
        if not (self._faults / f"{name}.txt").exists():
            (self._faults / f"{name}.bin").write_bytes(content)
            (self._faults / f"{name}.txt").write_text("".join(traceback.format_exception(error)), errors="replace")


if __name__ == "__main__":
    main()
