"""The run folder: never overwritten, one writer, continued without doubled metrics."""

import errno
import json
import math
import multiprocessing
import os
import signal

import pytest
import torch
from support import cases, refuses

from dem_apps.errors import InputError
from dem_apps.runtime.metrics_info import FILE, MetricsInfo
from dem_apps.runtime.run_folder import RunFolder, checkpoint_to_resume
from dem_apps.runtime.run_reader import read_config, read_metrics
from dem_apps.runtime.signals import going_on_with

CONFIG = {"loss": "adadem", "source": {"root": None}}


def create(path):
    return RunFolder.create(path, CONFIG, seed=3, device="cpu", info=MetricsInfo("Racing"))


@pytest.fixture
def ran(tmp_path):
    """A run that logged steps 1 to 5 and saved a checkpoint at 3."""
    run = create(tmp_path / "run")
    for step in range(1, 6):
        run.log(step, loss=step / 10)
        if step == 3:
            run.save_checkpoint("last", {"step": step, "weights": torch.ones(2)})
    run.close()
    return run.path


def steps(path):
    return [line["step"] for line in read_metrics(path)]


def in_another_process(work):
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    return process.exitcode


def test_a_new_run(tmp_path):
    run = create(tmp_path / "deep" / "run")
    run.log(1, loss=0.5, lr=1, note="warm-up", other=math.nan)
    line = {"step": 1, "loss": 0.5, "lr": 1, "note": "warm-up", "other": None}
    assert read_metrics(run.path) == [line]  # on the disk at once
    run.write_json("eval.json", {"miou": 0.5})
    assert json.loads((run.path / "eval.json").read_text()) == {"miou": 0.5}
    run.close()
    run.close()
    assert read_config(run.path) == CONFIG
    recorded = json.loads((run.path / "environment.json").read_text())
    assert (recorded["seed"], recorded["device"]) == (3, "cpu")
    assert {"command", "python", "git_commit"} <= set(recorded)
    assert torch.__version__.startswith(recorded["packages"]["torch"])
    assert json.loads((run.path / FILE).read_text())["heading"] == "Racing"
    assert list(run.path.glob("events.out.tfevents.*"))


def test_what_is_there_is_never_overwritten(ran, tmp_path):
    before = {path: path.read_bytes() for path in ran.rglob("*") if path.is_file()}
    refuses(r"holds another run, .* or continue it with --resume$", create, ran)
    assert {path: path.read_bytes() for path in ran.rglob("*") if path.is_file()} == before
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "thesis.tex").write_text("years")
    refuses(r"holds other files, .*--run-dir$", create, tmp_path / "text")
    for path in ("thesis.tex", "thesis.tex/run"):
        refuses(rf"^--run-dir .*{path}: ", create, tmp_path / "text" / path)
    assert [path.name for path in (tmp_path / "text").iterdir()] == ["thesis.tex"]


def test_what_a_start_left_that_was_killed_is_taken_over(tmp_path):
    (tmp_path / ".dem-apps-0.tmp").mkdir()
    for name in ("environment.json", FILE, ".dem-apps-0.tmp/config.yaml", "run.lock"):
        (tmp_path / name).write_text("{")
    create(tmp_path).close()
    assert json.loads((tmp_path / "environment.json").read_text())["seed"] == 3


def test_resume_drops_what_will_be_repeated_and_what_a_kill_left(ran):
    with open(ran / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')  # as a kill leaves it
    (ran / "entropy_maps").mkdir()
    places = (".", "checkpoints", "entropy_maps")
    left = [ran / place / ".dem-apps-0.tmp" / "half.png" for place in places]
    for file in left:
        file.parent.mkdir()
        file.write_bytes(b"half")
    saved = checkpoint_to_resume(ran)
    assert saved is not None
    run = RunFolder.resume(ran, saved["step"])
    assert (steps(ran), run.saved_step) == ([1, 2, 3], 3)
    run.log(4, loss=0.0)
    run.save_checkpoint("best", {"step": 4})
    assert run.saved_step == 3
    run.save_checkpoint("last", {"step": 4})
    assert run.saved_step == 4
    run.close()
    assert steps(ran) == [1, 2, 3, 4]
    assert sorted(path.name for path in (ran / "checkpoints").iterdir()) == ["best.pt", "last.pt"]
    assert not any(file.parent.exists() for file in left)


@pytest.mark.parametrize("fails", ["SummaryWriter", "write_json"])
def test_after_an_error_the_same_process_can_open_the_folder(fails, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"dem_apps.runtime.run_folder.{fails}", full)
        with pytest.raises((InputError, OSError)):
            create(tmp_path / "run")
    (
        RunFolder.resume(tmp_path / "run", None)
        if fails == "SummaryWriter"
        else create(tmp_path / "run")
    ).close()


def test_a_run_without_a_checkpoint_begins_again_and_one_that_lost_it_does_not(ran, tmp_path):
    refuses(r"not a run folder \(it has no config\.yaml\)$", checkpoint_to_resume, tmp_path)
    new = create(tmp_path / "new")
    new.log(1, loss=0.5)
    new.close()
    assert checkpoint_to_resume(new.path) is None
    RunFolder.resume(new.path, None).close()
    assert steps(new.path) == []
    (ran / "eval.json").write_text("{}")
    (ran / "checkpoints" / "last.pt").unlink()
    refuses("has no checkpoint 'last', but none", checkpoint_to_resume, ran)


def test_two_writers_are_refused_until_the_first_is_killed(ran):
    def refused():
        refuses(
            r"another process is writing to this run; stop it, or wait for its end$",
            RunFolder.resume,
            ran,
            3,
        )

    def write_and_be_killed():
        run = RunFolder.resume(ran, 3)
        run.log(4, loss=0.1)
        os.kill(os.getpid(), signal.SIGKILL)

    run = RunFolder.resume(ran, 3)
    assert in_another_process(refused) == 0
    run.close()
    assert in_another_process(write_and_be_killed) == -signal.SIGKILL
    RunFolder.resume(ran, 4).close()
    assert steps(ran) == [1, 2, 3, 4]


@pytest.mark.parametrize("where", ["metrics", "tensorboard", "checkpoint"])
@cases(
    (errno.ENOSPC, "No space left .*; the .* is intact; mend that and CONTINUE$"),
    (errno.EROFS, "Read-only .*; the .* is intact; mend that and CONTINUE$"),
)
def test_a_disk_that_fails_is_one_sentence(number, sentence, where, ran, monkeypatch):
    run = RunFolder.resume(ran, 3)

    def fail(*_, **__):
        raise OSError(number, os.strerror(number), str(ran / "x"))

    if where == "tensorboard":
        monkeypatch.setattr(run._tensorboard, "add_scalar", fail)
    else:
        target = {"metrics": "run_folder.json.dumps", "checkpoint": "checkpoint.write_atomically"}[
            where
        ]
        monkeypatch.setattr(f"dem_apps.runtime.{target}", fail)
    with pytest.raises(InputError, match=sentence), going_on_with("CONTINUE"):  # noqa: PT012
        run.log(4, loss=0.1)
        run.save_checkpoint("last", {"step": 4})
    monkeypatch.undo()
    run.close()
    saved = checkpoint_to_resume(ran)
    assert saved is not None
    assert saved["step"] == 3
