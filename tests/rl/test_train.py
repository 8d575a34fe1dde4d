"""The commands: same seed, same numbers; a killed run continues to them; mistakes are one sentence."""

import contextlib
import io
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
import yaml
from stable_baselines3 import PPO
from support import ROOT, cases
from support.pages import explained, keys_of

import rl.evaluate
import rl.train
from dem_apps.errors import InputError
from dem_apps.report.runs import read_run
from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.run_reader import read_metrics
from dem_apps.runtime.signals import Stopped
from rl.config import TrainConfig, resolve
from rl.envs.make import StackedEnvs
from rl.training.run import build_envs

SMALL = [
    "--env",
    "MiniGrid-Empty-Random-5x5-v0",
    "--hyperparameters.n_envs",
    "4",
    "--hyperparameters.n_steps",
    "64",
    "--hyperparameters.n_epochs",
    "2",
    "--timesteps",
    "8192",
    "--eval-freq",
    "2000",
    "--eval-episodes",
    "3",
    "--final-episodes",
    "5",
]
CARTPOLE = "CartPole-v1: {policy: MlpPolicy, n_envs: 2, n_steps: 64, "
#: Logged by A2C, with a second clip range, by a Box policy, and of an environment with is_success.
OF_OTHERS = {
    "train/policy_loss",
    "train/clip_range_vf",
    "train/std",
    "rollout/success_rate",
}


def policy(folder, name="last"):
    return load_checkpoint(folder / "checkpoints", name)["policy"]


def assert_same_run(one, two):
    assert (one / "metrics.jsonl").read_bytes() == (two / "metrics.jsonl").read_bytes()
    for name in ("last", "best"):
        first, second = policy(one, name), policy(two, name)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)
    assert json.loads((one / "eval.json").read_text()) == json.loads(
        (two / "eval.json").read_text()
    )


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        rl.train.main([*SMALL, "--run-dir", str(folder)])
    output = printed.getvalue()
    assert "PPO with the entropy term 'adadem' (ent_coef 0.001), seed 0" in output
    assert "steps/s" in output
    for what in (
        "MiniGrid-Empty-Random-5x5-v0, 4 environments, 8,192 steps, cpu, 1 thread",
        str(folder),
    ):
        assert what in output
    end = output[output.index("result: sampled return") :].splitlines()
    assert "over 5 episodes at step 8,192 (success in" in end[0]
    assert end[1].startswith("assumes: actions drawn from the last policy")
    assert end[2].startswith("goal: return 0.87, ")
    assert end[-3:] == [
        f"files: {folder}: eval.json, metrics.jsonl, checkpoints/",
        f"next: python -m rl.export --run {folder} --out policy.zip",
        f"next: python -m dem_apps.report {folder}",
    ]
    return folder


def test_ctrl_c_is_a_checkpoint_at_the_next_line_of_the_log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("cartpole.yaml").write_text(CARTPOLE + "n_timesteps: 1000}")
    arguments = ["--env", "CartPole-v1", "--hyperparameters-file", "cartpole.yaml", "--algo", "a2c"]
    arguments += ["--eval-freq", "800", "--eval-episodes", "1"]
    rl.train.main([*arguments, "--run-dir", "whole"])
    genuine, calls = StackedEnvs.step_wait, iter(range(1, 9999))

    def interrupted(envs):
        if next(calls) == 70:
            os.kill(os.getpid(), signal.SIGINT)
        return genuine(envs)

    with monkeypatch.context() as patch:
        patch.setattr(StackedEnvs, "step_wait", interrupted)
        with pytest.raises(Stopped, match="interrupted at step 896, everything is saved"):
            rl.train.main([*arguments, "--run-dir", "broken"])
    assert [line["step"] for line in read_metrics(Path("broken"))] == [896]
    assert load_checkpoint(Path("broken/checkpoints"), "last")["step"] == 896
    torch.rand(7)
    rl.train.main(["--run-dir", "broken", "--resume"])
    assert_same_run(Path("whole"), Path("broken"))


def test_the_run_folder_holds_what_was_promised(unbroken):
    lines = read_metrics(unbroken)
    names = set().union(*lines)
    assert {
        "step",
        "rollout/ep_rew_mean",
        "eval/mean_return_greedy",
        "eval/mean_return_sampled",
        "eval/success_rate",
        "train/approx_kl",
        "train/clip_fraction",
        "train/policy_entropy",
        "train/entropy_objective",
    } <= names
    assert not any(name.startswith("time/") for name in names)
    assert lines[-1]["step"] == 8192
    evaluated = [line["step"] for line in lines if "eval/success_rate" in line]
    assert len(evaluated) == 4  # the first lines of the log at or after each 2,000 steps

    result = json.loads((unbroken / "eval.json").read_text())
    assert {
        "mean_return",
        "std_return",
        "success_rate",
        "episodes",
        "env",
        "checkpoint",
    } <= result.keys()
    assert result["checkpoint"] == "last"
    assert result["episodes"] == 5
    assert result["best"]["checkpoint"] == "best"
    assert result["best"]["step"] in evaluated
    assert (unbroken / "environment.json").is_file()
    assert not list(unbroken.rglob("*.pkl")) + list(unbroken.rglob("*.zip"))


def test_every_key_is_explained(unbroken):
    scores = json.loads((unbroken / "eval.json").read_text())
    assert keys_of(scores) == explained("Reinforcement learning: `eval.json`")
    logged = set().union(*read_metrics(unbroken))
    assert logged | OF_OTHERS == explained("Reinforcement learning: `metrics.jsonl`")


def test_the_run_describes_every_metric_that_it_writes_and_no_other(unbroken):
    run = read_run(unbroken)
    named = {metric.name for metric in run.info.metrics}
    assert named | {"step"} <= explained("Reinforcement learning: `metrics.jsonl`")
    assert all(run.score(score.key) is not None for score in run.info.scores)


def test_evaluate_repeats_the_figures_of_training(unbroken, tmp_path, capsys):
    before = {path: path.stat().st_mtime_ns for path in unbroken.rglob("*")}
    out = tmp_path / "figures.json"
    rl.evaluate.main(["--run", str(unbroken), "--out", str(out)])
    trained, figures = json.loads((unbroken / "eval.json").read_text()), json.loads(out.read_text())
    names = ("mean_return", "std_return", "success_rate", "sampled", "greedy", "episodes")
    assert all(figures[name] == trained[name] for name in names)
    with pytest.raises(InputError, match=r"--out: .*figures\.json exists already"):
        rl.evaluate.main(["--run", str(unbroken), "--episodes", "3", "--out", str(out)])
    rl.evaluate.main(
        ["--run", str(unbroken), "--episodes", "3", "--checkpoint", "best", "--seed", "5"]
    )
    assert "best" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in unbroken.rglob("*")}


def test_how_often_a_run_is_evaluated_does_not_change_it(tmp_path):
    common = [*SMALL, "--timesteps", "2304"]
    rl.train.main([*common, "--run-dir", str(tmp_path / "often"), "--eval-freq", "256"])
    rl.train.main(
        [
            *common,
            "--run-dir",
            str(tmp_path / "rarely"),
            "--eval-freq",
            "100000",
            "--eval-episodes",
            "1",
        ]
    )
    often, rarely = policy(tmp_path / "often"), policy(tmp_path / "rarely")
    assert all(torch.equal(often[key], rarely[key]) for key in often)
    training = [
        [
            {key: value for key, value in line.items() if not key.startswith("eval/")}
            for line in read_metrics(folder)
        ]
        for folder in (tmp_path / "often", tmp_path / "rarely")
    ]
    assert training[0] == training[1]
    assert len(training[0]) == 3


def test_the_command_with_loss_entropy_is_sb3_bit_for_bit(tmp_path):
    arguments = [
        "--timesteps",
        "1024",
        "--eval-freq",
        "1024",
        "--eval-episodes",
        "1",
        "--seed",
        "3",
    ]
    rl.train.main(
        [*arguments, "--loss", "entropy", "--update", "sb3", "--run-dir", str(tmp_path / "run")]
    )
    config = resolve(TrainConfig())
    stock = PPO(
        "MlpPolicy",
        build_envs(config.env, config.hyperparameters),
        n_steps=128,
        batch_size=64,
        n_epochs=10,
        gamma=0.99,
        gae_lambda=0.95,
        learning_rate=2.5e-4,
        clip_range=0.2,
        ent_coef=0.03,
        seed=3,
        device="cpu",
    ).learn(1024)
    trained = policy(tmp_path / "run")
    assert trained.keys() == stock.policy.state_dict().keys()
    assert all(torch.equal(trained[key], value) for key, value in stock.policy.state_dict().items())


@cases(
    (
        ["--env", "minigrid-dorkey-5x5-v0"],
        "unknown environment 'minigrid-dorkey-5x5-v0'; did you mean 'MiniGrid-D",
    ),
    (["--env", "no_such_module:Own-v0"], "no_such_module cannot be imported"),
    (["--device", "gpu"], "--device: torch cannot use 'gpu'"),
    (["--hyperparameters.n_stepz", "5"], "unknown key 'n_stepz'; did you mean 'n_steps'"),
    (["--hyperparameters.frame_stack", "4"], "--hyperparameters.frame_stack: unknown key"),
    (["--hyperparameters.ent_coef", "0.1"], "set with --ent-coef"),
    (["--hyperparameters.learning_rate", "lin_fast"], "expected a number, or lin_ and a number"),
    (
        ["--hyperparameters.env_wrapper", "FlatObsWrapper"],
        "--hyperparameters.env_wrapper: wrapper: 'FlatObsWrapper' is not one of",
    ),
    (["--ent-coef", "much"], "--ent-coef: expected a number, or lin_ and a number, not 'much'"),
    (["--hyperparameters-file", "missing.yaml"], "missing.yaml"),
    (
        ["--hyperparameters.policy", "MultiInputPolicy"],
        "hyperparameters: a value does not fit this run",
    ),
)
def test_mistakes_are_one_sentence(arguments, sentence, run_here, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert sentence in run_here(rl.train.main, *arguments, status=2).err


@cases(
    ({"policy_kwargs": "exec('x')"}, "policy_kwargs: 'exec('x')' is not an expression"),
    ({"env_wrapper": "os.system"}, "env_wrapper: wrapper: 'os.system' is not one of"),
    ({"nothing": 1}, "unknown key 'nothing'"),
)
def test_settings_of_a_run_folder_run_no_code(
    hyperparameters, message, unbroken, tmp_path, run_here
):
    folder = shutil.copytree(unbroken, tmp_path / "run")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["hyperparameters"] |= hyperparameters
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    for main, flag in ((rl.evaluate.main, "--run"), (rl.train.main, "--resume")):
        assert message in run_here(main, flag, folder, status=2).err
