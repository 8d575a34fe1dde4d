"""The first signal asks a training to stop, the second stops it; the message has the command that continues."""

import os
import signal
import time
from pathlib import Path

import pytest

from dem_apps.errors import Interrupted, NotWritten
from dem_apps.runtime.signals import Stopped, StopRequest, begins_again, going_on_with, resume_command


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_stops(number, monkeypatch):
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as stopped, StopRequest("COMMAND") as stop:  # noqa: PT012
        assert not stop.asked()
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # torchrun's, for the same key
        assert stop.asked()
        asked = stop.stopped(5)
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 1)
        os.kill(os.getpid(), number)
    assert str(asked) == "interrupted at step 5, everything is saved; continue with: COMMAND"
    assert str(stopped.value) == "stopped at once, without saving; continue with: COMMAND"
    assert asked.number == stopped.value.number == number
    assert signal.getsignal(number) == before


def test_a_training_whose_folder_is_removed_names_no_folder_to_continue():
    stopped = Stopped(signal.SIGINT, "interrupted at step 3, everything is saved; continue with: C")
    full = NotWritten("disk full", "free some space", "C")
    for error, text in ((stopped, "interrupted; the same"), (full, "disk full; free some space and run again")):
        with pytest.raises(type(error)) as raised, begins_again():
            raise error
        assert str(raised.value).startswith(text)


def test_an_interruption_or_a_full_disk_says_how_to_go_on():
    with pytest.raises(Stopped, match=r"^interrupted; continue with: C$"), going_on_with("continue with: C"):
        raise KeyboardInterrupt
    with pytest.raises(Stopped) as raised, going_on_with("x"):
        raise Interrupted(signal.SIGTERM, "terminated")
    assert raised.value.number == signal.SIGTERM
    with pytest.raises(Stopped, match=r"^done$"), going_on_with("x"):
        raise Stopped(signal.SIGINT, "done")
    with pytest.raises(NotWritten, match=r"^full; free some space and continue with: C$"):  # noqa: SIM117
        with going_on_with("continue with: C"):
            raise NotWritten("full")


def test_the_command_that_continues(monkeypatch):
    run = Path("runs/my run")
    assert resume_command("seg.train", run) == "python -m seg.train --run-dir 'runs/my run' --resume"
    monkeypatch.setattr("dem_apps.reduction.world_size", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    line = "torchrun --standalone --nproc-per-node 2 -m seg.train --run-dir 'runs/my run' --resume"
    assert resume_command("seg.train", run) == line
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert resume_command("rl.train", run).startswith("the launcher of this run and -m rl.train")
