"""Runs and grids of unknown origin: evaluate and resume take them whole or say one sentence."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

import rl.evaluate
import rl.train
from dem_apps.errors import InputError
from dem_apps.runtime.command import run_command
from rl.config import TrainConfig, resolve
from rl.envs.zoo import hyperparameter, parsed_expression
from rl.train import untrained_model

ENV = "CartPole-v1"
ENTRY = {
    "n_envs": 2, "n_steps": 32, "policy": "MlpPolicy", "n_timesteps": 128, "normalize": True, "batch_size": 32,
    "n_epochs": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "entry.yaml").write_text(yaml.safe_dump({ENV: ENTRY}))
    flags = ["--env", ENV, "--hyperparameters-file", str(folder / "entry.yaml"), "--eval-episodes", "1"]
    rl.train.main([*flags, "--run-dir", str(folder / "run")])
    return folder / "run"


@pytest.fixture
def run(good: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(good, tmp_path / "run"))


def refused(main: Any, argv: list[str], capsys: Any) -> str:
    """The one line with which a command ends."""
    with pytest.raises(SystemExit) as left:
        run_command(lambda: main(argv))
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return str(line)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("env", "os:system", "unknown environment 'os:system'"),
        ("env", "antigravity:Fly-v0", "stands in a file, which cannot have the code of antigravity run"),
        ("env", "\x1b[2J", r"env: holds the control character \x1b"),
        ("env", None, "env: expected str, got null"),
        ("threads", 0, "threads: expected 1 or more, got 0"),
        ("threads", 10**9, "threads: expected 1024 at most"),
        ("seed", "x", "seed: expected int, got 'x'"),
        ("timesteps", None, "timesteps: is missing"),
        ("algo", "dqn", "algo: 'dqn' is not one of ppo, a2c"),
        ("hyperparameters", None, "hyperparameters: expected mapping, got null"),
        ("hyperparameters", {"n_envs": 10**9}, "n_envs must be 4,096 at most"),
        ("hyperparameters", {"n_envs": math.inf}, "n_envs must be a whole number"),
        ("hyperparameters", {"n_steps": math.nan}, "n_steps must be a whole number"),
        ("hyperparameters", {"policy": 3}, "hyperparameters: "),
        ("hyperparameters", {"policy": "os.system"}, "hyperparameters: Policy os.system unknown"),
        ("hyperparameters", {"gamma": "x"}, "gamma cannot be 'x'; SB3's default is 0.99"),
        ("hyperparameters", {"learning_rate": "lin_nan"}, "expected lin_ and a number, not 'lin_nan'"),
        ("hyperparameters", {"env_wrapper": "os.system"}, "unknown wrapper 'os.system'"),
        ("hyperparameters", {"env_wrapper": [[1]]}, "env_wrapper: "),
        ("hyperparameters", {"normalize": "__import__('os')"}, "normalize: '__import__('os')' is not an expression"),
        ("hyperparameters", {"policy_kwargs": "exec('x')"}, "policy_kwargs: 'exec('x')' is not an expression"),
        ("hyperparameters", {"policy_kwargs": {"net_arch": "deep"}}, "hyperparameters: "),
        (
            "hyperparameters",
            {"policy_kwargs": {"activation_fn": "os.system"}},
            "activation_fn 'os.system' is not",
        ),
        ("hyperparameters", {"nothing": 1}, "unknown key 'nothing'"),
    ],
)
def test_settings_with_wrong_types(key: str, value: Any, message: str, run: Path, capsys: Any) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    config[key] = {**config[key], **value} if isinstance(value, dict) else value
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    for main, argv in ((rl.evaluate.main, ["--run", str(run)]), (rl.train.main, ["--resume", str(run)])):
        line = refused(main, argv, capsys)
        assert message in line
        assert "\x1b" not in line


def test_an_activation_may_be_named_in_a_mapping() -> None:
    assert hyperparameter("policy_kwargs", {"activation_fn": "nn.ReLU"}) == {"activation_fn": torch.nn.ReLU}
    assert hyperparameter("policy_kwargs", "dict(activation_fn=nn.ReLU)") == {"activation_fn": torch.nn.ReLU}
    for wrong in ("nn.Relu", "ReLU", "os.system"):
        with pytest.raises(InputError, match=rf"activation_fn '{wrong}' is not one of nn\.Tanh, nn\.ReLU, "):
            hyperparameter("policy_kwargs", {"activation_fn": wrong})


@pytest.mark.parametrize(
    "text", ["[" * 5000, "-" * 5000 + "1", "(" * 150 + ")" * 150, "{" * 500, "9" * 5000, "1e999999", "'", "nn.Tanh.x"]
)
def test_expressions_that_are_none(text: str) -> None:
    try:
        value = parsed_expression("policy_kwargs", text)
    except InputError as error:
        sentence = str(error)
    else:
        assert isinstance(value, (int, float, tuple))
        return
    assert "is not an expression" in sentence


def test_a_flag_of_a_video_needs_one() -> None:
    with pytest.raises(InputError, match=r"^--video-episodes: belongs to --video, which is not given$"):
        rl.evaluate.main(["--run", "x", "--video-episodes", "2"])


keys = st.one_of(
    st.sampled_from([*ENTRY, "gamma", "env_wrapper", "policy_kwargs", "learning_rate", "target_kl"]),
    st.text(max_size=4),
)
values = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 9), st.floats(), st.text(max_size=6),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=3), st.integers(), max_size=1),
    st.sampled_from(["lin_1", "dict(a=1)", "MlpPolicy", "CnnPolicy", "dict(net_arch=[4])", 1e999]),
)  # fmt: skip


@given(st.dictionaries(keys, values, max_size=3))
def test_any_hyperparameters_make_a_model_or_a_sentence(good: Path, entry: dict[str, Any]) -> None:
    try:
        file = str(good.parent / "entry.yaml")
        config = resolve(TrainConfig(env=ENV, hyperparameters=entry, hyperparameters_file=file))
        untrained_model(config)
    except InputError as error:
        sentence = str(error)
    else:
        return
    assert "\n" not in sentence
