"""Defaults < YAML < flags, mistakes in one sentence, and the rules of a resumed run."""

import dataclasses
from pathlib import Path
from typing import Literal

import pytest
import yaml
from support import cases, refuses

from dem_apps.runtime.setting_checks import check_settings
from dem_apps.runtime.settings import from_dict, option, parse_config


@dataclasses.dataclass(frozen=True)
class Source:
    root: str | None = option(None, "folder of the data")
    crop_size: int = option(64, "side of a crop")
    mirrored: bool = option(False, "twice as many")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Train something."""

    loss: str = option("adadem", "objective", choices=("none", "entropy", "adadem"))
    optimizer: Literal["adamw", "sgd"] = option("adamw", "optimiser")
    checkpoint: Literal["last", "best"] | None = option(None, "which checkpoint")
    max_steps: int = option(100, "steps", at_least=1)
    raw: list[str] = option([], "formats", choices=("png16", "npz"))
    threads: int | None = option(None, "threads", at_least=1, at_most=64)
    share: list[float] = option([0.0, 1.0], "part", at_least=0, at_most=1)
    learning_rate: float = option(0.1, "step size")
    source: Source = dataclasses.field(default_factory=Source)
    hyperparameters: dict[str, float] = option({}, "of the algorithm")
    classes: list[int] = option([], "ids to keep")
    folders: list[str] = option([], "folders")
    size: list[int] | str | None = option(None, "sides, or own")
    verbose: bool = option(False, "100 % more lines", group="how much is said")
    run_dir: str | None = option(None, "run folder")
    resume: bool = option(False, "continue")


@dataclasses.dataclass(frozen=True)
class Needing:
    """Read something."""

    run: str = option("", "run folder", needed=True)
    images: list[str] = option([], "folders", value="DIR [DIR ...]", needed=True)
    out: str | None = option(None, "file")


def parse(*arguments):
    return parse_config(
        Settings, "python -m thing", "python -m thing --loss adadem", list(arguments)
    )


@pytest.fixture
def yaml_file(tmp_path):
    def write(text):
        (tmp_path / "settings.yaml").write_text(text)
        return str(tmp_path / "settings.yaml")

    return write


def test_defaults_then_yaml_then_flags(yaml_file, tmp_path):
    file = yaml_file("max_steps: 7\nlearning_rate: 1\nsource:\n  crop_size: 9\n  root: here\n")
    settings = parse(f"--config={file}", "--max-steps", "8", "--source.root", "there")
    assert settings == Settings(max_steps=8, learning_rate=1.0, source=Source("there", 9))
    assert isinstance(settings.learning_rate, float)
    (tmp_path / "first.yaml").write_text("learning_rate: 3\n")
    given = (
        "--config",
        str(tmp_path / "first.yaml"),
        "--max-steps",
        "8",
        "--source.root",
        "there",
        "--config",
        file,
    )
    assert parse(*given) == settings  # of two files the later wins
    (tmp_path / "first.yaml").write_text("hyperparameters: {n_steps: 3, gamma: 1}\n")
    given = (
        "--config",
        str(tmp_path / "first.yaml"),
        "--config",
        yaml_file("hyperparameters: {gamma: 2}"),
    )
    # and of mappings the later key
    assert parse(*given).hyperparameters == {"n_steps": 3.0, "gamma": 2.0}


@cases(
    (["--checkpoint", "best"], {"checkpoint": "best"}),
    (["--checkpoint", "null"], {}),
    (["--max_steps=5"], {"max_steps": 5}),
    (["--source.crop_size", "5"], {"source": Source(crop_size=5)}),
    (["--hyperparameters.n_steps", "3"], {"hyperparameters": {"n_steps": 3.0}}),
    (["--classes", "[1, 2]"], {"classes": [1, 2]}),
    (["--classes", "1,2"], {"classes": [1, 2]}),
    (["--folders", "2024,a: b"], {"folders": ["2024", "a: b"]}),
    (["--size", "32,16"], {"size": [32, 16]}),
    (["--size", "own"], {"size": "own"}),
    (["--learning-rate", "-0.5", "--verbose"], {"learning_rate": -0.5, "verbose": True}),
    (["--learning-rate", "1e-3", "--share", "1e-1"], {"learning_rate": 1e-3, "share": [0.1]}),
    (["--source.mirrored"], {"source": Source(mirrored=True)}),
    (["--verbose", "false"], {}),
    (["--verbose", "true", "--max-steps", "1"], {"verbose": True, "max_steps": 1}),
)
def test_spellings_of_flags(arguments, changes):
    assert parse(*arguments) == dataclasses.replace(Settings(), **changes)


@cases(
    (["--max-step", "5"], r"^unknown argument '--max-step'; did you mean '--max-steps'\?$"),
    (
        ["--crop-size", "5"],
        r"^unknown argument '--crop-size'; did you mean '--source.crop-size'\?$",
    ),
    (
        ["--source", "GTA5"],
        r"^unknown argument '--source'; did you mean '--source\.root'\?$",
    ),
    (
        ["stray"],
        r"^unknown argument 'stray'; .*--help",
    ),
    (["--max-steps", "1.5"], r"^--max-steps: expected int, got '1\.5'$"),
    (["--max-steps"], r"^--max-steps: expected one argument$"),
    (["--verbose", "maybe"], r"^--verbose: expected bool, got 'maybe'$"),
    (
        ["--loss", "adadme"],
        r"^--loss: 'adadme' is not one of none, entropy, adadem; did you mean 'adadem'\?$",
    ),
    (["--classes", "[1, x]"], r"^--classes: expected list\[int\], got '\[1, x\]'$"),
    (["--share", "0.5,1.5"], r"^--share: expected at most 1, got 1\.5$"),
    (["--raw", "npz,png"], r"^--raw: 'png' is not one of png16, npz; did you mean 'png16'\?$"),
    (["--max-steps", f"{10**400}"], r"^--max-steps: expected a finite number, got 10+"),
    (["--learning-rate", "1e400"], r"^--learning-rate: expected a finite number, got inf$"),
    (["--threads", "1e3"], r"^--threads: expected int \| None, got '1e3'$"),
    (["--hyperparameters.gamma", "x"], r"^--hyperparameters: expected dict"),
    (["--hyperparameters", "[1"], r"^--hyperparameters: is not valid YAML"),
    (["--config", "/nowhere.yaml"], r"^--config: .*/nowhere\.yaml"),
    (["--config", "folder"], r"^--config: .*; did you mean 'folders'\?$"),
)
def test_mistakes_in_flags(arguments, message):
    refuses(message, parse, *arguments)


@cases(
    (
        "source:\n  crop_sise: 5",
        r"unknown key 'source\.crop_sise'; did you mean 'source\.crop_size'\?$",
    ),
    ("max_steps: [1", r"^--config: .*settings\.yaml: is not valid YAML"),
    ("- 1", r"^--config: .*settings\.yaml: expected keys with values"),
    ("!!python/object/apply:os.system [x]", r"^--config: .*settings\.yaml: is not valid YAML"),
    ("source: other.yaml", r"^--config: source: expected a mapping of keys, got 'other.yaml'$"),
    ("__path__: other.yaml", r"^--config: unknown key '__path__'$"),
)
def test_mistakes_in_yaml(text, message, yaml_file):
    refuses(message, parse, "--config", yaml_file(text))


def test_paths_of_pathlib_are_text_in_settings(tmp_path):
    made = Settings(
        run_dir=tmp_path, source=Source(root=tmp_path), learning_rate=1, share=(0.0, 1.0)
    )
    check_settings(made)
    assert (made.run_dir, made.source.root) == (str(tmp_path), str(tmp_path))


def test_settings_made_in_python_or_from_a_dict_are_checked_too():
    refuses(
        "^--max-steps: expected int, got True$",
        check_settings,
        dataclasses.replace(Settings(), max_steps=True),
    )
    refuses(
        r"^--run-dir: expected str \| None, got 3$",
        check_settings,
        dataclasses.replace(Settings(), run_dir=3),
    )
    said = r"^config\.yaml: unknown key 'source.rot'; did you mean 'source.root'\?$"
    refuses(said, from_dict, Settings, {"source": {"rot": 1}}, "config.yaml")
    refuses(
        r"^c\.yaml: --max-steps: expected at least 1, got 0$",
        from_dict,
        Settings,
        {"max_steps": 0},
        "c.yaml",
    )


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(dataclasses.asdict(started(str(folder)))))
    return str(folder)


def started(run_dir):
    return Settings(
        max_steps=50, source=Source("here"), run_dir=run_dir, hyperparameters={"n_steps": 3.0}
    )


def test_resume_takes_the_settings_of_the_run_wherever_it_is(run_dir, yaml_file):
    for arguments in (
        ["--run-dir", run_dir, "--resume"],
        ["--resume=true", "--run_dir", run_dir],
        ["--resume", run_dir, "--max-steps", "50", "--source.root", "here"],
        [
            "--resume",
            run_dir,
            "--hyperparameters.n_steps",
            "3",
            "--config",
            yaml_file("max_steps: 50"),
        ],
    ):
        assert parse(*arguments) == dataclasses.replace(started(run_dir), resume=True)
    moved = Path(run_dir).with_name("moved")
    Path(run_dir).rename(moved)
    assert parse("--resume", str(moved)).run_dir == str(moved)


@cases(
    (["--source.root", "there"], r"^--source\.root: .* started with 'here', not 'there'"),
    # the default, but given
    (
        ["--max-steps", "100"],
        r"^--max-steps: the run in .* was started with 50, not 100; a resumed run keeps",
    ),
    (["--config", "FILE"], r"^--max-steps: .* started with 50, not 51"),
)
def test_resume_refuses_other_settings(arguments, message, run_dir, yaml_file):
    file = yaml_file("max_steps: 51")
    refuses(
        message,
        parse,
        "--resume",
        run_dir,
        *(file if argument == "FILE" else argument for argument in arguments),
    )


def test_resume_without_a_run(tmp_path):
    refuses(r"^--resume: needs --run-dir, the folder of the run to continue$", parse, "--resume")
    refuses(r": is not a run folder \(it has no config\.yaml\)$", parse, "--resume", str(tmp_path))


@cases(
    ([], r"^--run: is missing; needed: --run RUN --images DIR$"),
    (["--run", "r"], r"^--images: is missing; needed: --run RUN"),
    (["--run", "r", "--images", ""], r"^--images: is missing"),
    (
        ["r"],
        r"^unknown argument 'r'; .*--help",
    ),
)
def test_what_is_needed_is_named(arguments, message):
    refuses(
        message,
        parse_config,
        Needing,
        "python -m thing",
        "python -m thing --run r --images a",
        arguments,
    )


def test_what_is_needed_may_stand_in_a_file(yaml_file):
    given = ["--config", yaml_file("run: r\nimages: [a, b]\n")]
    assert parse_config(Needing, "python -m thing", "python -m thing", given) == Needing(
        "r", ["a", "b"]
    )
