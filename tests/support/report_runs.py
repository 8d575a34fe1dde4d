"""Small run folders for the report's tests, made of files alone."""

from __future__ import annotations

import html
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from dem_apps.report.page import render
from dem_apps.runtime.metrics_info import FILE, MetricsInfo
from dem_apps.runtime.run_reader import read_runs
from rl.results.described_metrics import described_metrics as described_by_rl
from seg.scores.described_metrics import described_metrics as described_by_seg

CLASSES = ("road", "pole", "train")


def write_json(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def write_run(
    path: Path,
    config: dict[str, Any],
    lines: list[dict[str, Any]],
    evaluation: dict[str, Any] | None = None,
    info: MetricsInfo | None = None,
) -> Path:
    """A run folder; without ``evaluation`` one that has not finished, without ``info`` one of an older version."""
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(path / "environment.json", {"seed": config.get("seed"), "packages": {"torch": "2.9"}})
    for name in ("last", "best"):
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        (path / "checkpoints" / f"{name}.pt").write_bytes(b"")
    if evaluation is not None:
        write_json(path / "eval.json", evaluation)
    if info is not None:
        write_json(path / FILE, info.document())
    return path


def seg_evaluation(miou: float) -> dict[str, Any]:
    return {
        "miou": miou,
        "per_class_iu": {"road": 0.9, "pole": 0.25, "train": None},
        "per_class_label_share": {"road": 0.97, "pole": 0.025, "train": 0.005},
        "pixel_accuracy": 0.8,
        "mean_entropy_normalised": 0.1,
        "reliability": {"pixels": [0, 30, 70], "confidence": [None, 0.5, 0.9], "accuracy": [None, 0.4, 0.7]},
        "entropy_histogram": {"edges": [0.0, 0.5, 1.0], "wrong": [10, 20], "right": [60, 10]},
        "label_free": {"im": 0.4, "largest_class_share": 0.5},
        "checkpoint": "last",
        "checkpoints": {
            "last": {"step": 20, "miou": miou, "chosen_by": "end of training", "used_target_labels": False},
            "best": {"step": 10, "miou": miou + 0.01, "chosen_by": "target labels", "used_target_labels": True},
        },
        "protocol": {"upsampling": "bilinear"},
    }


def seg_run(path: Path, miou: float = 0.3, loss: str = "entropy", seed: int = 0, finished: bool = True) -> Path:
    config = {"method": "minent", "loss": loss, "seed": seed, "max_steps": 20, "source": {}, "target": {}}
    lines = [
        {"step": 10, "val/miou": miou / 2, "label_free/im": 0.2, "target/entropy": 1.0},
        {"step": 10, "alarm": "99.0 % of the pixels are predicted as one class"},
        {"step": 20, "val/miou": miou, "label_free/im": 0.4, "target/entropy": 0.5},
    ]
    run = write_run(path, config, lines, seg_evaluation(miou) if finished else None, described_by_seg("im", 19))
    for image in ("a", "b"):
        for view in ("image", "prediction", "entropy", "label"):
            write_picture(
                run / "entropy_maps" / image / f"{view}.png", f"{view}{image}{'' if view == 'image' else path}"
            )
    return run


def rl_run(path: Path, mean: float = 0.9, loss: str = "entropy", seed: int = 0) -> Path:
    config = {"env": "Door-v0", "algo": "ppo", "loss": loss, "seed": seed, "timesteps": 20}
    lines: list[dict[str, Any]] = [
        {"step": step, "eval/mean_return_sampled": mean * step / 20, "eval/std_return_sampled": 0.1,
         "eval/mean_return_greedy": 0.1, "eval/success_rate_sampled": 0.5, "train/policy_entropy": 1.0,
         "train/own": 3.0}
        for step in (10, 20)
    ]  # fmt: skip
    figures = {"mean_return": mean, "std_return": 0.2, "success_rate": 0.8}
    block = {"checkpoint": "last", "step": 20, **figures, "sampled": figures, "greedy": figures}
    return write_run(path, config, lines, {**block, "best": {**block, "checkpoint": "best"}}, described_by_rl())


def write_picture(file: Path, seed: str, size: tuple[int, int] = (48, 24)) -> None:
    """A PNG whose content depends on ``seed`` alone."""
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(list(seed.encode())).integers(0, 200, (size[1], size[0], 3), np.uint8)
    Image.fromarray(noise).save(file)


def write_gif(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    content = io.BytesIO()
    frames[0].save(content, "GIF", save_all=True, append_images=frames[1:], duration=200, loop=0)
    file.write_bytes(content.getvalue())


def page(*paths: Path) -> str:
    """The report of runs, whole."""
    return render(read_runs(paths)).decode()


def text_of(source: str) -> str:
    """What a reader sees, more or less."""
    bare = re.sub(r"<(style|script)>.*?</\1>", "", source, flags=re.S)
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", bare).split()))
