"""Small run folders for the report's tests, made of files alone."""

import html
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from dem_apps.report.page import render_runs
from dem_apps.report.runs import read_runs
from dem_apps.runtime.metrics_info import FILE, MetricsInfo
from rl.results.described_metrics import described_metrics as described_by_rl
from seg.scores.report_scores import report_info as described_by_seg

#: In place of seg.train or rl.train: a run folder that is there already, below its loss and seed. Seed 13 fails.
STAND_IN = """
import pathlib, shutil, sys
words = [word for argument in sys.argv[1:] for word in argument.split("=", 1)]
value = dict(zip(words[::2], words[1::2]))
if value["--seed"] == "13":
    sys.exit("error: unlucky")
shutil.copytree(pathlib.Path(__file__).with_name(value["--loss"]) / value["--seed"], value["--run-dir"])
"""


def write_run(
    path: Path,
    config: dict[str, Any],
    lines: list[dict[str, Any]],
    evaluation: dict[str, Any] | None,
    info: MetricsInfo,
) -> Path:
    """A run folder; without ``evaluation`` one that has not finished."""
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "environment.json").write_text(
        json.dumps({"command": ["/x/seg/train.py", "--seed", "0"]})
    )
    (path / FILE).write_text(json.dumps(asdict(info)))
    if evaluation is not None:
        (path / "eval.json").write_text(json.dumps(evaluation))
    return path


def seg_run(
    path: Path,
    miou: float = 0.3,
    loss: str = "entropy",
    seed: int = 0,
    finished: bool = True,
    method: str = "minent",
) -> Path:
    config = {
        "method": method,
        "loss": loss,
        "seed": seed,
        "max_steps": 20,
        "source": {},
        "target": {},
    }
    lines = [
        {"step": 10, "val/miou": miou / 2, "label_free/im": 0.2, "target/entropy": 1.0},
        {"step": 10, "alarm": "99.0 % of the pixels are predicted as one class"},
        {"step": 20, "val/miou": miou, "label_free/im": 0.4, "target/entropy": 0.5},
    ]
    evaluation = {
        "miou": miou,
        "per_class_iu": {"road": 0.9, "pole": 0.25, "train": None},
        "per_class_label_share": {"road": 0.97, "pole": 0.025, "train": 0.005},
        "pixel_accuracy": 0.8,
        "label_free": {"im": 0.4, "largest_class_share": 0.5},
        "checkpoints": {
            "last": {"step": 20, "miou": miou},
            "best": {"step": 10, "miou": miou + 0.01},
        },
        "protocol": {"upsampling": "bilinear"},
    }
    info = described_by_seg(19, has_objective=method != "source")
    run = write_run(path, config, lines, evaluation if finished else None, info)
    for image in ("a", "b"):
        for view in ("image", "prediction", "entropy", "label", "wrong", "confidently-wrong"):
            write_picture(run / "entropy_maps" / image / f"{view}.png", f"{view}{image}{path}")
    return run


def rl_run(
    path: Path, mean: float = 0.9, loss: str = "entropy", seed: int = 0, env: str = "CartPole-v1"
) -> Path:
    config = {
        "env": env,
        "algo": "ppo",
        "loss": loss,
        "ent_coef": 0.1,
        "seed": seed,
        "timesteps": 20,
    }
    lines = [
        {
            "step": step,
            "eval/mean_return_sampled": mean * step / 20,
            "eval/mean_return_greedy": 0.1,
            "train/policy_entropy": 1.0,
        }
        for step in (10, 20)
    ]
    figures = {"mean_return": mean, "std_return": 0.2, "success_rate": 0.8, "mean_length": 5.0}
    policy = {"step": 20, "sampled": figures, "greedy": {**figures, "mean_return": mean / 2}}
    goal = {
        "goal_return": 0.5,
        "steps_to_goal": 20 if mean >= 0.5 else None,
        "steps_without_goal": 20,
    }
    evaluation = {**policy, **figures, **goal, "episodes": 10, "best": policy}
    return write_run(path, config, lines, evaluation, described_by_rl())


def write_picture(file: Path, seed: str, size: tuple[int, int] = (48, 24)) -> None:
    """A PNG whose content depends on ``seed`` alone."""
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(list(seed.encode())).integers(
        0, 200, (size[1], size[0], 3), np.uint8
    )
    Image.fromarray(noise).save(file)


def page(*paths: Path) -> str:
    """The report of runs."""
    return render_runs(read_runs(paths)).decode()


def text_of(source: str) -> str:
    """The visible text, roughly."""
    bare = re.sub(r"<(style|script)>.*?</\1>", "", source, flags=re.S)
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", bare).split()))
