"""The first signal asks, the second ends, none falls into a write, and whoever waits is told how to go on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dem_apps.errors import InputError, Interrupted, NotWritten
from dem_apps.runtime import signals as interrupt
from dem_apps.runtime.signals import (
    SIGNALS,
    Stopped,
    StopRequest,
    command_line,
    going_on_with,
    resume_command,
    signals_held,
)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def _same_handlers_afterwards() -> Iterator[None]:
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(interrupt.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM")])
def test_the_first_signal_is_a_request(number: int, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    with StopRequest("resume it", lambda: 4) as stop:
        assert not stop.asked()
        send(number)
        assert stop.asked(), name
        assert stop.asked(), "it is not forgotten"
        stopped = stop.stopped(120)
    assert str(stopped) == "interrupted at step 120, everything is saved; continue with: resume it"
    assert stopped.number == number
    assert capfd.readouterr().err == "", "the notice is for people at a terminal"


@pytest.mark.parametrize(
    ("saved", "text"),
    [
        (4, "stopped at once, the last checkpoint is of step 4; continue with: resume it"),
        (None, "stopped at once, before the first checkpoint; continue with: resume it"),
    ],
)
def test_the_second_signal_ends_at_once(saved: int | None, text: str, clock: list[float]) -> None:
    with StopRequest("resume it", lambda: saved):
        send(signal.SIGTERM)
        clock[0] += 1
        with pytest.raises(Stopped) as stopped:
            send(signal.SIGINT)
    assert (str(stopped.value), stopped.value.number) == (text, signal.SIGINT)


def test_a_signal_that_a_launcher_sends_on_is_the_same_one(clock: list[float]) -> None:
    with StopRequest("resume it", lambda: None) as stop:
        send(signal.SIGINT)
        clock[0] += 0.2
        with suppress(Stopped):  # which would end the tests
            send(signal.SIGINT)
            send(signal.SIGTERM)
            clock.append(0)
        assert clock == [100.2, 0]
        assert stop.asked()
        assert stop.stopped(1).number == signal.SIGINT


def test_other_processes_leave_the_talking_to_the_main_one() -> None:
    with StopRequest("", lambda: None) as stop:
        send(signal.SIGTERM)
        assert stop.asked()
    assert str(stop.stopped(5)) == ""


def test_a_child_that_inherits_the_handler_dies_of_the_signal() -> None:
    with StopRequest("resume it", lambda: None) as stop:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        assert not stop.asked()


def test_threads_other_than_the_main_one_change_no_handlers() -> None:
    seen: list[Any] = []

    def work() -> None:
        with StopRequest("resume it", lambda: None) as stop, signals_held():
            seen.append((signal.getsignal(signal.SIGINT), stop.asked()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(signal.getsignal(signal.SIGINT), False)]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_write_is_finished_before_a_signal_is_heard(depth: int) -> None:
    done = []

    def write(levels: int) -> None:
        with signals_held():
            if levels > 1:
                write(levels - 1)
            send(signal.SIGINT)
            done.append(levels)

    with pytest.raises(KeyboardInterrupt):
        write(depth)
    assert done == list(range(1, depth + 1))


def test_a_second_signal_in_a_write_names_what_was_written(clock: list[float]) -> None:
    saved = [4]

    def write() -> None:
        with signals_held():
            send(signal.SIGINT)
            saved[0] = 5

    with StopRequest("resume it", lambda: saved[0]):
        send(signal.SIGINT)
        clock[0] += 1
        with pytest.raises(Stopped, match="the last checkpoint is of step 5"):
            write()


def test_a_write_that_fails_does_not_swallow_the_signal() -> None:
    def write() -> None:
        with signals_held():
            send(signal.SIGINT)
            raise OSError("disk")

    with pytest.raises(KeyboardInterrupt):
        write()


def test_whoever_is_interrupted_is_told_how_to_go_on() -> None:
    for error, number in ((KeyboardInterrupt(), 2), (Interrupted(15, "terminated"), 15)):
        with pytest.raises(Stopped) as stopped, going_on_with("continue with: x"):
            raise error
        assert (str(stopped.value), stopped.value.number) == ("interrupted; continue with: x", number)
    told = Stopped(2, "everything is said")
    with pytest.raises(Stopped) as stopped, going_on_with("continue with: x"):
        raise told
    assert stopped.value is told


def test_whose_disk_is_full_is_told_how_to_go_on() -> None:
    with pytest.raises(NotWritten) as full, going_on_with("continue with: x"):
        raise NotWritten("a/b: no space left")
    assert str(full.value) == "a/b: no space left; free some space and continue with: x"
    with pytest.raises(InputError, match=r"^--loss$"), going_on_with("continue with: x"):
        raise InputError("--loss")


def test_the_lines_that_continue_can_be_typed_into_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command_line("rl.tune", ["--train.env", "A b", "x"]) == "python -m rl.tune --train.env 'A b' x"
    run = Path("runs/my run")
    assert resume_command("seg.train", run) == "python -m seg.train --run-dir 'runs/my run' --resume"
    monkeypatch.setattr(interrupt, "world_size", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    line = "torchrun --standalone --nproc-per-node 2 -m seg.train --run-dir 'runs/my run' --resume"
    assert resume_command("seg.train", run) == line
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    line = "the launcher of this run and -m seg.train --run-dir 'runs/my run' --resume"
    assert resume_command("seg.train", run) == line


def test_a_terminal_is_told_at_once(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with StopRequest("resume it", lambda: None) as stop:
        send(signal.SIGINT)
        assert stop.asked()
    assert "once more stops at once, without saving" in capfd.readouterr().err
