"""Names from elsewhere are shown and never obeyed."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console
from rich.table import Table

from dem_apps.errors import InputError
from dem_apps.terminal import console, control_character, printable

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


def test_what_no_setting_may_hold() -> None:
    assert control_character("two lines\n\tof text, 街") is None
    assert control_character("a\x1bb") == r"\x1b"
    assert control_character("\udcff") == r"\udcff"


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
        "from dem_apps.errors import InputError, run_command\n"
        "def main():\n    print('± \\udcff')\n    raise InputError('± \\udcff')\nrun_command(main)"
    )
    environment = {"PYTHONIOENCODING": "ascii", "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (2, "\\xb1 \\udcff\n", "error: \\xb1 \\udcff\n")
