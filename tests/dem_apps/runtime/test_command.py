"""How a command ends when the input, the disk or the user stops it."""

import errno
import os
import re
import signal
import threading
from contextlib import suppress

import numpy as np
import pytest
import torch

from dem_apps.errors import InputError, Interrupted
from dem_apps.runtime.command import _thread_failed, run_command


@pytest.fixture(autouse=True)
def _same_handlers_afterwards():
    def handlers():
        # pytest puts hooks of its own around each part of a test
        ours = threading.excepthook is _thread_failed
        return [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), ours]

    before = handlers()
    yield
    assert handlers() == before


def ending(main):
    with pytest.raises(SystemExit) as left:
        run_command(main)
    return left.value.code


def raising(error):
    def main():
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (InputError("--loss: unknown"), "--loss: unknown"),
        *((OSError(number, "full", "a.jsonl"), "a.jsonl: no space left on the disk; free some space and run again")
          for number in (errno.ENOSPC, errno.EDQUOT)),
    ],
)  # fmt: skip
def test_a_mistake_or_a_full_disk_is_one_line_and_status_2(error, line, capsys):
    assert ending(raising(error)) == 2
    assert capsys.readouterr().err == f"error: {line}\n"


def test_ctrl_c_and_sigterm_end_as_shells_expect(capsys):
    assert ending(raising(KeyboardInterrupt())) == 130
    cleaned = []

    def terminated():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            cleaned.append(True)

    assert ending(terminated) == 143
    assert cleaned == [True]
    assert capsys.readouterr().err == "interrupted\nterminated\n"


def test_signals_during_the_last_words_are_ignored(monkeypatch):
    """torchrun terminates what is left of a group as soon as its first process has ended."""
    heard = []

    def speak(*_, **__):
        with suppress(KeyboardInterrupt):  # which would end the tests
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            heard.append(True)

    monkeypatch.setattr("builtins.print", speak)
    assert ending(raising(Interrupted(15, "saved"))) == 143
    assert heard == [True]


@pytest.mark.parametrize(("number", "shown"), [(errno.ENOSPC, False), (errno.EROFS, False), (errno.EINVAL, True)])
def test_only_a_full_disk_in_a_thread_is_left_to_the_main_one(number, shown, capsys):
    def main():
        thread = threading.Thread(target=raising(OSError(number, "trouble")))
        thread.start()
        thread.join()

    run_command(main)
    assert ("Traceback" in capsys.readouterr().err) == shown


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(1 << 52),
        lambda: np.empty(1 << 55),
        lambda: raising(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))(),
    ],
)
def test_every_allocator_that_has_no_more_is_the_sentence_about_memory(make, capsys):
    assert ending(make) == 2
    assert re.fullmatch(r"error: not enough memory \(.+\); smaller images, [^\n]*\n", capsys.readouterr().err)


@pytest.mark.parametrize("error", [ValueError("a bug"), OSError(errno.EIO, "disk"), RuntimeError("a bug")])
def test_bugs_keep_their_trace(error):
    with pytest.raises(type(error)) as raised:
        run_command(raising(error))
    assert raised.value is error


@pytest.mark.parametrize(
    "text",
    [
        "Caught RuntimeError in DataLoader worker process 0.\nTraceback\nunable to allocate shared memory(shm) for f",
        "DataLoader worker (pid 7) is killed by signal: Killed. ",
    ],
)
def test_a_lost_reader_names_what_needs_less(text, capsys):
    assert ending(raising(RuntimeError(text))) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"({text.splitlines()[-1].strip()}); --workers 0 needs none" in line
