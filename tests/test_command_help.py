"""``--help`` of every command: fits the terminal, says kinds and defaults once, and its examples can be run."""

import re
import runpy
import shlex
import sys

import pytest
from support import ROOT, pages, python

COMMANDS = (
    "seg.train",
    "seg.evaluate",
    "seg.export",
    "seg.export_model",
    "seg.adapt",
    "seg.benchmark",
    "seg.tune",
    "seg.convert",
    "seg.data check",
    "rl.train",
    "rl.evaluate",
    "rl.benchmark",
    "rl.plots",
    "rl.tune",
    "dem_apps.report",
)
# the commands are run again in this process, where tests of their modules may have imported them
pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")


def run(monkeypatch, module, *arguments):
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def help_text(monkeypatch, capsys, command):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as left:
        run(monkeypatch, *command.split(), "--help")
    assert left.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_it_fits_the_terminal_and_has_no_noise(command, monkeypatch, capsys):
    text = help_text(monkeypatch, capsys, command)
    assert max(len(line) for line in text.partition("examples:")[0].splitlines()) <= 80
    assert text.startswith(f"usage: python -m {command} ")
    assert text.split("\n\n")[0].count("\n") == 0  # usage is one line
    for noise in (
        "print_config",
        "(type:",
        "Literal",
        "default: null",
        "default: None",
        "default: []",
        "+ ",
        "[W, H]",
    ):
        assert noise not in text, noise
    # one default a flag, whether a value or words
    for block in re.split(r"\n  (?=-)", text):
        assert block.count("default:") <= 1, block


def test_topics_of_the_main_command(monkeypatch, capsys):
    text = help_text(monkeypatch, capsys, "seg.train")
    headings = re.findall(r"^(\S.*):$", text, flags=re.MULTILINE)
    assert headings[:4] == [
        "options",
        "method and objective",
        "training",
        "scores, checkpoints, pictures",
    ]
    assert "source images, labelled" in headings
    assert re.search(r"--max-steps N +training steps \(default: 700\)", text)
    assert re.search(r"--resume +continue", text)  # a switch has no value
    assert "--method {source,control,minent,advent,self-training}" in text
    assert "--validation-part" not in text  # --help lists what people set
    assert len(re.findall(r"^  --", text, flags=re.MULTILINE)) <= 26
    with pytest.raises(SystemExit):
        run(monkeypatch, "seg.train", "--help", "all")
    assert "--validation-part FROM,TO" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_its_three_examples_are_understood(command, monkeypatch, capsys, tmp_path):
    text = help_text(monkeypatch, capsys, command)
    examples = text.rpartition("examples:\n")[2].splitlines()  # one line each, to be copied
    assert len(set(examples)) == 3
    for example in examples:
        python, flag, module, *arguments = shlex.split(example)
        name = [module, *arguments[: command.count(" ")]]
        assert [python, flag, *name] == ["python", "-m", *command.split()]
        with monkeypatch.context() as patch:
            line = pages.Command("--help", module, tuple(arguments))
            assert pages.reads_its_command_line(line, patch, tmp_path), example


@pytest.mark.parametrize("module", ["seg.train", "seg.export", "rl.train", "rl.tune"])
def test_help_and_a_refused_flag_come_before_heavy_imports(module):
    heavy = ("torch", "stable_baselines3", "gymnasium", "matplotlib", "scipy", "optuna")
    for flag, status in (("--help", 0), ("--los=adadem", 2)):
        program = (
            "import sys, runpy, atexit\n"
            f"atexit.register(lambda: print([name for name in {heavy} if name in sys.modules]))\n"
            f"sys.argv = ['x', {flag!r}]\nrunpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
        )
        assert python("-c", program, folder=ROOT, status=status).splitlines()[-1] == "[]"
