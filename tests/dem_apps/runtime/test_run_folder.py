"""The run folder: never overwritten, continued without doubled metrics, readable by any JSON reader."""

from __future__ import annotations

import errno
import io
import json
import math
import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from dem_apps.errors import UNWRITABLE, InputError
from dem_apps.runtime import run_folder
from dem_apps.runtime.command import run_command
from dem_apps.runtime.metrics_info import FILE, Metric, MetricsInfo, read_metrics_info
from dem_apps.runtime.run_folder import RunFolder, checkpoint_to_resume, environment, read_last_checkpoint
from dem_apps.runtime.run_reader import read_config, read_metrics, read_run
from dem_apps.runtime.signals import going_on_with

CONFIG = {"loss": "adadem", "source": {"root": None}}


def create(path: Path) -> RunFolder:
    return RunFolder.create(path, CONFIG, seed=3, device="cpu", info=MetricsInfo("Racing"))


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A run that logged steps 1 to 5 and saved a checkpoint at 3."""
    run = create(tmp_path / "run")
    for step in range(1, 6):
        run.log(step, loss=step / 10)
        if step == 3:
            run.save_checkpoint("last", {"step": step, "weights": torch.ones(2)}, step)
    run.close()
    return run.path


def steps(path: Path) -> list[int]:
    return [line["step"] for line in read_metrics(path)]


def test_a_new_run(tmp_path: Path) -> None:
    run = create(tmp_path / "deep" / "run")
    run.log(1, loss=0.5, lr=1, note="warm-up")
    run.close()
    run.close()
    assert read_config(run.path) == CONFIG
    assert read_metrics(run.path) == [{"step": 1, "loss": 0.5, "lr": 1, "note": "warm-up"}]
    recorded = json.loads((run.path / "environment.json").read_text())
    assert recorded["seed"] == 3
    assert recorded["device"] == "cpu"
    assert torch.__version__.startswith(recorded["packages"]["torch"])
    assert list(run.path.glob("events.out.tfevents.*"))
    assert not list(run.path.glob("*.tmp"))


def test_a_run_says_what_its_metrics_are(tmp_path: Path) -> None:
    info = MetricsInfo("Racing", metrics=(Metric("lap/time", "lap time", better="lower"),))
    run = RunFolder.create(tmp_path / "new", CONFIG, 0, "cpu", info)
    run.close()
    assert read_metrics_info(run.path / FILE) == info
    older = RunFolder.create(tmp_path / "older", CONFIG, 0, "cpu")
    older.close()
    assert not (older.path / FILE).exists()
    RunFolder.resume(older.path, None, info).close()
    assert read_metrics_info(older.path / FILE) == info
    RunFolder.resume(older.path, None, MetricsInfo("Another version")).close()
    assert read_metrics_info(older.path / FILE) == info


def test_one_reader_shows_faults_or_refuses(ran: Path) -> None:
    (ran / "eval.json").write_text("[]")
    (ran / "metrics.jsonl").write_text('{"step": 1}\n{"step": "x"}\n{"step": 2}\n')
    run = read_run(ran)
    assert [line["step"] for line in run.metrics] == [1, 2]
    assert "metrics.jsonl: line 2 cannot be read and is left out." in run.missing
    run.require("config.yaml", "environment.json")
    with pytest.raises(InputError, match=r"eval\.json: expected a mapping of keys, found list$"):
        run.require("config.yaml", "eval.json")
    with pytest.raises(InputError, match=r"metrics\.jsonl: line 2: expected a mapping with a whole number 'step'$"):
        run.require("metrics.jsonl")
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2: expected a mapping with a whole number 'step'$"):
        read_metrics(ran)
    (ran / "metrics.jsonl").write_text('{"step": 1}\n{"step"')  # as a kill leaves it
    read_run(ran).require("metrics.jsonl")
    assert steps(ran) == [1]
    (ran / "eval.json").unlink()
    with pytest.raises(InputError, match=r"eval\.json: is missing$"):
        read_run(ran).require("eval.json")


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    create(tmp_path).close()
    assert read_config(tmp_path) == CONFIG


def test_another_run_is_never_overwritten(ran: Path) -> None:
    before = {path: path.read_bytes() for path in ran.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"holds another run, .* or continue it with --resume$"):
        create(ran)
    assert {path: path.read_bytes() for path in ran.rglob("*") if path.is_file()} == before


def test_other_files_are_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(InputError, match=r"holds other files, which is never overwritten; give another --run-dir$"):
        create(tmp_path)
    with pytest.raises(InputError, match="holds other files"):
        create(tmp_path / "thesis.tex")
    with pytest.raises(InputError, match=r"cannot be written .*; give another --run-dir$"):
        create(tmp_path / "thesis.tex" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_resume_drops_what_will_be_repeated(ran: Path) -> None:
    run = RunFolder.resume(ran, start_step=read_last_checkpoint(ran)["step"])
    assert steps(ran) == [1, 2, 3]
    run.log(4, loss=0.0)
    run.close()
    assert steps(ran) == [1, 2, 3, 4]


def test_resume_after_a_kill_in_the_middle_of_a_line(ran: Path) -> None:
    whole = (ran / "metrics.jsonl").read_text()
    for cut in range(1, len(whole.splitlines()[-1]) + 1):
        (ran / "metrics.jsonl").write_text(whole[:-1][:-cut])
        assert steps(ran) == [1, 2, 3, 4]
        run = RunFolder.resume(ran, start_step=5)
        run.log(6, loss=0.0)
        run.close()
        assert steps(ran) == [1, 2, 3, 4, 6]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_say_becomes_null(value: float, tmp_path: Path) -> None:
    run = create(tmp_path)
    run.log(1, loss=value, other=2.0)
    run.close()

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert line == {"step": 1, "loss": None, "other": 2.0}


def test_metrics_are_on_the_disk_at_once(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.log(1, loss=0.5)
    assert steps(tmp_path) == [1]
    run.close()


def test_write_json(ran: Path) -> None:
    run = RunFolder.resume(ran, 5)
    assert json.loads(run.write_json("eval.json", {"miou": 0.5}).read_text()) == {"miou": 0.5}
    assert run.write_json("deep/eval.json", {}).is_file()
    run.close()


def test_reading_what_is_no_run(tmp_path: Path) -> None:
    for read in (read_config, read_last_checkpoint):
        with pytest.raises(InputError, match=r"not a run folder \(it has no config\.yaml\)$"):
            read(tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    with pytest.raises(InputError, match="no checkpoint 'last'; there is none"):
        read_last_checkpoint(tmp_path)


def test_environment_can_be_written_as_json() -> None:
    recorded = json.loads(json.dumps(environment(0, "cpu")))
    assert {"command", "seed", "device", "python", "packages", "git_commit"} <= set(recorded)


# -- what kills and full disks leave ----------------------------------------------------------------------------


def test_what_a_start_left_that_was_killed_is_taken_over(tmp_path: Path) -> None:
    for name in ("environment.json", "environment.json.tmp", FILE, f"{FILE}.tmp", "config.yaml.tmp"):
        (tmp_path / name).write_text("{")
    create(tmp_path).close()
    assert read_config(tmp_path) == CONFIG
    assert json.loads((tmp_path / "environment.json").read_text())["seed"] == 3
    assert not list(tmp_path.glob("*.tmp"))


def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    run = create(tmp_path / "run")
    run.log(1, loss=0.5)
    run.log(3, loss=0.4)
    assert checkpoint_to_resume(run.path, 3) is None
    assert run.saved_step is None
    run.close()
    again = RunFolder.resume(run.path, None)
    assert (steps(run.path), again.saved_step) == ([], None)
    again.close()


def test_a_run_that_has_lost_its_checkpoint_does_not_begin_again(ran: Path) -> None:
    assert checkpoint_to_resume(ran, 3)["step"] == 3
    (ran / "checkpoints" / "last.json").unlink()
    with pytest.raises(InputError, match="no checkpoint 'last'; there is none"):
        checkpoint_to_resume(ran, 3)
    assert checkpoint_to_resume(ran, 5) is None
    (ran / "eval.json").write_text("{}")
    with pytest.raises(InputError, match="no checkpoint 'last'; there is none"):
        checkpoint_to_resume(ran, 5)
    assert steps(ran) == [1, 2, 3, 4, 5]


def test_a_resumed_run_removes_what_a_kill_left(ran: Path) -> None:
    """A run that was killed in its last save has no other that would."""
    before = sorted((ran / "checkpoints").iterdir())
    for leftover in ("last.00000002.0123abcd.safetensors", "last.00000004.0123abcd.safetensors.tmp", "last.json.tmp"):
        (ran / "checkpoints" / leftover).write_bytes(b"")
    RunFolder.resume(ran, 3).close()
    assert sorted((ran / "checkpoints").iterdir()) == before


def test_the_step_of_the_last_checkpoint_is_known(ran: Path) -> None:
    run = RunFolder.resume(ran, 3)
    assert run.saved_step == 3
    run.save_checkpoint("best", {}, 4)
    assert run.saved_step == 3
    run.save_checkpoint("last", {}, 5)
    assert run.saved_step == 5
    run.close()


def test_a_run_that_another_process_writes_to_is_left_alone(ran: Path) -> None:
    run = RunFolder.resume(ran, 3)
    run.log(4, loss=0.1)

    def resume() -> None:
        with pytest.raises(InputError, match=r"another process is writing to this run; stop it, or wait for its end$"):
            RunFolder.resume(ran, 3)

    def in_another_process(work: Callable[[], None]) -> int | None:
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
        return process.exitcode

    assert in_another_process(resume) == 0
    assert steps(ran) == [1, 2, 3, 4]
    run.close()
    assert in_another_process(lambda: RunFolder.resume(ran, 4).close()) == 0


@pytest.mark.parametrize("where", ["metrics", "tensorboard", "checkpoint"])
def test_a_full_disk_is_one_sentence_wherever_it_is_met(where: str, ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder.resume(ran, 3)
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(*_: Any, **__: Any) -> None:
        raise full

    if where == "metrics":
        monkeypatch.setattr(run, "_metrics", io.TextIOWrapper(FullFile()))
    elif where == "tensorboard":
        monkeypatch.setattr(run._tensorboard, "add_scalar", fail)
    else:
        monkeypatch.setattr("dem_apps.runtime.checkpoint.write_bytes", fail)

    def go_on() -> None:
        run.log(4, loss=0.1)
        run.save_checkpoint("last", {"step": 4}, 4)

    with pytest.raises(InputError) as raised:
        go_on()
    assert str(raised.value).startswith(str(ran))
    assert "no space left on the disk while writing; the " in str(raised.value)
    assert str(raised.value).endswith("is intact; free some space and run again")
    assert "\n" not in str(raised.value)
    run.close()  # says nothing new
    assert checkpoint_to_resume(ran, 3)["step"] == 3


@pytest.mark.parametrize("number", sorted(UNWRITABLE))
@pytest.mark.parametrize("where", ["metrics", "tensorboard", "checkpoint"])
def test_a_folder_that_turns_read_only_names_the_line_that_continues(
    where: str, number: int, ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder.resume(ran, 3)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number), str(ran / "x"))

    names = {
        "metrics": "dem_apps.runtime.run_folder.json.dumps", "checkpoint": "dem_apps.runtime.checkpoint.write_bytes",
    }  # fmt: skip
    if where == "tensorboard":
        monkeypatch.setattr(run._tensorboard, "add_scalar", fail)
    else:
        monkeypatch.setattr(names[where], fail)

    def go_on() -> None:
        with going_on_with("continue with: COMMAND"):
            run.log(4, loss=0.1)
            run.save_checkpoint("last", {"step": 4}, 4)

    with pytest.raises(
        InputError,
        match=r"x: can no longer be written to \(.*\); the .* intact.*; mend that and continue with: COM",
    ):
        go_on()
    monkeypatch.undo()
    run.close()
    assert checkpoint_to_resume(ran, 3)["step"] == 3


@pytest.mark.parametrize("error", [TypeError("an integer is required"), FileNotFoundError(2, "No such file", "events")])
def test_a_folder_that_goes_between_the_look_and_the_write_is_the_same_sentence(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path / "run")

    def move_and_fail(*_: Any) -> None:
        run.path.rename(tmp_path / "elsewhere")
        raise error

    monkeypatch.setattr(run._tensorboard, "add_scalar", move_and_fail)
    with pytest.raises(
        InputError, match=r"run: was moved or removed while it was written to; put it back and continue"
    ):
        run.log(2, loss=0.5)


def test_a_full_disk_in_tensorboards_thread_is_the_same_sentence(
    disk: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = disk("64k") / "run"

    def main() -> None:
        run = create(folder)
        try:
            for step in range(100):
                run.log_image("noise", np.random.default_rng(step).integers(0, 256, (64, 64, 3), np.uint8), step)
        finally:
            run.close()

    with pytest.raises(SystemExit) as ended:
        run_command(main)
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"error: {folder}: no space left on the disk while writing; no checkpoint has been saved yet; free some space "
        "and run again\n"
    )


class FullFile(io.RawIOBase):
    """Takes nothing."""

    def writable(self) -> bool:
        return True

    def write(self, _content: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_metrics_and_tensorboard_are_on_the_disk_before_the_checkpoint(
    ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    run = RunFolder.resume(ran, 3)
    flush = run._tensorboard.flush
    monkeypatch.setattr(run._tensorboard, "flush", lambda: (done.append("tensorboard"), flush()))
    monkeypatch.setattr("dem_apps.runtime.run_folder.os.fsync", lambda _file: done.append("metrics"))
    monkeypatch.setattr("dem_apps.runtime.run_folder.save_checkpoint", lambda *_, **__: done.append("checkpoint"))
    run.save_checkpoint("last", {}, 4)
    assert done == ["metrics", "tensorboard", "checkpoint"]
    run.close()


@pytest.mark.parametrize("left", [0, 1, 2])
def test_metrics_that_are_gone_are_said(left: int, ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (ran / "metrics.jsonl").read_text().splitlines(keepends=True)
    (ran / "metrics.jsonl").write_text("".join(lines[:left]))
    RunFolder.resume(ran, 3).close()
    assert f"holds {left} of the 3 lines that were logged before the checkpoint" in capsys.readouterr().err


def test_metrics_that_are_all_there_are_not(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunFolder.resume(ran, 3)
    run.log(4, loss=0.1)
    run.save_checkpoint("last", {"step": 4}, 4)
    run.close()
    RunFolder.resume(ran, 4).close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("act", ["log", "save_checkpoint", "write_json"])
@pytest.mark.parametrize("what", ["moved", "removed", "replaced"])
def test_a_folder_that_is_gone_ends_the_training(what: str, act: str, tmp_path: Path) -> None:
    """And is not made again with half of what belongs into it."""
    run = create(tmp_path / "run")
    run.log(1, loss=0.5)
    run.path.rename(tmp_path / "elsewhere")
    if what == "removed":
        shutil.rmtree(tmp_path / "elsewhere")
    elif what == "replaced":
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "run.lock").touch()
    acts: dict[str, Callable[[], Any]] = {
        "log": lambda: run.log(2, loss=0.5), "save_checkpoint": lambda: run.save_checkpoint("last", {"step": 2}, 2),
        "write_json": lambda: run.write_json("eval.json", {}),
    }  # fmt: skip
    with pytest.raises(
        InputError, match=r"run: was moved or removed while it was written to; put it back and continue"
    ):
        acts[act]()
    run.close()
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert not (tmp_path / "run" / "eval.json").exists()


def test_the_commit_of_another_project_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a wheel that is installed in an environment within somebody's clone."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    installed = tmp_path / "venv" / "run_folder.py"
    installed.parent.mkdir()
    installed.write_text("")
    (tmp_path / "theirs.txt").write_text("")
    for command in (["init", "-q"], ["add", "theirs.txt"], ["commit", "-qm", "theirs"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(run_folder, "__file__", str(installed))
    assert run_folder.git_commit() is None
    subprocess.run([*git, "add", "venv/run_folder.py"], cwd=tmp_path, check=True)
    assert run_folder.git_commit() is not None
