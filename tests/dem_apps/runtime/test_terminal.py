"""Output of commands: progress, characters that a terminal lacks, names with markup and control characters."""

import itertools
import subprocess
import sys

from support import cases

from dem_apps.errors import InputError, printable
from dem_apps.runtime.progress import Progress


def test_a_training_is_never_silent_for_a_minute(monkeypatch, capsys):
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


CLEAR = "\x1b[2J\x1b]0;owned\x07"


@cases(
    ("äöü ±→ 街", "äöü ±→ 街"),
    (CLEAR, r"\x1b[2J\x1b]0;owned\x07"),
    ("\u202egnp.exe", r"\u202egnp.exe"),
    ("\udcff", r"\udcff"),
    ("\u2028", r"\u2028"),
)
def test_what_would_be_obeyed_is_spelled_out(text, shown):
    assert printable(text) == shown
    assert printable(shown) == shown


def test_an_input_error_is_one_safe_line_of_bounded_length():
    error = InputError(f"{CLEAR}\n{'x' * 10_000}")
    assert printable(str(error)) == str(error)
    assert len(str(error)) < 4100


def test_a_name_that_a_terminal_would_obey_is_escaped_and_markup_in_it_is_the_name():
    program = (
        "import sys\nfrom rich.table import Table\nfrom dem_apps.runtime.command import run_command\n"
        "from dem_apps.runtime.progress import Progress, console\n"
        f"name = {CLEAR + '[/]:car:[red]'!r}\n"
        "def main():\n"
        "    table = Table(name, title=name, caption=name)\n"
        "    table.add_row(name)\n"
        "    print(name, name, sep='\\n')\n"
        "    print('\\rbar', name, file=sys.stderr)\n"
        "    console().print(table)\n"
        "    Progress(2).note(1, name)\n"
        "run_command(main)"
    )
    environment = {
        "PATH": "",
        "PYTHONPATH": ":".join(sys.path),
        "FORCE_COLOR": "1",
        "TERM": "xterm",
    }
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    shown = done.stdout
    assert done.stderr == r"\x1b[2J\x1b]0;owned\x07[/]:car:[red]".join(("\nbar ", "\n"))
    assert shown.replace("\n", "").count(r"\x1b[2J\x1b]0;owned\x07[/]:car:[red]") == 7
    assert "\x1b[2J" not in shown
    assert "\x07" not in shown
    assert "\x1b[3m" in shown  # a title of rich's own


def test_a_terminal_without_utf8_and_a_name_without_are_no_crash():
    program = (
        "from dem_apps.errors import InputError\n"
        "from dem_apps.runtime.command import run_command\n"
        "def main():\n    print('± \\udcff')\n    raise InputError('± \\udcff')\nrun_command(main)"
    )
    environment = {"PYTHONIOENCODING": "ascii", "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "\\xb1 \\udcff\n",
        "error: \\xb1 \\udcff\n",
    )


@cases((4.0, "4 steps/s  0:00:23 left"), (0.5, "2 s/step  0:03:04 left"))
def test_a_slow_training_counts_the_seconds_of_a_step(rate, shown, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = Progress(100)
    now[0] = 8 / rate
    progress.note(8, "mIoU 20")
    assert f"step 8/100  mIoU 20  {shown}" in capsys.readouterr().out
