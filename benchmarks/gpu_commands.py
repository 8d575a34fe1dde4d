"""Commands on a GPU at full size, on drawn streets: ADVENT's training, ``seg.export`` and ``seg.adapt``.

    python benchmarks/gpu_commands.py --folder FOLDER [--steps 120] [--out docs/results/gpu_commands.json]
    python benchmarks/gpu_commands.py --folder FOLDER --only bf16 --minutes 5     # one training, for that long

Training is ``configs/seg/gta5_cityscapes_minent.yaml`` (1280×720 and 1024×512, ResNet-101, batch 1 + 1) from random
weights on files of GTA5's and Cityscapes' sizes, each in a process of its own. "Waits" is the time between two steps as
a share of the whole, the GPU being waited for at both ends: what the loader and the log cost. ``seg.export`` and
``seg.adapt`` get the network trained in bf16 and 64 pictures of 1024×512. Seconds are of a whole command. Further flags
are those of ``seg.train``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain, takewhile
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from csv_rows import parser_of
from measuring import in_fresh_processes, machine, memory_growth, write_json
from PIL import Image

from dem_apps.runtime.settings import parse_config
from seg.config import TrainConfig
from seg.data.street.demo_pair import write_demo_pair
from seg.train import train
from seg.training import loop
from seg.training.run import TrainingRun
from seg.training.step import training_step

PARTS, PICTURES, WARM_UP = 14, 64, 20
GTA5, CITYSCAPES, SEEN = (1914, 1052), (2048, 1024), (1024, 512)
BF16 = ["--precision", "bf16"]
TRAININGS = {
    "float32": [],
    "bf16": BF16,
    "bf16, AdaDEM": [*BF16, "--loss", "adadem"],
    "bf16, compiled": [*BF16, "--compile"],
}
#: The compiled training, of which the compiler can take minutes, is last: every result is saved at once.
ORDER = ("float32", "bf16", "bf16, AdaDEM", "seg.export", "seg.adapt", "bf16, compiled")
#: What a training leaves in its folder.
LEFT = (
    "config.yaml",
    "environment.json",
    "metrics_info.json",
    "classes.json",
    "metrics.jsonl",
    "events.*",
    "eval.json",
    "checkpoints/last.*",
    "entropy_maps/*.png",
)


def draw_part(folder: Path, part: int) -> list[Path]:
    """Some pictures of both domains, of a seed of their own."""
    write = partial(write_demo_pair, seed=part, source_train=0, target_train=0, target_val=0)
    return [
        write(folder / f"{part}-source", size=GTA5, source_train=5),
        write(folder / f"{part}-target", size=CITYSCAPES, target_train=5, target_val=1),
    ]


def draw(folder: Path) -> Path:
    """Draw a pair of 70 and 70 pictures and 14 to score, and target pictures at the network's size; once a folder."""
    pair, whole = folder / "pair", folder / "parts/whole"
    if not pair.exists():
        with ProcessPoolExecutor(PARTS) as pool:
            parts = list(pool.map(partial(draw_part, folder / "parts"), range(PARTS)))
        for root in chain(*parts):
            for file in root.rglob("*.png"):
                place = whole / file.relative_to(root)
                place.parent.mkdir(parents=True, exist_ok=True)
                file.rename(place.with_name(f"{root.name}-{place.name}"))
        (folder / "pictures").mkdir()
        for number, file in enumerate(
            sorted((whole / "cityscapes/leftImg8bit/train").rglob("*.png"))[:PICTURES]
        ):
            Image.open(file).resize(SEEN).save(folder / f"pictures/{number}.png")
        whole.rename(pair)
    return pair


def run_of(folder: Path, name: str) -> Path:
    """The run folder of a training."""
    return folder / name.replace(", ", "-")


def train_and_time(name: str, options: argparse.Namespace, flags: list[str]) -> dict[str, Any]:
    """Train; return the median step, waits, peak memory, steps, the score, and files that are missing in the run."""
    pair, run, starts, ends = (
        draw(options.folder),
        run_of(options.folder, name),
        list[float](),
        list[float](),
    )
    set_up, limited = loop.set_up, options.minutes is not None
    wait: Callable[[], object] = (
        torch.cuda.synchronize if options.device == "cuda" else lambda: None
    )

    def timed(*given: Any) -> Any:
        wait()
        starts.append(time.perf_counter())
        found = training_step(*given)
        wait()
        ends.append(time.perf_counter())
        return found

    def in_time(config: TrainConfig) -> TrainingRun:
        run = set_up(config)
        end = time.perf_counter() + 60 * options.minutes
        run.steps = takewhile(lambda _: time.perf_counter() < end, run.steps)
        return run

    length = (
        [] if limited else ["--max-steps", str(options.steps), "--eval-every", str(options.steps)]
    )
    config = [
        "--config",
        "configs/seg/gta5_cityscapes_minent.yaml",
        "--source.root",
        str(pair / "gta5"),
        "--target.root",
        str(pair / "cityscapes"),
        "--model.encoder-weights",
        "null",
        "--device",
        options.device,
        "--run-dir",
        str(run),
        *length,
        *TRAININGS[name],
        *flags,
    ]
    settings = parse_config(TrainConfig, "seg.train", "", config)
    with mock.patch.multiple(loop, training_step=timed, set_up=in_time if limited else set_up):
        peak = memory_growth(partial(train, settings), options.device)
    first = min(WARM_UP, len(starts) - 2)
    inside = [end - start for start, end in zip(starts[first:], ends[first:], strict=True)]
    return {
        "step_ms": 1e3 * statistics.median(inside),
        "waits": 1 - sum(inside[:-1]) / (starts[-1] - starts[first]),
        "peak_mib": None if peak is None else peak / 2**20,
        "steps": len(starts),
        "miou": json.loads((run / "eval.json").read_text())["miou"],
        "missing": [each for each in LEFT if not any(run.glob(each))],
    }


def main() -> None:
    """Draw, train, predict, adapt, print, save."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, help="for pictures, runs and predictions; no runs yet"
    )
    parser.add_argument("--steps", type=int, default=120, help="of each training")
    parser.add_argument(
        "--minutes", type=float, help="of each training's steps, in place of --steps"
    )
    parser.add_argument(
        "--only", nargs="+", choices=ORDER, default=ORDER, help="of the trainings and commands"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--out", type=Path, help="JSON file for the raw values")
    parser.add_argument("--training-of", help=argparse.SUPPRESS)  # of the processes that train
    options, flags = parser.parse_known_args()
    if options.training_of:
        print(json.dumps(train_and_time(options.training_of, options, flags)))
        return
    draw(options.folder)
    result: dict[str, Any] = {"environment": machine(options.device)}
    given = [
        "--images",
        str(options.folder / "pictures"),
        "--model",
        str(run_of(options.folder, "bf16")),
    ]
    given += ["--device", options.device]
    for name in options.only:
        start = time.perf_counter()
        if name in TRAININGS:
            found = in_fresh_processes([name], [__file__, *sys.argv[1:], "--training-of"])[name]
        else:
            command = [sys.executable, "-m", name, *given, "--out", str(options.folder / name)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            found = {"seconds_per_picture": (time.perf_counter() - start) / PICTURES}
        result[name] = {"seconds": time.perf_counter() - start, **found}
        print(name, result[name], flush=True)
        write_json(options.out, result)


if __name__ == "__main__":
    main()
