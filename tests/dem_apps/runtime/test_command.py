"""How commands begin, with configurations and extras, and end when input, disk, a signal or the user stops them."""

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from support import ROOT, cases

from dem_apps.errors import InputError, Interrupted, NotWritten
from dem_apps.runtime.arguments import CONFIGS, config_file, found
from dem_apps.runtime.command import _thread_failed, run_command
from dem_apps.runtime.settings import parse_config
from dem_apps.runtime.signals import Stopped, StopRequest, going_on_with, resume_command
from seg.config import TrainConfig
from seg.data.labels import load_classes


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


@cases(
    (InputError("--loss: unknown"), "--loss: unknown"),
    *(
        (
            OSError(number, "full", "a.jsonl"),
            "a.jsonl: no space left on the disk; free some space and run again",
        )
        for number in (errno.ENOSPC, errno.EDQUOT)
    ),
)
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


@cases(
    (Interrupted(15, "saved"), 143), (RuntimeError("gloo/transport/tcp/pair.cc: closed by peer"), 1)
)
def test_signals_during_the_last_words_are_ignored(error, status, monkeypatch):
    """torchrun terminates what is left of a group as soon as its first process has ended."""
    heard = []

    def speak(*_, **__):
        with suppress(KeyboardInterrupt):  # which would end the tests
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            heard.append(True)

    monkeypatch.setattr("builtins.print", speak)
    assert ending(raising(error)) == status
    assert heard == [True]


@pytest.mark.parametrize(
    ("error", "shown"), [(OSError(errno.ENOSPC, "full"), False), (ValueError("a bug"), True)]
)
def test_a_full_disk_in_a_thread_is_left_to_the_main_one(error, shown, capsys):
    def main():
        thread = threading.Thread(target=raising(error))
        thread.start()
        thread.join()

    run_command(main)
    assert ("Traceback" in capsys.readouterr().err) == shown


def test_a_closed_output_is_one_sentence():
    program = "from dem_apps.runtime.command import run_command; run_command(lambda: [print(n) for n in range(10**6)])"
    own = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], env=own, **pipes) as command:
        assert command.stdout.readline() == "0\n"
        command.stdout.close()
        said = command.stderr.read()
    assert (
        said
        == "error: the reader of this command's output has ended; continue a run with --resume\n"
    )
    assert command.returncode == 141


@cases(
    lambda: torch.empty(1 << 52),
    lambda: np.empty(1 << 55),
    lambda: raising(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))(),
)
def test_every_allocator_that_has_no_more_is_the_sentence_about_memory(make, capsys):
    assert ending(make) == 2
    assert re.fullmatch(
        r"error: not enough memory \(.+\); smaller images, [^\n]*\n", capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "error", [ValueError("a bug"), OSError(errno.EIO, "disk"), RuntimeError("a bug")]
)
def test_bugs_keep_their_trace(error):
    with pytest.raises(type(error)) as raised:
        run_command(raising(error))
    assert raised.value is error


@cases(
    "Caught RuntimeError in DataLoader worker process 0.\nTraceback\nunable to allocate shared memory(shm) for f",
    "DataLoader worker (pid 7) is killed by signal: Killed. ",
)
def test_a_lost_reader_names_what_needs_less(text, capsys):
    assert ending(raising(RuntimeError(text))) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"({text.splitlines()[-1].strip()}); --workers 0 needs none" in line


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


def test_an_interruption_or_a_full_disk_says_how_to_go_on():
    with (
        pytest.raises(Stopped, match=r"^interrupted; continue with: C$"),
        going_on_with("continue with: C"),
    ):
        raise KeyboardInterrupt
    with pytest.raises(Stopped) as raised, going_on_with("x"):
        raise Interrupted(signal.SIGTERM, "terminated")
    assert raised.value.number == signal.SIGTERM
    with pytest.raises(Stopped, match=r"^done$"), going_on_with("x"):
        raise Stopped(signal.SIGINT, "done")
    with pytest.raises(NotWritten, match=r"^full; .* and continue with: C$"):  # noqa: SIM117
        with going_on_with("continue with: C"):
            raise NotWritten("full")


def test_the_command_that_continues(monkeypatch):
    run = Path("runs/my run")
    assert (
        resume_command("seg.train", run) == "python -m seg.train --run-dir 'runs/my run' --resume"
    )
    monkeypatch.setattr("dem_apps.reduction.world_size", lambda: 2)
    assert resume_command("rl.train", run).startswith("the launcher of this run and -m rl.train")


def test_configs_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_config(TrainConfig, "x", "x", ["--config", "best"]) != TrainConfig()
    for name in ("folders", "configs/seg/folders.yaml"):
        classes = parse_config(TrainConfig, "x", "x", ["--config", name]).classes
        assert len(load_classes(classes)) > 1
    assert (
        config_file("folders")
        == found("configs/seg/folders.yaml")
        == CONFIGS / "seg" / "folders.yaml"
    )
    assert found("configs/seg/none.yaml") == Path("configs/seg/none.yaml")
    (tmp_path / "configs" / "seg").mkdir(parents=True)
    own = tmp_path / "configs" / "seg" / "folders.yaml"
    own.write_text("seed: 3\n")
    assert found("configs/seg/folders.yaml").resolve() == own  # what is here wins


@cases(
    ("seg.train", "rich, not installed here; pip install -e '.[seg]'"),
    ("seg.data", "rich, not installed here; pip install -e '.[seg]'"),
    ("rl.train", "rich, not installed here; pip install -e '.[rl]'"),
    ("dem_apps.report", "jinja2, not installed here; pip install -e '.[commands]'"),
)
def test_a_command_without_its_extra_says_so(module, needed, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in ('rich', 'jinja2') else found(name, *rest)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", module, "--help"]
    # elsewhere: what stands in the folder that a command starts in comes first, our own installation among it
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        f"error: this command needs {needed}\n",
    )
