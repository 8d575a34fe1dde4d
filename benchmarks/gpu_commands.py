"""The commands on a GPU at full size, on drawn streets: ADVENT's training, and ``seg.adapt`` beside plain prediction.

    python benchmarks/gpu_commands.py --folder FOLDER [--steps 300] [--out docs/results/gpu_commands.json]

Training is ``configs/seg/gta5_cityscapes_minent.yaml`` (1280×720 and 1024×512, ResNet-101, batch 1 + 1) from random
weights. "Waits" is the time between two steps as a share of the whole, the GPU being waited for at both ends: what the
loader and the log cost. ``seg.adapt`` and ``seg.export`` get that network and 64 pictures of 1024×512. No page has its
numbers yet.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from csv_rows import parser_of
from measuring import machine, write_json

import seg.training.loop
from dem_apps.runtime.settings import parse_config
from seg.config import TrainConfig
from seg.data.street.demo_pair import write_demo_pair
from seg.train import train
from seg.training.step import training_step

PARTS, PICTURES = 14, 64
WARM_UP = 20


def draw_part(folder: Path, part: int) -> Path:
    """Some pictures of a pair of its own seed."""
    return write_demo_pair(folder / f"part{part}", seed=part, size=(1280, 720), source_train=5, target_train=5,
                           target_val=1)  # fmt: skip


def draw(folder: Path) -> Path:
    """A pair of 70 and 70 pictures, drawn by several processes; the first part takes the others' files."""
    with ProcessPoolExecutor(PARTS) as pool:
        parts = list(pool.map(draw_part, [folder] * PARTS, range(PARTS)))
    for number, part in enumerate(parts[1:], 1):
        for file in part.rglob("*.png"):
            place = parts[0] / file.relative_to(part)
            file.rename(place.with_name(f"{number}{place.name}"))
    return parts[0]


def train_and_time(pair: Path, run: Path, steps: int, *flags: str) -> dict[str, float]:
    """Median milliseconds of a step, its share of the whole, and the peak of the GPU's memory in MiB."""
    starts, ends = [], []

    def timed(state: Any, batches: Any) -> Any:
        torch.cuda.synchronize()
        starts.append(time.perf_counter())
        found = training_step(state, batches)
        torch.cuda.synchronize()
        ends.append(time.perf_counter())
        return found

    torch.cuda.reset_peak_memory_stats()
    config = [
        "--config", "configs/seg/gta5_cityscapes_minent.yaml", "--source.root", str(pair / "gta5"), "--target.root",
        str(pair / "cityscapes"), "--model.encoder-weights", "null", "--max-steps", str(steps), "--eval-every",
        str(steps), "--run-dir", str(run), *flags,
    ]  # fmt: skip
    with mock.patch.object(seg.training.loop, "training_step", timed):
        train(parse_config(TrainConfig, "seg.train", "", config))
    starts, ends = starts[WARM_UP:], ends[WARM_UP:]
    inside = [end - start for start, end in zip(starts, ends, strict=True)]
    return {
        "step_ms": 1e3 * statistics.median(inside),
        "waits": 1 - sum(inside[:-1]) / (starts[-1] - starts[0]),
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20,
    }


def command_seconds(*arguments: str) -> float:
    """Of one command, its start included."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Draw, train, adapt, print, save."""
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="new folder for pictures, runs and predictions")
    parser.add_argument("--steps", type=int, default=300, help="of each training")
    parser.add_argument("--out", type=Path, help="JSON file for the raw values")
    options = parser.parse_args()
    result: dict[str, Any] = {"environment": machine(gpu=torch.cuda.get_device_name())}
    pair = draw(options.folder)
    kinds = {
        "float32": [], "bf16": ["--precision", "bf16"], "bf16, AdaDEM": ["--precision", "bf16", "--loss", "adadem"],
    }  # fmt: skip
    for name, flags in kinds.items():
        run = options.folder / name.replace(", ", "-")
        result[name] = train_and_time(pair, run, options.steps, *flags)
        print(name, result[name], flush=True)
    pictures = sorted((pair / "cityscapes/leftImg8bit/train").rglob("*.png"))[:PICTURES]
    (options.folder / "pictures").mkdir()
    for number, file in enumerate(pictures):
        file.rename(options.folder / f"pictures/{number}.png")
    images = ["--images", str(options.folder / "pictures"), "--model", str(options.folder / "bf16")]
    for name in ("seg.export", "seg.adapt"):
        result[name] = command_seconds(name, *images, "--out", str(options.folder / name))
        print(name, len(pictures), "pictures", round(result[name], 1), "s", flush=True)
    write_json(options.out, result)


if __name__ == "__main__":
    main()
