"""Every command with any flags and values: it begins, prints its help, or ends with one sentence; never a trace."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dem_apps.figures
import dem_apps.report.__main__
import rl.benchmark
import rl.config
import rl.evaluate
import rl.export
import rl.plots
import rl.tune
import seg.adapt
import seg.benchmark
import seg.config
import seg.convert
import seg.evaluate
import seg.export
import seg.tune
from dem_apps.errors import InputError
from dem_apps.runtime.settings import _build_parser, parse_config, parse_search


def flags_of(*classes: tuple[type, str]) -> list[str]:
    """The flags of settings, each with a prefix behind its dashes."""
    return [
        f"--{prefix}{flag.lstrip('-')}"
        for kind, prefix in classes
        for action in _build_parser(kind, "x", "x", "x", None)._actions
        for flag in action.option_strings
    ]


def settings(kind: type) -> Callable[[list[str]], Any]:
    return lambda argv: parse_config(kind, "python -m x", "x", argv)


def search(tune: Any, train: type) -> Callable[[list[str]], Any]:
    return lambda argv: parse_search(tune, train, "x.tune", "x.train", "x", argv)


HYPERPARAMETERS = [
    f"--hyperparameters.{key}"
    for key in ("n_envs", "n_steps", "gamma", "normalize", "policy_kwargs", "env_wrapper", "policy", "x")
]
#: What a command does before it opens or writes anything, and its flags.
COMMANDS: dict[str, tuple[Callable[[list[str]], Any], list[str]]] = {
    "seg.train": (lambda argv: settings(seg.config.TrainConfig)(argv).check(), flags_of((seg.config.TrainConfig, ""))),
    "seg.evaluate": (settings(seg.evaluate.EvaluateConfig), flags_of((seg.evaluate.EvaluateConfig, ""))),
    "seg.export": (
        lambda argv: settings(seg.export.ExportConfig)(seg.export._gathered(argv)),
        flags_of((seg.export.ExportConfig, "")),
    ),
    "seg.adapt": (lambda argv: settings(seg.adapt.AdaptConfig)(argv).check(), flags_of((seg.adapt.AdaptConfig, ""))),
    "seg.convert": (settings(seg.convert.ConvertConfig), flags_of((seg.convert.ConvertConfig, ""))),
    "seg.benchmark": (
        lambda argv: seg.benchmark.grid_jobs(settings(seg.benchmark.BenchmarkConfig)(argv)),
        flags_of((seg.benchmark.BenchmarkConfig, "")),
    ),
    "seg.tune": (
        search(seg.tune.TuneConfig, seg.config.TrainConfig),
        flags_of((seg.tune.TuneConfig, ""), (seg.config.TrainConfig, "train.")),
    ),
    "rl.train": (
        lambda argv: rl.config.resolve(settings(rl.config.TrainConfig)(argv)),
        flags_of((rl.config.TrainConfig, "")) + HYPERPARAMETERS,
    ),
    "rl.evaluate": (settings(rl.evaluate.EvaluateConfig), flags_of((rl.evaluate.EvaluateConfig, ""))),
    "rl.export": (settings(rl.export.ExportConfig), flags_of((rl.export.ExportConfig, ""))),
    "rl.plots": (settings(rl.plots.PlotsConfig), flags_of((rl.plots.PlotsConfig, ""))),
    "rl.benchmark": (
        lambda argv: rl.benchmark.grid_jobs(settings(rl.benchmark.BenchmarkConfig)(argv)),
        flags_of((rl.benchmark.BenchmarkConfig, "")),
    ),
    "rl.tune": (
        search(rl.tune.TuneConfig, rl.config.TrainConfig),
        flags_of((rl.tune.TuneConfig, ""), (rl.config.TrainConfig, "train.")),
    ),
    "dem_apps.report": (dem_apps.report.__main__._options, ["--out", "--baseline", "--tail", "--help"]),
    "dem_apps.figures": (settings(dem_apps.figures.FiguresConfig), flags_of((dem_apps.figures.FiguresConfig, ""))),
}
WORDS = st.one_of(
    st.sampled_from([
        "", "0", "-1", "1e400", "nan", "inf", "null", "true", "[]", "{}", "[1", "{a: 1}", "[" * 3000, "&a [*a]", "*x",
        "!!python/object/apply:os.system [x]", "\x1b[31m", "\x00", "a\nb", "\udcff", "9" * 5000, "x" * 5000, "1,2",
        "--", "2001-99-99", "'", "- a", "? a", "a: b: c", "%", "/nowhere", "..", "lin_x", "dict(a=1)", "cuda:9", "meta",
        "[null]", "{a: {b: [1]}}", "!!binary x", "!!int x", "<<: 3", "=",
    ]),
    st.text(max_size=5),
)  # fmt: skip


@st.composite
def lines(draw: st.DrawFn, flags: list[str]) -> list[str]:
    """A command line of known and of mistyped flags, each with a value, with none, or with one in the wrong place."""
    line: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        flag = draw(st.sampled_from(flags)) + draw(st.sampled_from(["", "", "", "", "", "x", ".x"]))
        word = draw(WORDS)
        line += draw(st.sampled_from([[f"{flag}={word}"], [flag, word], [flag], [flag.replace("-", "_"), word]]))
    return [draw(WORDS), *line] if draw(st.integers(0, 9)) == 0 else line


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_line_is_right_or_refused(command: str) -> None:
    begin, flags = COMMANDS[command]

    @given(lines(flags))
    def tried(line: list[str]) -> None:
        sentence = ""
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # of an objective, about an unusual temperature
            try:
                begin(line)
            except InputError as refused:
                sentence = str(refused)
            except SystemExit as left:
                sentence = f"left with {left.code or 0}"
        assert "\n" not in sentence
        assert "\x1b" not in sentence
        assert sentence not in ("left with 1", "left with 2"), "2 comes from run_command, with a sentence"

    tried()
