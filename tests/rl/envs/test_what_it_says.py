"""Environments are taken as they describe themselves: types, pictures, success, info, state, scale and draws."""

import json
import random
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from stable_baselines3.common.preprocessing import preprocess_obs
from support import cases, refuses
from support.short_training import interrupted_at

import rl.evaluate
import rl.train
from rl.config import TrainConfig, resolve
from rl.envs.episode import RestorableEpisode
from rl.envs.make import make_env
from rl.training.run import untrained_model


class Task(gym.Env):
    """Ten steps, three actions, of which one is right; ``kind`` says what is special."""

    action_space = spaces.Discrete(3)
    observation_space: Any = spaces.Box(-10, 1000, (2,), np.float32)
    metadata: ClassVar[Any] = {"render_modes": ["rgb_array"]}
    steps = 0  # of all environments

    def __init__(self, kind="", render_mode=None):
        self.kind, self.episodes, self.own, self.goal = kind, 0, np.random.default_rng(7), 0
        self.old = np.random.RandomState(3)
        if kind.startswith("drawn"):
            draw = {
                "numpy": np.random.randint,
                "python": random.randrange,
                "gym": self.np_random.integers,
            }
            self.goal = int(draw[kind[5:]](3))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.episodes = 0, self.episodes + 1
        if self.kind in ("generator", "told", "global"):
            by = {"generator": self.own, "told": self.np_random}
            self.goal = (
                int(by[self.kind].integers(3)) if self.kind in by else int(np.random.randint(3))
            )
        return self._seen(), {}

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)

    def _seen(self):
        seen = np.array([self.t / 7, 500 + 50 * self.goal * (self.kind == "told")])
        return {"float64": seen, "int64": seen.astype(int), "list": seen.tolist()}.get(
            self.kind, seen.astype("f4")
        )

    def step(self, action):
        self.t += 1
        Task.steps += 1
        if self.kind == "samples":
            action = self.action_space.sample()
        if self.kind == "generator":
            self.t += 0 * self.old.randint(5)
        worth = (action == self.goal) * (1 + self.episodes / 100 * (self.kind == "curriculum"))
        solved, over = bool(action == 2), self.t >= 10 and self.kind != "endless"
        info = dict.fromkeys(["episode", "terminal_observation"], 3)
        said = {"solved": over and solved, "earlier": self.t == 4 and solved, "text": True}.get(
            self.kind, False
        )
        if said:
            info["is_success"] = "no" if self.kind == "text" else True
        return self._seen(), float(worth), False, over, info


KINDS = (
    "",
    "float64",
    "int64",
    "list",
    "solved",
    "earlier",
    "text",
    "generator",
    "curriculum",
    "global",
    "samples",
    "told",
    "endless",
    "drawnnumpy",
    "drawnpython",
    "drawngym",
)
FLAGS = [
    "--hyperparameters.n_steps",
    "64",
    "--hyperparameters.n_epochs",
    "1",
    "--eval-episodes",
    "4",
]


@pytest.fixture(autouse=True)
def registered(monkeypatch, tmp_path):
    made = {f"T{kind}-v0": lambda kind=kind, **k: Task(kind, **k) for kind in KINDS}
    made["Scaled-v0"] = lambda **k: NormalizeObservation(Task("told", **k))
    made["Reward-v0"] = lambda **k: NormalizeReward(Task(**k))
    for name, entry_point in made.items():
        monkeypatch.setitem(gym.registry, name, None)
        gym.registry.pop(name)
        gym.register(name, entry_point)
    monkeypatch.setattr("rl.training.callback.STEPS_PER_LINE", 64)
    monkeypatch.chdir(tmp_path)


def trained(env, run, *more, timesteps=192):
    rl.train.main(
        ["--env", *env.split(), *FLAGS, "--timesteps", str(timesteps), "--run-dir", run, *more]
    )
    return Path(run, "metrics.jsonl").read_text(), json.loads(Path(run, "eval.json").read_text())


@cases(("float64", "false"), ("float64", "true"), ("int64", "true"), ("list", "false"))
def test_observations_have_the_declared_type(kind, normalize):
    flags = ("--loss", "entropy", "--hyperparameters.normalize", normalize)
    fast, slow = (
        trained(f"T{kind}-v0", update, *flags, "--update", update) for update in ("auto", "sb3")
    )
    for one, two in zip(
        map(json.loads, fast[0].splitlines()), map(json.loads, slow[0].splitlines()), strict=True
    ):
        assert one == pytest.approx(two, rel=1e-4, abs=1e-5)
    assert fast[1]["sampled"] == slow[1]["sampled"]


def test_a_value_that_the_declared_type_would_change_is_told(monkeypatch):
    shape = (36, 36, 3)
    monkeypatch.setattr(Task, "observation_space", spaces.Box(0, 255, shape, np.uint8))
    monkeypatch.setattr(Task, "_seen", lambda _: np.full(shape, 0.5))
    refuses("--env T-v0: .*uint8", make_env("T-v0", None).reset)


@pytest.mark.parametrize("shape", [(16, 16, 3), (64, 20, 3), (1, 28, 28)])
def test_small_pictures_are_divided_by_255_as_sb3_does(shape, monkeypatch):
    space = spaces.Box(0, 255, shape, np.uint8)
    monkeypatch.setattr(Task, "observation_space", space)
    picture = np.full(shape, 200, np.uint8)
    monkeypatch.setattr(Task, "_seen", lambda _: picture)
    model = untrained_model(
        resolve(TrainConfig(env="T-v0", timesteps=64, eval_freq=64, final_episodes=1))
    )
    seen = model.policy.obs_to_tensor(model.env.reset())[0]
    given = preprocess_obs(
        seen, model.policy.observation_space, normalize_images=model.policy.normalize_images
    )
    assert given.max().item() == pytest.approx(200 / 255)


def test_success_is_what_was_said_also_where_only_solved_episodes_say_it():
    for kind in ("solved", "earlier"):
        lines, score = trained(
            f"T{kind}-v0", kind, "--hyperparameters.learning_rate", "0", "--final-episodes", "60"
        )
        assert 0.15 < score["success_rate"] < 0.55  # one of three actions
        rates = [json.loads(line).get("rollout/success_rate") for line in lines.splitlines()]
        assert 0 < rates[-1] < 0.8
    for kind in ("", "text"):  # a return above 0 tells nothing here
        lines, score = trained(f"T{kind}-v0", f"none{kind}")
        assert score["success_rate"] is None
        assert "success_rate" not in lines
        assert "rollout/ep_len_mean" in lines


NOISE = "Pendulum-v1 --loss entropy --hyperparameters.use_sde true"


@pytest.mark.parametrize("env", ["Ttold-v0", "Reward-v0", "Scaled-v0", "Tdrawnnumpy-v0", NOISE])
def test_an_interrupted_run_goes_on_to_the_same_numbers(env, monkeypatch, capsys):
    interrupted_at(128, monkeypatch, lambda: trained(env, "broken", "--eval-freq", "64"))
    np.random.seed(99)
    whole = trained(env, "again", "--eval-freq", "64")
    capsys.readouterr()
    rl.train.main(["--resume", "broken"])
    assert "same numbers" not in capsys.readouterr().err
    assert Path("broken/metrics.jsonl").read_text() == whole[0]
    rl.evaluate.main(["--run", "broken", "--out", "again.json"])
    assert json.loads(Path("again.json").read_text())["sampled"] == whole[1]["sampled"]


@cases(
    ("curriculum", "true"),
    ("curriculum", "false"),
    ("generator", "false"),
    ("global", "true"),
    ("samples", "false"),
)
def test_an_environment_that_does_not_repeat_its_episode_goes_on_with_a_new_one(
    kind, normalize, monkeypatch, capsys
):
    flags = ("--hyperparameters.normalize", normalize, "--hyperparameters.n_envs", "2")
    interrupted_at(128, monkeypatch, lambda: trained(f"T{kind}-v0", "broken", *flags))
    np.random.seed(99)
    capsys.readouterr()
    rl.train.main(["--resume", "broken"])
    assert capsys.readouterr().err.count(f"the environment T{kind}-v0 does not repeat") == 1
    assert json.loads(Path("broken/metrics.jsonl").read_text().splitlines()[-1])["step"] >= 192


def test_another_episode_is_told_by_its_end_or_its_length():
    endless, ending = make_env("Tendless-v0", None), make_env("T-v0", None)
    endless.reset(seed=0)
    for _ in range(300):
        endless.step(0)
    assert not ending.restore(endless.episode_records())  # which ends after ten steps
    ending.reset(seed=0)
    ending.step(0)
    assert endless.restore(ending.episode_records()[-1:])
    endless.step(0)
    assert endless.episode_records()[-1]["digest"] != ending.episode_records()[-1]["digest"]


@pytest.mark.parametrize("kind", ["RandomState", "float32 actions"])
def test_an_episode_is_repeated(kind):
    class Walk(gym.Env):
        observation_space: Any = spaces.Box(-100, 100, (2,), np.float64)
        action_space = spaces.MultiBinary(2)

        def reset(self, *, seed=None, options=None):
            if seed is not None and kind == "RandomState":  # as in dm_control
                self._np_random = np.random.RandomState(seed)
            elif seed is not None:
                super().reset(seed=seed)
            self.x = np.zeros(2)
            return self.x, {}

        def step(self, action):
            self.x = self.x + 0.1 * action
            return self.x, 0.0, False, False, {}

    played, again = RestorableEpisode(Walk()), RestorableEpisode(Walk())
    played.reset(seed=3)
    played.reset()  # as after an end
    for action in np.eye(2, dtype=np.float32):  # SB3's type of such actions
        played.step(action)
    again.reset(seed=4)
    assert again.restore(played.episode_records())
    np.testing.assert_array_equal(again.unwrapped.x, played.unwrapped.x)


def test_evaluations_have_the_scale_of_the_training():
    flags = (
        "--hyperparameters.learning_rate",
        "0.01",
        "--hyperparameters.n_epochs",
        "10",
        "--final-episodes",
        "20",
    )
    _, score = trained(
        "Scaled-v0", "scaled", *flags, "--hyperparameters.n_steps", "256", timesteps=8192
    )
    assert score["greedy"]["mean_return"] > 7  # of 10; 3.3 by chance
    rl.evaluate.main(["--run", "scaled", "--out", "again.json"])
    assert json.loads(Path("again.json").read_text())["greedy"] == score["greedy"]


@pytest.mark.parametrize("kind", ["drawnnumpy", "drawnpython", "drawngym", "samples", "global"])
def test_the_same_command_draws_the_same_environment(kind):
    np.random.seed(1)
    runs = []
    for run in ("one", "two"):
        runs.append(trained(f"T{kind}-v0", run, timesteps=64))
        np.random.seed()
        random.seed()
    assert runs[0] == runs[1]
    rl.evaluate.main(["--run", "one", "--out", "again.json"])
    assert json.loads(Path("again.json").read_text())["sampled"] == runs[0][1]["sampled"]


@cases(("drawnnumpy", True), ("curriculum", False), ("Reward-v0", True))
def test_a_video_plays_in_what_the_evaluation_played_in_and_comes_after_its_figures(kind, repeats):
    trained(kind if kind in gym.registry else f"T{kind}-v0", "run", timesteps=64)
    evaluated = ["--run", "run", "--episodes", "12", "--out", "run.json", "--video", "a.gif"]
    if repeats:
        rl.evaluate.main(evaluated)
    else:  # it counts its episodes
        refuses("--video: .*its seed does not decide it", rl.evaluate.main, evaluated)
    assert Path("a.gif").exists() is repeats
    assert json.loads(Path("run.json").read_text())["episodes"] == 12


@pytest.mark.parametrize("flags", [[], ["--eval-freq", "64"]])
def test_evaluations_take_at_most_half_of_the_steps_of_endless_episodes(flags, monkeypatch, capsys):
    monkeypatch.setattr(Task, "steps", 0)
    small = ["--hyperparameters.n_steps", "64", "--hyperparameters.n_epochs", "1"]
    rl.train.main(
        ["--env", "Tendless-v0", "--timesteps", "1024", *small, "--run-dir", "run", *flags]
    )
    assert 1024 < Task.steps <= 1.5 * 1024
    assert "of the evaluation did not end within" in capsys.readouterr().err
    rl.evaluate.main(["--run", "run", "--out", "again.json"])
    again, first = (json.loads(Path(file).read_text()) for file in ("again.json", "run/eval.json"))
    assert again["mean_length"] == first["mean_length"] > 1
