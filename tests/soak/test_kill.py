"""Trainings that are killed, told to stop, or out of disk: what they go on to is what they would have come to."""

from __future__ import annotations

import fnmatch
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kill_child import Moment
from kill_runs import NEVER, Tally, Training, differences
from kill_trainings import flags, write_pair

from dem_apps.runtime.checkpoint import load_checkpoint


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Training, Path]]:
    """A training by name, and a run of it that nothing happened to."""
    folder, made = tmp_path_factory.mktemp("kills"), {}
    pair = write_pair(folder / "pair")

    def make(name: str) -> tuple[Training, Path]:
        if name not in made:
            module, arguments = flags(name, pair)
            made[name] = Training(module, arguments, folder / name.replace(" ", "-"))
            ended = made[name].run(made[name].folder / "whole")
            assert ended.status == 0, ended.printed
        return made[name], made[name].folder / "whole"

    return make


def goes_on(training: Training, run: Path, whole: Path) -> None:
    tally = Tally()
    training.finish(run, whole, tally)
    assert tally.faults == []


@pytest.mark.parametrize("name", [pytest.param("seg minent", marks=pytest.mark.slow), "rl ppo"])
def test_kills_in_the_middle_of_writes_change_nothing(name: str, training: Any) -> None:
    chosen, whole = training(name)
    run = chosen.folder / "killed"
    # the first in a new run, the others each in what the one before went on to
    for moment in (
        Moment(at="wrote config.yaml.tmp"),
        Moment(at="half of last tensors.tmp@*"),
        Moment(at="renamed to last tensors@*", nth=2),
        Moment(at="half a line of metrics@*"),
    ):
        ended = chosen.run(run, moment)
        assert ended.status == -signal.SIGKILL, ended.stages
        assert fnmatch.fnmatchcase(ended.stages[-1], moment.at)
    goes_on(chosen, run, whole)


@pytest.mark.parametrize(("name", "call", "step"), [("seg minent", 3, 3), ("rl ppo", 300, 640)])
def test_sigterm_saves_and_says_how_to_go_on(name: str, call: int, step: int, training: Any) -> None:
    chosen, whole = training(name)
    run = chosen.folder / "terminated"
    ended = chosen.run(run, Moment(call=call))
    assert ended.status == 143
    command = f"python -m {chosen.module} --run-dir {run} --resume"
    last = ended.printed.splitlines()[-1]
    assert last == f"interrupted at step {step}, everything is saved; continue with: {command}"
    goes_on(chosen, run, whole)


def test_ctrl_c_in_an_evaluation_saves_before_it(training: Any) -> None:
    chosen, whole = training("seg minent")
    run = chosen.folder / "interrupted"
    ended = chosen.run(run, Moment(call=2, of="seg.evaluate:predicted", number=signal.SIGINT))
    assert (ended.status, "interrupted at step 2, everything is saved" in ended.printed) == (130, True)
    assert "val/miou" not in (run / "metrics.jsonl").read_text()
    goes_on(chosen, run, whole)


def test_sigterm_in_the_last_evaluation_needs_no_save(training: Any) -> None:
    chosen, whole = training("rl ppo")
    run = chosen.folder / "evaluating"
    ended = chosen.run(run, Moment(call=1, of="rl.train:evaluate_checkpoint"))
    assert ended.status == 143
    going_on = f"continue with: python -m rl.train --run-dir {run} --resume"
    assert ended.printed.splitlines()[-1] == f"interrupted; {going_on}"
    goes_on(chosen, run, whole)


def test_workers_that_get_the_signal_too_do_not_keep_it_from_saving(training: Any) -> None:
    chosen, whole = training("seg minent workers")
    run = chosen.folder / "terminated"
    ended = chosen.run(run, Moment(call=3, group=True))
    assert (ended.status, "interrupted at step 3, everything is saved" in ended.printed) == (143, True)
    assert "Traceback" not in ended.printed
    assert differences(whole, training("seg minent")[1]) == []
    goes_on(chosen, run, whole)


@pytest.mark.parametrize(("name", "call", "step"), [("seg minent", 3, 2), ("rl ppo", 500, 0)])
def test_a_full_disk_is_one_sentence_and_the_run_goes_on(
    name: str, call: int, step: int, training: Any, disk: Callable[[str], Path], tmp_path: Path
) -> None:
    chosen, whole = training(name)
    small_disk = disk("32m")
    run, ballast = small_disk / "run", small_disk / "ballast"
    (small_disk / "run.log").symlink_to(tmp_path / "log")  # what is printed goes to another disk
    ended = chosen.run(run, Moment(call=call, fill=ballast))
    assert ended.status == 2
    sentence = ended.printed.splitlines()[-1]
    assert sentence.startswith(f"error: {run}")
    going_on = f"free some space and continue with: python -m {chosen.module} --run-dir {run} --resume"
    assert re.search(rf"no space left on the disk .*(is intact|nothing was overwritten); {going_on}$", sentence)
    assert "Traceback" not in ended.printed
    assert load_checkpoint(run / "checkpoints", "last")["step"] == step
    ended = chosen.run(run, NEVER)
    assert ended.status == 2, "still full"
    assert "Traceback" not in ended.printed
    ballast.unlink()
    goes_on(chosen, run, whole)
