"""Two gloo processes with half the batch each against one process, through the command itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FLAGS = [
    "--method", "advent", "--loss", "adadem", "--reduction", "mean", "--batch-size", "2",
    "--discriminator.channels", "4",
    # at a rate at which rounding is not magnified from step to step, as ADVENT's
    "--optimizer.name", "sgd", "--optimizer.lr", "0.00025", "--optimizer.head-factor", "10",
    "--max-steps", "20", "--eval-every", "10", "--log-every", "1", "--maps", "2",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_pair, run_command):
    folder = tmp_path_factory.mktemp("processes")
    flags = [*FLAGS, "--source.root", str(tiny_pair.source_root), "--target.root", str(tiny_pair.target_root)]
    one = run_command("seg.train", *flags, "--run-dir", str(folder / "one"))
    assert one.returncode == 0, one.stderr
    launcher = ("--standalone", "--nproc-per-node", "2", "-m", "seg.train")
    two = run_command("torch.distributed.run", *launcher, *flags, "--run-dir", str(folder / "two"))
    assert two.returncode == 0, two.stderr
    assert "2 processes" in two.stdout
    return folder / "one", folder / "two"


def lines(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_losses_agree_over_twenty_steps(runs):
    one, two = map(lines, runs)
    assert len(one) == len(two) == 22
    for expected, actual in zip(one, two, strict=True):
        assert actual == pytest.approx(expected, abs=1e-4), f"step {expected['step']}"


def test_scores_agree_and_every_image_is_counted_once(runs):
    one, two = (json.loads((run / "eval.json").read_text()) for run in runs)
    assert two["miou"] == pytest.approx(one["miou"], abs=1e-3)
    assert two["mean_entropy"] == pytest.approx(one["mean_entropy"], abs=1e-4)
    assert two["label_free"] == pytest.approx(one["label_free"], abs=1e-3)


def test_the_run_folder_is_written_once(runs):
    one, two = ({str(path.relative_to(run)) for path in run.rglob("*.png")} for run in runs)
    assert one == two
    assert len(list(runs[1].glob("events.out.tfevents*"))) == 1
