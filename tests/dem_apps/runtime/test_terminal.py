"""What commands print, on terminals of every kind: narrow, dumb, without colours, without UTF-8.

Names from elsewhere are shown and never obeyed.
"""

from __future__ import annotations

import io
import itertools
import re
import subprocess
import sys

import pytest
from rich.console import Console
from rich.table import Table

from dem_apps.errors import InputError, printable
from dem_apps.runtime.progress import Progress, track
from dem_apps.runtime.terminal import console, print_anything

ALARM = "target mIoU 12.34 %; alarm: 99.9 % of the pixels are predicted as one class, [road]"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    """All that a training writes to a terminal of 60 columns."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "60", **environment}.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    progress = Progress(500_000)
    monkeypatch.setattr(progress, "_started", progress._started - 40)
    try:
        progress.update(100_000)
        progress.note(100_000, ALARM)
        progress.update(500_000)
    finally:
        progress.close()
    return terminal.getvalue()


def lines(text: str) -> list[str]:
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text))


def test_a_narrow_terminal_shows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch)
    assert max(len(line) for line in lines(text)) <= 60
    bar = next(line for line in lines(text) if line.startswith("training") and "500000/500000" in line)
    assert re.search(r"steps/s left \d:\d\d:\d\d", bar)
    assert "…" not in text
    # the news stay, above the bar and whole
    assert " ".join(f"step 100,000  {ALARM}".split()) in " ".join(" ".join(lines(text)).split())
    assert text.rstrip("\n").endswith("\x1b[?25h")  # the cursor is back


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.search(r"\x1b\[3\dm", shown(monkeypatch))
    assert not re.search(r"\x1b\[[34]\d", shown(monkeypatch, NO_COLOR="1"))


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, TERM="dumb")
    assert "\x1b" not in text
    assert re.match(r"step 100,000/500,000  target mIoU 12\.34 %", text)


def test_a_training_is_never_silent_for_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress, spoken = Progress(1000), [0.0]
    for step in range(1, 300):
        now[0] += 2.0
        if step == 100:
            progress.note(step, "target mIoU 50.00 %")
        elif step in range(200, 240):
            progress.between_steps(f"scoring, image {step}")
        else:
            progress.update(step)
        if capsys.readouterr().out:
            spoken.append(now[0])
    assert max(after - before for before, after in itertools.pairwise(spoken)) <= 60
    assert len(spoken) < 40  # and not with every step


def test_a_terminal_that_is_left_early_gets_its_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    for item in track("abc", 3, "copying"):
        if item == "b":
            break
    del item
    assert "copying" in terminal.getvalue()
    assert terminal.getvalue().rstrip("\n").endswith("\x1b[?25h")


def test_a_stream_without_utf8_spells_what_it_cannot_show(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding="ascii") for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    with pytest.raises(UnicodeEncodeError):
        print("±", flush=True)
    streams["stdout"] = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", streams["stdout"])
    print_anything()
    table = Table("return")
    table.add_row("0.9 ± 0.1")
    Console().print(table)
    print("straße …", file=sys.stderr)
    written = []
    for stream in streams.values():
        stream.flush()
        written.append(stream.buffer.getvalue().decode("ascii"))  # type: ignore[attr-defined]
    assert "0.9 \\xb1 0.1" in written[0]
    assert written[1] == "stra\\xdfe \\u2026\n"


CLEAR = "\x1b[2J\x1b]0;owned\x07"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("äöü ±→ 街", "äöü ±→ 街"),
        (CLEAR, r"\x1b[2J\x1b]0;owned\x07"),
        ("a\nb\r\tc\x00", r"a\nb\r\tc\x00"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\udcff", r"\udcff"),
        ("\u2028", r"\u2028"),
    ],
)
def test_what_would_be_obeyed_is_spelled_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_an_input_error_is_one_safe_line_of_bounded_length() -> None:
    error = InputError(f"{CLEAR}\n{'x' * 10_000}")
    assert printable(str(error)) == str(error)
    assert len(str(error)) < 4100


def test_markup_in_a_name_is_the_name() -> None:
    table = Table("class", title="[bold]runs[/x]")
    table.add_row("[/]:car: [red]road")
    shown = console()
    assert isinstance(shown, Console)
    shown.file = io.StringIO()
    shown.print(table)
    assert "[/]:car: [red]road" in shown.file.getvalue()
    assert "[bold]runs[/x]" in shown.file.getvalue()


def test_a_terminal_without_utf8_and_a_name_without_are_no_crash() -> None:
    program = (
        "from dem_apps.errors import InputError\n"
        "from dem_apps.runtime.command import run_command\n"
        "def main():\n    print('± \\udcff')\n    raise InputError('± \\udcff')\nrun_command(main)"
    )
    environment = {"PYTHONIOENCODING": "ascii", "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (2, "\\xb1 \\udcff\n", "error: \\xb1 \\udcff\n")
