"""No file that a command reads sets what runs code: every command, setting, name and kind of file."""

import dataclasses
import json
import runpy
import sys
from pathlib import Path

import pytest
import yaml
from support import ROOT

import rl.benchmark
import rl.config
import rl.evaluate
import rl.export
import rl.plots
import seg.adapt
import seg.benchmark
import seg.config
import seg.convert
import seg.export_model
import seg.inference.settings
from dem_apps.runtime.arguments import fields_of, line_only

#: What each command reads its ``--config`` into; a search reads that of its trainings.
READ = {
    "seg.train": seg.config.TrainConfig,
    "seg.evaluate": seg.inference.settings.EvaluateConfig,
    "seg.export": seg.inference.settings.ExportConfig,
    "seg.export_model": seg.export_model.ExportModelConfig,
    "seg.adapt": seg.adapt.AdaptConfig,
    "seg.benchmark": seg.benchmark.BenchmarkConfig,
    "seg.tune": seg.config.TrainConfig,
    "seg.convert": seg.convert.ConvertConfig,
    "seg.data": seg.config.TrainConfig,
    "rl.train": rl.config.TrainConfig,
    "rl.evaluate": rl.evaluate.EvaluateConfig,
    "rl.export": rl.export.ExportConfig,
    "rl.benchmark": rl.benchmark.BenchmarkConfig,
    "rl.plots": rl.plots.PlotsConfig,
    "rl.tune": rl.config.TrainConfig,
}
#: What stands before the flags.
FIRST = {"seg.data": ["check"], "rl.plots": ["run"]}
GRIDS = {
    "seg.benchmark": ("tasks", seg.config.TrainConfig),
    "rl.benchmark": ("envs", rl.config.TrainConfig),
}
#: What the tests below go over, besides a second file, which no command takes out of the first.
RUNS_CODE = {
    ("rl.train", "import_modules"),
    ("rl.train", "env"),
    ("rl.tune", "import_modules"),
    ("rl.tune", "env"),
    ("rl.evaluate", "import_modules"),
    ("rl.export", "import_modules"),
    ("rl.benchmark", "import_modules"),
    ("rl.benchmark", "ray_address"),
    ("seg.benchmark", "ray_address"),
    ("seg.adapt", "model"),
    ("seg.export", "model"),
    ("seg.evaluate", "model"),
    ("seg.export_model", "model"),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")


def settings_that_run_code(config_class):
    """Key of each, and a value that would run the module ``evil``."""
    named = {
        key: "evil:Thing-v0"
        for key, field, _ in fields_of(config_class)
        if field.metadata.get("code")
    }
    return dict.fromkeys(line_only(config_class), "evil") | named


def names(config_class, key):
    """Every name that a file may have for a setting."""
    only = line_only(config_class).get(key, key)
    return {key, only, only.replace("-", "_")}


@pytest.fixture(autouse=True)
def _a_folder_with_code(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("open('RAN', 'w').close()\nnet = print\n")
    (tmp_path / "images").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    assert not Path("RAN").exists()
    assert "evil" not in sys.modules


def refusal(command, *arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [command, *FIRST.get(command, []), *arguments])
    with pytest.raises(SystemExit) as left:
        runpy.run_module(command, run_name="__main__", alter_sys=True)
    message = str(capsys.readouterr().err)
    assert left.value.code == 2, message
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    return message


def test_all_commands_and_their_settings_are_known():
    files = [file for name in ("dem_apps", "seg", "rl") for file in (ROOT / name).rglob("*.py")]
    commands = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        for file in files
        if '\nif __name__ == "__main__":' in file.read_text()
    }
    # listings, and a report, which has no settings
    others = {"dem_apps", "seg", "rl", "dem_apps.report"}
    assert commands - others == {
        command if command != "seg.data" else "seg.check" for command in READ
    }
    found = {
        (command, key) for command, kind in READ.items() for key in settings_that_run_code(kind)
    }
    assert found == RUNS_CODE | {(command, "config") for command in READ}
    specs = [
        (command, key)
        for command, kind in READ.items()
        for key, field, _ in fields_of(kind)
        if field.metadata.get("value") == "SPEC" or "MODULE" in field.metadata.get("help", "")
    ]
    assert set(specs) <= RUNS_CODE


@pytest.mark.parametrize("command", READ)
def test_no_settings_file_sets_it(command, monkeypatch, capsys):
    kind = READ[command]
    for key, value in settings_that_run_code(kind).items():
        for name in names(kind, key):
            Path("a.yaml").write_text(yaml.safe_dump({name: value}))
            message = refusal(command, "--config", "a.yaml", monkeypatch=monkeypatch, capsys=capsys)
            assert key in message
            assert f" --{line_only(kind).get(key, '')}" in message, message
    if (command, "env") in RUNS_CODE:
        Path("a.yaml").write_text("env: None:Thing-v0\n")
        assert "add --import None" in refusal(
            command, "--config", "a.yaml", monkeypatch=monkeypatch, capsys=capsys
        )
    Path("second.yaml").write_text("import_modules: evil\nenv: evil:Thing-v0\nmodel: evil:net\n")
    # a name that looks like a value
    Path("evil:Thing-v0").write_text("env: evil:Thing-v0\nmodel: evil:Thing-v0\n")
    for file in ("second.yaml", "evil:Thing-v0"):
        Path("a.yaml").write_text(f"config: '{file}'\n")
        assert f"--config {file}" in refusal(
            command, "--config", "a.yaml", monkeypatch=monkeypatch, capsys=capsys
        )
        refusal(command, "--config", file, monkeypatch=monkeypatch, capsys=capsys)


@pytest.mark.parametrize("more", [[], ["--report-only"]], ids=["", "report-only"])
@pytest.mark.parametrize("command", GRIDS)
def test_no_grid_sets_it(command, more, monkeypatch, capsys):
    rows, kind = GRIDS[command]
    injected = [
        {name: value}
        for key, value in settings_that_run_code(kind).items()
        for name in names(kind, key)
    ]
    injected += [
        {"loss": "--import=evil"},
        {"import=evil": "--maps"},
        {"maps=0 --import": "evil"},
        {"seeds": [1]},
    ]
    for settings in injected:
        grid = {"folder": "g", "arms": {"a": {}}, rows: {"row": {}}, "seeds": [0]}
        for part in ({"train": settings}, {"arms": {"a": settings}}, {rows: {"row": settings}}):
            Path("grid.yaml").write_text(yaml.safe_dump({**grid, **part}))
            refusal(command, "--config", "grid.yaml", *more, monkeypatch=monkeypatch, capsys=capsys)
    assert not Path("g").exists()
    Path("grid.yaml").write_text(yaml.safe_dump({**grid, "envs": {"evil:Thing-v0": {}}}))
    if rows == "envs":
        message = refusal(
            command, "--config", "grid.yaml", *more, monkeypatch=monkeypatch, capsys=capsys
        )
        assert message.endswith("add --import evil\n")


@pytest.mark.parametrize("command", ["rl.train", "rl.evaluate", "rl.export"])
@pytest.mark.parametrize("key", ["import_modules", "env"])
def test_no_run_folder_sets_it(command, key, monkeypatch, capsys):
    kind = READ["rl.train"]
    run = Path("evil:Thing-v0")  # a name that looks like a value
    run.mkdir()
    settings = {
        **dataclasses.asdict(kind()),
        "env": "CartPole-v1",
        key: settings_that_run_code(kind)[key],
    }
    (run / "config.yaml").write_text(json.dumps(settings))
    given = {
        "rl.train": ["--resume", str(run)],
        "rl.evaluate": ["--run", str(run)],
        "rl.export": ["--run", str(run)],
    }
    more = ["--out", "out.zip"] if command == "rl.export" else []
    message = refusal(command, *given[command], *more, monkeypatch=monkeypatch, capsys=capsys)
    if key == "env" or command == "rl.train":
        assert message.endswith("--import evil\n")


def test_the_command_line_does(monkeypatch, capsys):
    """So that what is refused above is refused for where it stands."""
    Path("good.py").write_text("open('GOOD', 'a').write('x')\nraise SystemExit\n")
    for given in (["--import", "good"], ["--env", "good:Thing-v0"]):
        monkeypatch.setattr(sys, "argv", ["rl.train", *given])
        with pytest.raises(SystemExit):
            runpy.run_module("rl.train", run_name="__main__", alter_sys=True)
        assert "cannot be imported" in capsys.readouterr().err
    assert Path("GOOD").read_text() == "xx"
