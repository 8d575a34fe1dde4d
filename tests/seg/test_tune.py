"""The search of tau and alpha. Kills and pruning: tests/dem_apps/jobs/test_search.py."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from PIL import Image

from dem_apps.errors import InputError
from dem_apps.jobs.job import Job
from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import parse_config
from seg.config import TrainConfig
from seg.demo.demo_pair import DemoPair
from seg.tune import main

DEMO = str(Path(__file__).parents[2] / "configs/seg/demo.yaml")
SCORES = (
    'mkdir -p "$RUN"; echo started >> "$RUN.starts"; echo \'{"miou": 0.\'$(basename "$RUN")\'5}\' > "$RUN/eval.json" '
)


@pytest.fixture(scope="module")
def pair_flags(tiny_pair: DemoPair) -> list[str]:
    return ["--train.source.root", str(tiny_pair.source_root), "--train.target.root", str(tiny_pair.target_root)]


@pytest.fixture
def instead_of_training(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script in the place of seg.train; RUN is the trial's run folder."""

    def put(script: str) -> None:
        monkeypatch.setattr(Job, "command", lambda job: ["sh", "-c", f"RUN={shlex.quote(str(job.run))}; {script}"])

    return put


def test_a_trial_trains_scores_its_share_and_is_not_run_again(
    tmp_path: Path, pair_flags: list[str], capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    study = tmp_path / "s"
    command = ["--config", DEMO, "--study-dir", str(study), "--trials", "1", "--steps", "2", "--share", "0.5"]
    main([*command, *pair_flags, "--train.reduction", "mean"])
    run = study / "trials" / "0000"
    trained = yaml.safe_load((run / "config.yaml").read_text())
    assert (trained["loss"], trained["tau"], trained["alpha"], trained["max_steps"]) == ("dem", 1.0, 1.0, 2)
    assert (trained["validation_part"], trained["reduction"], trained["maps"]) == ([0.0, 0.5], "mean", 0)
    row = next(csv.DictReader((study / "trials.csv").open()))
    assert float(row["miou"]) == json.loads((run / "eval.json").read_text())["miou"]
    assert Image.open(study / "search.png").size[0] > 500
    printed = capfd.readouterr().out
    assert "mIoU on 2 images, 50 % of the target's validation set" in printed
    final = next(line for line in printed.splitlines() if line.startswith("next"))
    config = parse_config(TrainConfig, "x", "x", shlex.split(final)[4:])
    assert (config.loss, config.tau, config.alpha, config.validation_part) == ("dem", 1.0, 1.0, [0.5, 1.0])
    assert (config.reduction, config.max_steps, config.target.root) == ("mean", 700, pair_flags[3])

    before = {path: path.stat().st_mtime_ns for path in (study / "trials").rglob("*")}
    main([*command, *pair_flags, "--train.reduction", "mean"])
    assert {path: path.stat().st_mtime_ns for path in (study / "trials").rglob("*")} == before
    with pytest.raises(InputError, match=r"another configuration \(train.reduction is 'mean' there, 'balanced' here\)"):
        main([*command, *pair_flags])


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_search_lets_its_training_save_and_the_same_command_continues(
    number: int, status: int, tmp_path: Path, pair_flags: list[str], instead_of_training: Callable[[str], None],
    capfd: pytest.CaptureFixture,
) -> None:  # fmt: skip
    study, trial = tmp_path / "my study", tmp_path / "my study" / "trials" / "0000"
    saving = """trap 'sleep 0.2; echo saved > "$RUN.saved"; exit 143' TERM; touch "$RUN.up"; """
    instead_of_training(saving + "while :; do sleep 0.02; done")
    arguments = ["--study-dir", str(study), "--trials", "1", *pair_flags]
    searching = multiprocessing.get_context("fork").Process(target=run_command, args=(lambda: main(arguments),))
    searching.start()
    deadline = time.monotonic() + 60
    while not trial.with_suffix(".up").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(searching.pid, number)  # type: ignore[arg-type]
    searching.join()
    assert searching.exitcode == status
    assert trial.with_suffix(".saved").read_text() == "saved\n", "it was waited for"
    command = shlex.join(["python", "-m", "seg.tune", *arguments])
    assert capfd.readouterr().err == f"interrupted; the same command continues: {command}\n"
    instead_of_training(SCORES)
    main(shlex.split(command)[3:])
    assert (study / "best.yaml").is_file()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--share", "0.99"), "the part 0.99 to 1 of 4 images is none"),
        (("--train.tau", "0.5"), "--train.tau: leave it out, the search finds it"),
        (("--train.validation-part", "0,0.5"), "--train.validation-part: leave it out, --share says"),
        (("--train.method", "source"), "--train.method: 'source' has no objective on target"),
        (("--max-steps", "3"), "--max-steps: a flag of seg.train; write --train.max-steps"),
        (("--train.max-stesp", "3"), "unknown argument '--max-stesp'; did you mean '--max-steps'?"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_no_folder(
    flags: tuple[str, ...], sentence: str, tmp_path: Path, pair_flags: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        main(["--study-dir", str(tmp_path / "s"), *pair_flags, *flags])
    assert sentence in str(caught.value)
    assert not (tmp_path / "s").exists()
