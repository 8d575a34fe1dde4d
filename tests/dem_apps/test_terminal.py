"""What commands print, on terminals of every kind: narrow, dumb, without colours, without UTF-8."""

from __future__ import annotations

import io
import re
import sys

import pytest
from rich.console import Console
from rich.table import Table

from dem_apps.progress import TrainingProgress
from dem_apps.terminal import print_anything

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
    progress = TrainingProgress(500_000)
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
    assert "| 0.9 +- 0.1" in written[0]
    assert written[1] == "stra?e ...\n"
