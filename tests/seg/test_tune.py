from __future__ import annotations

import csv
import json
import multiprocessing
import os
import shlex
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from PIL import Image

from dem_apps.errors import InputError
from dem_apps.jobs.executor import LocalExecutor
from dem_apps.jobs.job import Job, JobFailed, JobKilled
from dem_apps.jobs.search import DEM_SPACE, TPEPlan
from dem_apps.jobs.study import StudyFolder
from dem_apps.jobs.tune import Trials
from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import parse_config, to_dict
from seg.config import TargetDataConfig, TrainConfig
from seg.tune import TuneConfig, main, trial_jobs, trial_settings

DEMO = str(Path(__file__).parents[2] / "configs/seg/demo.yaml")


@pytest.fixture(scope="module")
def pair_flags(tiny_pair) -> list[str]:
    return ["--train.source.root", str(tiny_pair.source_root), "--train.target.root", str(tiny_pair.target_root)]


@pytest.fixture
def instead_of_training(monkeypatch):
    """Puts a shell script in the place of seg.train; RUN is the trial's run folder. Nothing is drawn."""
    monkeypatch.setattr("seg.tune.plot_dem_search", lambda *_: None)

    def put(script: str) -> None:
        monkeypatch.setattr(Job, "command", lambda job: ["sh", "-c", f"RUN={shlex.quote(str(job.run))}; {script}"])

    return put


@pytest.fixture
def claim(tmp_path):
    return StudyFolder(tmp_path / "s", {}).claim(DEM_SPACE, TPEPlan(DEM_SPACE, 9), set())


@pytest.fixture
def executor() -> LocalExecutor:
    return LocalExecutor({})


@pytest.fixture
def trainings(executor) -> Trials:
    return Trials(trial_jobs(trial_settings(TuneConfig(), TrainConfig())), executor)


SCORES = (
    """mkdir -p "$RUN"; echo started >> "$RUN.starts"; echo '{"miou": 0.'$(basename "$RUN")'5}' > "$RUN/eval.json" """
)


def test_a_trial_trains_scores_its_share_and_is_not_run_again(tmp_path, pair_flags, capfd, monkeypatch):
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


def test_a_study_grows_with_more_trials_and_the_best_is_kept(tmp_path, pair_flags, instead_of_training, capsys):
    instead_of_training(SCORES)
    command = ["--study-dir", str(tmp_path / "s"), "--workers", "2", *pair_flags, "--train.workers", "3"]
    main([*command, "--trials", "2"])
    main([*command, "--trials", "4"])
    rows = list(csv.DictReader((tmp_path / "s" / "trials.csv").open()))
    assert [float(row["miou"]) for row in rows] == [0.00005, 0.00015, 0.00025, 0.00035]
    starts = [path.read_text() for path in (tmp_path / "s" / "trials").glob("*.starts")]
    assert starts == ["started\n"] * 4
    best = yaml.safe_load((tmp_path / "s" / "best.yaml").read_text())
    expected = {"loss": "dem", "tau": float(rows[3]["tau"]), "alpha": float(rows[3]["alpha"])}
    assert best == {**expected, "validation_part": [0.2, 1.0]}
    assert "mIoU 0.0003, entropy 0.0001" in capsys.readouterr().out


def test_the_quick_way_lists_its_trials_first(tmp_path, pair_flags, instead_of_training, capsys):
    instead_of_training(SCORES)
    main(["--study-dir", str(tmp_path / "s"), "--quick", "--workers", "4", *pair_flags])
    printed = capsys.readouterr().out
    listed = printed.index("first    tau 1 with alpha 0, 0.1, 0.2, 0.3")
    assert listed < printed.index("trial 0 ")
    # the script scores later trials higher, so alpha is 2 or, with four at a time, near it
    assert 21 + 9 <= len(list(csv.DictReader((tmp_path / "s" / "trials.csv").open()))) <= 21 + 11


def test_failed_trials_are_one_line_each_and_name_their_log(tmp_path, pair_flags, instead_of_training, capsys):
    instead_of_training('case "$RUN" in *0001) echo broken >&2; exit 2;; esac; ' + SCORES)
    main(["--study-dir", str(tmp_path / "s"), "--trials", "3", *pair_flags])
    lines = [line for line in capsys.readouterr().out.splitlines() if "failed:" in line]
    log = tmp_path / "s" / "trials" / "0001.log"
    assert len(lines) == 1
    assert f"failed: status 2, broken (all of its output: {log})" in lines[0]
    command, printed = log.read_text().splitlines()
    assert command.startswith("$ sh -c ")
    assert printed == "broken"


def test_a_study_without_any_score_is_an_error_that_names_a_log(tmp_path, pair_flags, instead_of_training):
    instead_of_training("exit 2")
    with pytest.raises(InputError, match=r"no trial has a score; .*0000\.log says why"):
        main(["--study-dir", str(tmp_path / "s"), "--trials", "2", *pair_flags])
    assert (tmp_path / "s" / "trials.csv").read_text().count(",fail\n") == 2
    assert not (tmp_path / "s" / "best.yaml").exists()


@pytest.mark.parametrize(("script", "error"), [
    ("exit 1", JobFailed), ("kill -9 $$", JobKilled), ("exit 143", JobKilled), ("exit 130", JobKilled),
])  # fmt: skip
def test_a_signal_is_told_from_a_failure(script, error, claim, trainings, instead_of_training):
    instead_of_training(script)
    with pytest.raises(error):
        trainings(claim)


def test_stop_ends_what_is_running_and_starts_no_more(claim, trainings, executor, instead_of_training):
    saving = """trap 'sleep 0.2; touch "$RUN.saved"; exit 143' TERM; touch "$RUN.up"; """
    instead_of_training(saving + "while :; do sleep 0.02; done")
    caught: list[BaseException] = []

    def train():
        try:
            trainings(claim)
        except JobKilled as error:
            caught.append(error)

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    wait_for(claim.run.with_suffix(".up"))
    executor.stop()
    assert claim.run.with_suffix(".saved").exists(), "stop() waits for a training that saves"
    thread.join(20)
    assert "signal 15" in str(caught[0])
    with pytest.raises(JobKilled, match="stopped"):
        trainings(claim)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_search_lets_its_training_save_and_the_same_command_continues(
    number, status, tmp_path, pair_flags, instead_of_training, capfd
):
    study, trial = tmp_path / "my study", tmp_path / "my study" / "trials" / "0000"
    saving = """trap 'sleep 0.2; echo saved > "$RUN.saved"; exit 143' TERM; touch "$RUN.up"; """
    instead_of_training(saving + "while :; do sleep 0.02; done")
    arguments = ["--study-dir", str(study), "--trials", "1", *pair_flags]
    searching = multiprocessing.get_context("fork").Process(target=run_command, args=(lambda: main(arguments),))
    searching.start()
    wait_for(trial.with_suffix(".up"))
    os.kill(searching.pid, number)
    searching.join()
    assert searching.exitcode == status
    assert trial.with_suffix(".saved").read_text() == "saved\n", "it was waited for"
    command = shlex.join(["python", "-m", "seg.tune", *arguments])
    assert capfd.readouterr().err == f"interrupted; the same command continues: {command}\n"
    instead_of_training(SCORES)
    main(shlex.split(command)[3:])
    assert (study / "best.yaml").is_file()


def test_a_training_that_outlives_its_command_is_waited_for_and_its_score_is_taken(
    tmp_path, claim, trainings, instead_of_training
):
    instead_of_training(
        f'touch "$RUN.up"; n=0; while [ ! -e "$RUN.go" ] && [ $((n+=1)) -lt 500 ]; do sleep 0.02; done; {SCORES}'
    )
    thread = threading.Thread(target=trainings, args=(claim,), daemon=True)
    thread.start()
    wait_for(claim.run.with_suffix(".up"))
    claim.lock.release()  # as if the command had been killed
    folder, plan = StudyFolder(tmp_path / "s", {}), TPEPlan(DEM_SPACE, 1)
    assert folder.claim(DEM_SPACE, plan, set()) is None
    assert folder.running_elsewhere(set()) == [claim.number]
    claim.run.with_suffix(".go").touch()
    thread.join(20)
    adopted = folder.claim(DEM_SPACE, plan, set())
    assert (adopted.number, adopted.values) == (claim.number, claim.values)
    instead_of_training("exit 9")
    assert trainings(adopted) == 0.00005


def test_the_command_of_a_trial_makes_its_settings_and_goes_on_from_where_it_stands(claim):
    settings = trial_settings(TuneConfig(share=0.5), TrainConfig(seed=3, target=TargetDataConfig(size=[64, 32])))
    (job,) = trial_jobs(settings)(claim.run, claim.values)
    python, flag, module, *arguments = job.command()
    assert (python, flag, module) == (sys.executable, "-m", "seg.train")
    expected = replace(settings, run_dir=str(claim.run), **claim.values)
    assert parse_config(TrainConfig, "x", "x", arguments) == expected
    claim.run.mkdir(parents=True)
    (claim.run / "config.yaml").write_text(yaml.safe_dump(to_dict(expected)))
    assert job.command() == [*[python, flag, module, *arguments], "--resume"]
    assert parse_config(TrainConfig, "x", "x", job.command()[3:]) == replace(expected, resume=True)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--share", "0"), "--share: expected more than 0, got 0.0"),
        (("--share", "1"), "--share: expected less than 1, got 1.0"),
        (("--trials", "0"), "--trials: expected 1 or more, got 0"),
        (("--workers", "0"), "--workers: expected 1 or more, got 0"),
        (("--steps", "0"), "--steps: expected 1 or more, got 0"),
        (("--share", "0.01"), "the part 0 to 0.01 of 4 images is none"),
        (("--share", "0.99"), "the part 0.99 to 1 of 4 images is none"),
        (("--train.tau", "0.5"), "--train.tau: leave it out, the search finds it"),
        (("--train.validation-part", "0,0.5"), "--train.validation-part: leave it out, --share says"),
        (("--train.run-dir", "x"), "--train.run-dir: leave it out"),
        (("--train.method", "source"), "--train.method: 'source' has no objective on target"),
        (("--max-steps", "3"), "--max-steps: a flag of seg.train; write --train.max-steps"),
        (("--train.max-stesp", "3"), "unknown argument '--max-stesp'; did you mean '--max-steps'?"),
        (("--trails", "3"), "unknown argument '--trails'; did you mean '--trials'?"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_no_folder(flags, sentence, tmp_path, pair_flags):
    with pytest.raises(InputError) as caught:
        main(["--study-dir", str(tmp_path / "s"), *pair_flags, *flags])
    assert sentence in str(caught.value)
    assert not (tmp_path / "s").exists()


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.exists()
